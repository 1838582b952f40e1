"""The agent: what it revokes, what it only tells, whom it serves; and that it goes on where it was killed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host import burnin

from gpu_burnin.api import evidence
from gpu_burnin.api.agent_note import Answer, Asked, Maintenance, Revoking, note_text, read_note
from gpu_burnin.api.evidence import Statement
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import signing, unit
from gpu_burnin.node.gate import GateClosed, check_gate
from gpu_burnin.node.status import read_status, render
from gpu_burnin.node.store import Store
from gpu_burnin.node.watch import revoke
from gpu_burnin.node.watch.findings import Finding
from gpu_burnin.report.model import KernelLog, LoggedXid, Telemetry, document
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import Verdict
from tests.support.agent_helpers import APPLICATION, Bench, healthy, xid
from tests.support.made_reports import make_report
from tests.support.report_helpers import BOOT, HARDWARE, NOW, leave_run

EVIDENCE, AGENT = "muster.dev/evidence", "muster.dev/agent"


@pytest.fixture
def bench(config: Config, root: Path, tmp_path: Path, statement: Statement) -> Bench:
    """The agent of a node that has passed in this boot."""
    leave_run(config, statement)
    made = Bench(config, root, tmp_path / "pods" / "leave.json")
    made.tick()
    return made


def published(bench: Bench, public_line: str) -> evidence.Verified:
    """What the annotation says that the agent wants, its signature checked."""
    text = bench.wanted[EVIDENCE]
    assert text is not None
    expect = evidence.Expectation(node="gpu-1", boot_id=BOOT, verdict=None, ttl_s=None, skew_s=1e9)
    return evidence.verify(text, public_line, expect, NOW)


def gate_is_open(bench: Bench) -> bool:
    try:
        check_gate(bench.config, bench.root)
    except GateClosed:
        return False
    return True


def note(bench: Bench) -> dict[str, object]:
    found: dict[str, object] = json.loads(bench.wanted[AGENT] or "")
    return found


def codes(bench: Bench) -> list[str]:
    return [warned.code for warned in read_note(bench.wanted[AGENT] or "").warnings]


def test_a_healthy_node_is_left_alone(bench: Bench, public_line: str) -> None:
    for _ in range(3):
        bench.gpus(healthy())
        bench.tick()
    assert published(bench, public_line).statement.verdict is Verdict.PASS
    assert gate_is_open(bench)
    assert note(bench)["bootID"] == BOOT
    assert codes(bench) == []
    assert bench.said == []


def test_a_fatal_xid_closes_the_gate_and_is_signed_with_the_next_sequence(bench: Bench, public_line: str) -> None:
    bench.log(xid())
    bench.tick()
    assert not gate_is_open(bench)
    found = published(bench, public_line)
    assert (found.statement.verdict, found.statement.code) == (Verdict.FAIL, "XID_FATAL")
    assert found.statement.level == "watch"
    # That of XID 79, and not of the code, which is that of many XIDs.
    assert found.statement.action == "power_cycle"
    assert found.statement.sequence == 2
    assert found.hardware == HARDWARE
    assert "XID 79 on 0000:1b:00.0" in found.statement.message
    kept = Store(bench.config.state_dir).result().path / revoke.REVOCATION
    assert json.loads(kept.read_bytes())["code"] == "XID_FATAL"


def test_each_line_of_a_finding_has_its_code(bench: Bench) -> None:
    bench.log(why="nobody may read it")
    bench.log()
    bench.log(xid())
    bench.tick()
    said = [*zip(bench.codes, bench.said, strict=True)]
    assert [code for code, _ in said if code] == ["XID_SOURCE_MISSING", "XID_SOURCE_MISSING", "XID_FATAL"]
    assert all(line.startswith(f"{code}: ") for code, line in said if code)


def test_a_fatal_xid_names_the_gpu_as_it_was_known_before_it_was_lost(bench: Bench, public_line: str) -> None:
    gpu = healthy(pci_bus_id="0000:1b:00.0")
    bench.gpus(gpu)
    bench.log(xid())
    bench.tick()
    message = published(bench, public_line).statement.message
    assert f"XID 79 on GPU {gpu.index} (0000:1b:00.0 {gpu.uuid}): " in message


def test_a_run_that_begins_later_is_higher_and_its_pass_opens_again(
    bench: Bench, config: Config, statement: Statement, public_line: str
) -> None:
    bench.log(xid())
    bench.tick()
    store = Store(config.state_dir)
    reason = store.revoked()
    assert reason is not None
    run = leave_run(config, replace(statement, finished_at="2026-01-02T05:00:00Z"))
    store.clear_revocation(reason)  # as a run with a PASS does
    bench.tick()
    assert run.sequence == 3
    assert gate_is_open(bench)
    assert published(bench, public_line).statement.verdict is Verdict.PASS


def test_status_tells_a_revocation_as_a_fail_that_stands(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "state", lambda: unit.UnitState(False))
    bench.log(xid())
    bench.tick()
    found = read_status(bench.config, bench.root)
    assert found.evidence is not None
    told = found.evidence
    assert (told.problem, told.verdict, told.level, told.this_boot, told.report) == ("", "FAIL", "watch", True, "")
    assert [(reason.code, reason.action) for reason in told.reasons] == [("XID_FATAL", "power_cycle")]
    assert "taken back by the agent, of this boot" in render(found)
    decision = burnin.decide(to_json(found), level="quick", retest=False)
    assert "XID_FATAL: XID 79 on 0000:1b:00.0" in decision.why and "playbooks/repair.yml" in decision.why
    assert f"at {told.finished_at}" in decision.why
    assert not decision.run, "work may still be on the node: a person or the admitter asks for the retest"


def test_before_the_first_result_of_a_boot_there_is_nothing_to_take_back(
    config: Config, root: Path, tmp_path: Path, statement: Statement, public_line: str
) -> None:
    """The burn-in to come tells more; a revocation in its place would keep it from being run."""
    bench = Bench(config, root, tmp_path / "pods" / "leave.json")
    lost = healthy(lost="gpu_is_lost")
    bench.gpus(lost)
    bench.log(xid())
    bench.tick()
    assert (Store(config.state_dir).runs(), Store(config.state_dir).revoked(), gate_is_open(bench)) == ([], None, False)
    leave_run(config, statement)
    bench.gpus(lost)
    assert published_code(bench, public_line) == "GPU_LOST", "the fault is still there, and now there is a pass"
    assert not gate_is_open(bench)


def test_the_same_fault_revokes_once(bench: Bench, public_line: str) -> None:
    for at_us in (1, 2, 3):
        bench.log(xid(at_us=at_us))
        bench.tick()
    assert published(bench, public_line).statement.sequence == 2


def test_a_lost_gpu_is_told_though_a_lesser_fault_has_revoked(bench: Bench, public_line: str) -> None:
    bench.gpus(healthy(remap_failure=True))
    assert published_code(bench, public_line) == "REMAP_FAILED"
    bench.gpus(healthy(lost="gpu_is_lost"))
    assert published_code(bench, public_line) == "GPU_LOST"
    bench.log(xid())
    assert published_code(bench, public_line) == "GPU_LOST", "no more can be said"


def published_code(bench: Bench, public_line: str) -> str:
    bench.tick()
    return published(bench, public_line).statement.code


@pytest.mark.parametrize(
    ("text", "code"), [(APPLICATION, "XID_SUSPECT"), ("NVRM: Xid (PCI:0000:1b:00): 9999, new", "XID_UNKNOWN")]
)
def test_what_applications_cause_and_what_nobody_knows_is_told(bench: Bench, text: str, code: str) -> None:
    for at_us in range(50):
        bench.log(xid(text, at_us))
        bench.tick(60.0)
    assert gate_is_open(bench)
    (warned,) = read_note(bench.wanted[AGENT] or "").warnings
    assert warned.code == code
    assert warned.at == "2026-01-02T04:01:01Z", "the first: a storm of them is no storm of writes"


def test_a_newer_test_has_judged_what_was_warned_of(bench: Bench, config: Config, statement: Statement) -> None:
    bench.log(xid(APPLICATION))
    bench.tick()
    assert codes(bench) == ["XID_SUSPECT"]
    leave_run(config, replace(statement, finished_at="2026-01-02T05:00:00Z"))
    bench.tick()
    assert codes(bench) == []
    bench.tick(7200.0)
    bench.log(xid(APPLICATION, 9_000_000))
    bench.tick()
    assert codes(bench) == ["XID_SUSPECT"]


class Killed(BaseException):
    """kill -9."""


@pytest.mark.parametrize("step", ["revoke", "sign", "begin", "forget"])
def test_killed_at_any_step_it_goes_on_where_it_was(
    step: str, bench: Bench, public_line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if step == "revoke":
            patch.setattr(Store, "revoke", killed)
        if step == "sign":
            patch.setattr(signing, "write_evidence", killed)
        if step == "begin":
            patch.setattr(Store, "begin", killed)
        if step == "forget":
            bench.agent.memory.change(warnings={})
            change = bench.agent.memory.change

            def all_but_the_end(**changes: object) -> None:
                if changes.get("pending", "other") is None:
                    raise Killed
                change(**changes)

            patch.setattr(bench.agent.memory, "change", all_but_the_end)
        bench.log(xid())
        with pytest.raises(Killed):
            bench.tick()
    if step != "revoke":
        assert not gate_is_open(bench), "the gate comes first"
    bench.restart()
    bench.log(xid(), again=True)
    bench.tick()
    assert not gate_is_open(bench)
    found = published(bench, public_line).statement
    assert (found.verdict, found.code) == (Verdict.FAIL, "XID_FATAL")
    assert bench.agent.memory.kept.pending is None
    before = found.sequence
    bench.restart()
    bench.log(xid(), again=True)
    bench.tick()
    assert published(bench, public_line).statement.sequence == before, "once is enough"


def test_a_run_that_began_after_the_finding_has_judged_it(
    bench: Bench, config: Config, statement: Statement, monkeypatch: pytest.MonkeyPatch, public_line: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(signing, "write_evidence", lambda *_: (_ for _ in ()).throw(Killed()))
        bench.log(xid())
        with pytest.raises(Killed):
            bench.tick()
    leave_run(config, replace(statement, finished_at="2026-01-02T05:00:00Z"))
    bench.restart()
    bench.tick()
    assert gate_is_open(bench)
    assert published(bench, public_line).statement.verdict is Verdict.PASS


def test_a_host_that_cannot_sign_withdraws_its_evidence(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> str:
        raise GpuBurninError("no key")

    monkeypatch.setattr(signing, "sign", refuse)
    bench.log(xid())
    bench.tick()
    bench.tick()
    assert not gate_is_open(bench)
    assert bench.wanted[EVIDENCE] is None
    assert [line for line in bench.said if "no key" in line] == [bench.said[-1]]


def test_a_revocation_that_a_burn_in_keeps_from_being_signed_is_told_at_once(bench: Bench) -> None:
    with bench.agent.revoker.store.locked():
        bench.agent.revoker.begin(Finding("XID_FATAL", "XID 79 on 0000:81:00.0", True))
        bench.tick()
        told = read_note(bench.wanted[AGENT] or "").revoking
        assert told == Revoking("XID_FATAL", "XID 79 on 0000:81:00.0") and bench.wanted[EVIDENCE] is None
    bench.tick()
    assert read_note(bench.wanted[AGENT] or "").revoking is None and bench.wanted[EVIDENCE]


def test_xids_of_a_burn_in_are_its_to_judge(bench: Bench, public_line: str) -> None:
    bench.system.running = True
    bench.log(xid())
    for _ in range(10):
        bench.tick()
    assert published(bench, public_line).statement.verdict is Verdict.PASS
    bench.gpus(healthy(lost="gpu_is_lost"))
    bench.tick()
    assert published(bench, public_line).statement.verdict is Verdict.PASS


def report_of(bench: Bench, *events: LoggedXid) -> None:
    """The newest run's report, with these XIDs in it."""
    run = Store(bench.config.state_dir).result()
    report = make_report(telemetry=Telemetry(KernelLog("kmsg", alive=True, events=events)))
    (run.path / "report.json").write_text(json.dumps(document(report), indent=1) + "\n")


@pytest.mark.parametrize("judged", [True, False])
def test_what_the_run_has_not_seen_is_the_agents(judged: bool, bench: Bench, public_line: str) -> None:
    event = xid()
    at_us = event.monotonic_us + 300_000
    seen = LoggedXid(event.xid, event.sxid, event.pci_bus_id, None, event.pid, at_us, event.text, own=False)
    report_of(bench, *([seen] if judged else []))
    bench.log(event, again=True)
    bench.tick()
    assert published(bench, public_line).statement.verdict is (Verdict.PASS if judged else Verdict.FAIL)


def test_before_the_first_run_of_a_boot_nothing_is_judged(
    config: Config, root: Path, tmp_path: Path, statement: Statement
) -> None:
    leave_run(config, replace(statement, boot_id="99999999-2222-3333-4444-555555555555"))
    bench = Bench(config, root, tmp_path / "pods" / "leave.json")
    bench.log(xid(), again=True)
    bench.tick()
    assert Store(config.state_dir).revoked() is None
    assert Store(config.state_dir).counter() == 1


def test_a_damaged_counter_loses_no_revocation(bench: Bench, config: Config, public_line: str) -> None:
    """The gate is shut at once; the statement is signed as soon as somebody has repaired the counter."""
    counter = config.state_dir / "sequence"
    counter.write_text("garbage")
    bench.log(xid())
    bench.tick()
    assert Store(config.state_dir).revoked() is not None and bench.wanted[EVIDENCE] is None
    assert any("does not hold a number" in line for line in bench.said)
    counter.write_text("41")
    bench.tick()
    found = published(bench, public_line).statement
    assert (found.verdict, found.code, found.sequence) == (Verdict.FAIL, "XID_FATAL", 42)


def test_an_xid_of_nvml_counts_where_the_log_has_it_not(bench: Bench, public_line: str) -> None:
    reported = replace(xid(), text="NVML reports XID 79")
    bench.log(xid(APPLICATION))
    bench.agent.nvml_xid(replace(reported, xid=31, text="NVML reports XID 31"), bench.now_s)
    bench.agent.nvml_xid(reported, bench.now_s)
    bench.tick(0.5)
    assert published(bench, public_line).statement.verdict is Verdict.PASS, "the log's own line may come"
    bench.tick(2.0)
    assert published(bench, public_line).statement.code == "XID_FATAL"
    assert list(bench.agent.memory.kept.warnings) == ["XID_SUSPECT XID 31 0000:1b:00.0"]


def test_other_hardware_revokes_when_it_is_seen_twice(
    bench: Bench, public_line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.gpus(healthy(vbios="97.00"))
    bench.tick()
    assert published(bench, public_line).statement.verdict is Verdict.PASS
    assert bench.asked == 1
    bench.gpus(healthy(vbios="97.00"))
    assert published_code(bench, public_line) == "HARDWARE_CHANGED"
    assert "VBIOS of GPU-a 96.00.D0.00.03 -> 97.00" in published(bench, public_line).statement.message
    monkeypatch.setattr(unit, "state", lambda: unit.UnitState(False))
    status = to_json(read_status(bench.config, bench.root))
    assert burnin.decide(status, level="quick", retest=False).run, "as after a driver that site.yml has changed"


def test_hardware_that_is_itself_again_is_no_change(bench: Bench, public_line: str) -> None:
    for vbios in ("97.00", "96.00.D0.00.03", "97.00"):
        bench.gpus(healthy(vbios=vbios))
    bench.tick()
    assert published(bench, public_line).statement.verdict is Verdict.PASS


def test_uncorrectable_errors_are_told_once_for_each_count(bench: Bench) -> None:
    for count in (5, 5, 7, 7):
        bench.gpus(healthy(uncorrected=count))
        bench.tick()
    assert codes(bench) == ["ECC_UNCORRECTED"]
    assert "2 more uncorrectable memory errors" in str(note(bench)["warnings"])


def test_a_row_that_waits_is_told_as_long_as_it_does(bench: Bench, config: Config, statement: Statement) -> None:
    bench.gpus(healthy(remap_pending=True))
    bench.tick()
    first = note(bench)["warnings"]
    leave_run(config, replace(statement, finished_at="2026-01-02T05:00:00Z"))
    bench.gpus(healthy(remap_pending=True))
    bench.tick()
    assert note(bench)["warnings"] == first, "as of when it began: the test has seen it"
    bench.gpus(healthy())
    bench.tick()
    assert codes(bench) == []


def test_what_it_does_not_see_is_told_until_it_sees(bench: Bench, config: Config, statement: Statement) -> None:
    bench.log(why="/dev/kmsg cannot be read (Permission denied)")
    bench.gpus(why="libnvidia-ml.so.1 was not found")
    bench.tick()
    assert sorted(codes(bench)) == ["NVML_UNAVAILABLE", "XID_SOURCE_MISSING"]
    leave_run(config, replace(statement, finished_at="2026-01-02T05:00:00Z"))
    bench.tick()
    assert sorted(codes(bench)) == ["NVML_UNAVAILABLE", "XID_SOURCE_MISSING"]
    bench.restart()
    bench.log()
    bench.gpus(healthy())
    bench.tick()
    assert codes(bench) == []


def test_a_gap_and_a_silent_nvml_are_told(bench: Bench) -> None:
    bench.log(lost=7)
    bench.gpus(healthy())
    bench.tick()
    assert codes(bench) == ["XID_GAP"]
    bench.tick(300.0)
    assert sorted(codes(bench)) == ["NVML_UNAVAILABLE", "XID_GAP"]


@pytest.mark.slow
def test_notes_stay_small_however_much_is_seen(bench: Bench) -> None:
    for code in range(20000, 20400):
        bench.log(xid(f"NVRM: Xid (PCI:0000:1b:00): {code}, {'x' * 400}"))
        bench.tick()
    assert len(bench.wanted[AGENT] or "") < 8192
    read_note(bench.wanted[AGENT] or "")


class TestRequests:
    def ask(self, bench: Bench, request: str = "r1", level: str = "quick") -> None:
        bench.node(request=note_text(Asked(request, level)))

    def answer(self, bench: Bench) -> Answer | None:
        return read_note(bench.wanted[AGENT] or "").request

    def test_an_idle_node_runs_and_tells_its_end(self, bench: Bench) -> None:
        bench.gpus(healthy())
        self.ask(bench)
        bench.tick()
        assert bench.system.started == [], "only what is read after the request says that the GPUs are idle"
        assert bench.asked == 1
        bench.gpus(healthy())
        bench.tick()
        assert bench.system.started == [("--level", "quick", "--waves", "never")]
        assert self.answer(bench) == Answer("r1", "running")
        bench.system.running = False
        bench.tick(10.0)
        assert self.answer(bench) == Answer("r1", "done")

    def test_a_request_raises_the_number_of_a_node_that_lost_its_state(self, bench: Bench) -> None:
        bench.gpus(healthy())
        bench.node(request=note_text(Asked("r1", "quick", after=57)))
        bench.tick()
        bench.gpus(healthy())
        bench.tick()
        store = Store(bench.config.state_dir)
        with store.locked():
            assert store.new_run(datetime.now(UTC)).sequence == 58

    def test_a_request_is_served_once_also_by_a_new_process(self, bench: Bench) -> None:
        for _ in range(2):
            self.ask(bench)
            bench.gpus(healthy())
            bench.tick(10.0)
            bench.restart()
        bench.system.running = False
        bench.tick(10.0)
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick(10.0)
        assert len(bench.system.started) == 1
        assert self.answer(bench) == Answer("r1", "done")
        self.ask(bench, "r2")
        bench.gpus(healthy())
        bench.tick(10.0)
        assert len(bench.system.started) == 2

    def cut_short(self, bench: Bench, code: str = "INTERRUPTED") -> None:
        """A burn-in that begins for a request, and ends with its agent; what it has left is signed."""
        bench.system.ends_with_agent = True
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick()
        statement = bench.agent.revoker.newest()
        assert statement is not None
        leave_run(bench.config, replace(statement.statement, verdict=Verdict.INCONCLUSIVE, code=code))
        bench.system.running = False
        bench.restart()
        bench.tick(10.0)

    def test_a_burn_in_that_ended_with_its_agent_is_begun_once_more(self, bench: Bench) -> None:
        self.cut_short(bench)
        # Nothing is said of it: it was cut short, and comes again.
        assert EVIDENCE not in bench.wanted
        assert self.answer(bench) == Answer("r1", "running")
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick()
        assert len(bench.system.started) == 2
        assert EVIDENCE not in bench.wanted, "the new one has not begun to count yet"
        bench.system.running = False
        bench.restart()
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick(10.0)
        # It may be the burn-in that ends the agent.
        assert len(bench.system.started) == 2
        assert self.answer(bench) == Answer("r1", "done")
        assert EVIDENCE in bench.wanted

    def test_a_burn_in_that_has_a_result_is_not_begun_again(self, bench: Bench) -> None:
        self.cut_short(bench, "GEMM_MISMATCH")
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick(10.0)
        assert len(bench.system.started) == 1
        assert self.answer(bench) == Answer("r1", "done")
        assert EVIDENCE in bench.wanted

    def test_a_request_that_was_taken_back_is_not_served_once_more(self, bench: Bench) -> None:
        self.cut_short(bench)
        bench.node()
        bench.tick(10.0)
        assert len(bench.system.started) == 1
        assert self.answer(bench) == Answer("r1", "done")

    def test_a_machine_that_went_down_in_a_burn_in_does_not_begin_it_again(self, bench: Bench) -> None:
        self.cut_short(bench)
        (bench.root / host.BOOT_ID).write_text("0f0f0f0f-0000-4000-8000-000000000000\n")
        bench.restart()
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick(10.0)
        assert len(bench.system.started) == 1

    def test_a_node_with_work_refuses(self, bench: Bench) -> None:
        self.ask(bench)
        bench.gpus(healthy(pids=(4711,)))
        bench.tick()
        found = self.answer(bench)
        assert found is not None
        assert (found.id, found.state, found.why) == ("r1", "refused", "busy: a process uses a GPU (pid 4711)")
        assert bench.system.started == []

    def test_two_burn_ins_are_not_started(self, bench: Bench) -> None:
        bench.system.running = True
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick()
        found = self.answer(bench)
        assert found is not None and found.why == "busy: a burn-in is under way"

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"id":1,"level":"quick"}', "x" * 100_000, "[" * 9000])
    def test_a_request_that_cannot_be_read_is_told_once_and_has_none_served_twice(
        self, bench: Bench, text: str
    ) -> None:
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick()
        for _ in range(3):
            bench.node(request=text)
            bench.tick()
        assert len([line for line in bench.said if "cannot be read" in line]) == 1
        assert self.answer(bench) == Answer("r1", "running")
        bench.system.running = False
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick(10.0)
        assert len(bench.system.started) == 1

    def test_a_driver_that_hangs_leaves_no_request_without_answer(self, bench: Bench) -> None:
        self.ask(bench)
        bench.tick(59.0)
        assert self.answer(bench) is None
        bench.tick(2.0)
        found = self.answer(bench)
        assert found is not None and found.state == "refused" and "NVML has not answered for 60 s" in found.why
        assert bench.system.started == []

    def test_an_unknown_level_is_refused(self, bench: Bench) -> None:
        self.ask(bench, level="--inject gemm:bitflip")
        bench.tick()
        found = self.answer(bench)
        assert found is not None and found.state == "refused" and "there is no level" in found.why
        assert bench.system.started == []

    def test_systemd_that_refuses_is_told(self, bench: Bench) -> None:
        bench.system.refuses = "gpu-1: systemd-run cannot start the burn-in"
        self.ask(bench)
        bench.gpus(healthy())
        bench.tick()
        assert self.answer(bench) == Answer("r1", "refused", "gpu-1: systemd-run cannot start the burn-in")

    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_refusal_for_a_driver_to_come_is_taken_back(self, bench: Bench, restarted: bool) -> None:
        bench.system.waits_for = "gpu-1: no library of the driver is yet below /driver"
        bench.gpus(why="libnvidia-ml.so.1 was not found")
        self.ask(bench)
        bench.tick()
        bench.tick(10.0)
        assert self.answer(bench) == Answer("r1", "refused", bench.system.waits_for)
        if restarted:
            bench.restart()
            bench.gpus(why="libnvidia-ml.so.1 was not found")
        bench.system.waits_for = ""
        bench.tick()
        assert self.answer(bench) is None
        # It stands on the Node still, or comes anew: it is served.
        self.ask(bench)
        bench.tick()
        assert self.answer(bench) == Answer("r1", "running") and len(bench.system.started) == 1

    def test_another_refusal_stays_when_a_driver_has_come(self, bench: Bench) -> None:
        self.ask(bench)
        bench.gpus(healthy(pids=(4711,)))
        bench.tick()
        bench.tick(10.0)
        found = self.answer(bench)
        assert found is not None and found.state == "refused"

    def test_without_nvml_the_burn_in_says_what_is_wrong(self, bench: Bench) -> None:
        bench.gpus(why="libnvidia-ml.so.1 was not found")
        self.ask(bench)
        bench.tick()
        assert len(bench.system.started) == 1

    def test_while_the_run_is_under_way_its_evidence_is_not_withdrawn(self, bench: Bench, public_line: str) -> None:
        store = Store(bench.config.state_dir)
        with store.locked():
            store.begin(store.new_run(NOW))
            bench.tick(10.0)
            assert EVIDENCE not in bench.wanted
        bench.tick(10.0)
        assert bench.wanted[EVIDENCE] is None, "it ended without"


def test_work_is_asked_to_leave_by_a_file(bench: Bench) -> None:
    bench.node(leave='{"since":"2026-01-02T04:00:00Z","deadline":"2026-01-09T04:00:00Z","why":"XID_FATAL"}')
    assert json.loads(bench.leave.read_text())["why"] == "XID_FATAL"
    bench.node()
    assert not bench.leave.exists()


def test_maintenance_is_in_the_note(bench: Bench) -> None:
    bench.maintenance = Maintenance("azure", "scheduled", "2026-01-02T06:00:00Z")
    bench.tick()
    assert read_note(bench.wanted[AGENT] or "").maintenance == bench.maintenance


def test_kubelet_registers_again_when_its_node_was_deleted(bench: Bench) -> None:
    def absent(seconds: float) -> None:
        bench.agent.own_node(None, bench.now_s)
        bench.tick(seconds)

    absent(59.0)
    assert bench.system.restarts == 0
    absent(1.0)
    assert bench.system.restarts == 1
    absent(60.0)
    assert bench.system.restarts == 1, "ever more rarely"
    absent(60.0)
    assert bench.system.restarts == 2
    bench.node()
    absent(59.0)
    bench.agent.api_trouble("it does not answer")
    bench.tick(600.0)
    assert bench.system.restarts == 2, "nothing is known of it"


@pytest.mark.parametrize("change", ["kubelet", "gate"])
def test_kubelet_is_left_alone_where_it_does_not_run_or_would_not_come_back(change: str, bench: Bench) -> None:
    if change == "kubelet":
        bench.system.kubelet = False
    else:
        Store(bench.config.state_dir).revoke("a person said so")
    bench.agent.own_node(None, bench.now_s)
    bench.tick(61.0)
    assert bench.system.restarts == 0


def test_api_trouble_is_told_once(bench: Bench) -> None:
    for _ in range(5):
        bench.agent.api_trouble("it does not answer")
        bench.tick()
    bench.agent.api_trouble("")
    bench.node()
    bench.agent.api_trouble("it does not answer")
    assert bench.said == ["the cluster cannot be asked: it does not answer"] * 2


@pytest.mark.parametrize("content", ["", "{", "[]", '{"boot_id":1}', "[" * 5000])
def test_a_broken_memory_ends_nothing(content: str, bench: Bench, public_line: str) -> None:
    path = bench.config.state_dir / "watch.json"
    bench.log(xid(APPLICATION))
    bench.tick()
    path.write_text(content)
    bench.restart()
    assert "cannot be read" in bench.said[-1]
    bench.log(xid())
    assert published_code(bench, public_line) == "XID_FATAL"


def test_a_new_boot_forgets_what_was_seen_and_not_what_was_served(bench: Bench) -> None:
    bench.node(request=note_text(Asked("r1", "quick")))
    bench.gpus(healthy())
    bench.log(xid(APPLICATION))
    bench.tick()
    (bench.root / "proc/sys/kernel/random/boot_id").write_text("22222222-2222-3333-4444-555555555555\n")
    bench.system.running = False
    bench.at += timedelta(minutes=3)
    bench.restart()
    bench.node(request=note_text(Asked("r1", "quick")))
    bench.gpus(healthy())
    bench.tick(10.0)
    assert len(bench.system.started) == 1
    assert codes(bench) == []
    assert note(bench)["bootID"] == "22222222-2222-3333-4444-555555555555"


def test_after_a_restore_of_etcd_it_names_the_restore_with_its_newest_evidence(bench: Bench) -> None:
    def noted_restore() -> str:
        bench.tick()
        return read_note(str(bench.wanted[AGENT])).restored

    assert noted_restore() == ""
    store = bench.agent.revoker.store
    with store.locked():
        store.begin(store.new_run(NOW))
        # The Node is as the snapshot has it, and the admitter has put the restore on it.
        bench.node(restored="2026-11-21T11:59:00Z")
        assert noted_restore() == "" and EVIDENCE not in bench.wanted, "what is on the Node is not this agent's word"
    assert noted_restore() == "2026-11-21T11:59:00Z" and EVIDENCE in bench.wanted
    bench.node()
    assert noted_restore() == ""
