"""When the burnin module runs a burn-in, and what it returns of the host's status."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import burnin
from ansible_collections.muster.fleet.plugins.modules import burnin as module
from ansible_collections.muster.fleet.plugins.modules import power_grant

from gpu_burnin.settings.durations import parse_duration

ROOT = Path(__file__).resolve().parents[3]


def evidence(**changes: Any) -> dict[str, Any]:
    """A PASS of this boot, as `gpu-burnin status --json` has it."""
    return {
        "run_id": "r", "path": "/r", "sequence": 1, "problem": "", "this_boot": True, "boot_id": "b",
        "verdict": "PASS", "level": "standard", "simulated": False, "finished_at": "2026-08-01T12:00:30Z",
        "action": "none", "order": None, "reasons": [], "warnings": [], "report": "/r/report.json",
        "page": "", **changes,
    }  # fmt: skip


def status(
    found: dict[str, Any] | None = None, *, gate_open: bool = True, revoked: str | None = None
) -> dict[str, Any]:
    """The status of a host with this evidence."""
    gate = {"open": gate_open, "exit_code": 0 if gate_open else 1, "message": "" if gate_open else "closed"}
    return {"evidence": found, "gate": gate, "revoked": revoked, "maintenance": {"near": "", "unknown": ""}}


@pytest.mark.parametrize(
    ("found", "changes", "retest", "run", "why"),
    [
        (None, {}, False, True, "no burn-in has been completed"),
        (evidence(), {}, False, False, "a pass of this boot exists"),
        (evidence(), {}, True, True, "a retest was asked for"),
        (evidence(this_boot=False), {}, False, True, "started again"),
        (evidence(problem="it is not signed"), {}, False, True, "it is not signed"),
        (evidence(level="quick"), {}, False, True, "this boot passed at quick; standard is required"),
        # A test of the idle node came after the pass that the join needed.
        (evidence(level="quick", passed_level="standard"), {}, False, False, "a pass of this boot exists"),
        (evidence(level="quick", passed_level="quick"), {}, False, True, "this boot passed at quick"),
        (evidence(level="extended"), {}, False, False, "a pass of this boot exists"),
        (evidence(), {"gate_open": False}, False, True, "does not accept"),
        (evidence(), {"gate_open": False, "revoked": "by hand"}, False, False, "closed by hand or by the cluster"),
        (evidence(verdict="FAIL"), {"gate_open": False}, False, False, "the FAIL of this boot stands"),
        (evidence(verdict="INCONCLUSIVE"), {"gate_open": False}, False, False, "the INCONCLUSIVE of this boot stands"),
        (evidence(verdict="FAIL"), {"gate_open": False}, True, True, "a retest was asked for"),
        (evidence(verdict="FAIL", this_boot=False), {"gate_open": False}, False, True, "started again"),
        # A FAIL is not tested again for the sake of a higher level.
        (evidence(verdict="FAIL", level="quick"), {"gate_open": False}, False, False, "the FAIL of this boot stands"),
    ],
)
def test_decisions(found: dict[str, Any] | None, changes: dict[str, Any], retest: bool, run: bool, why: str) -> None:
    decision = burnin.decide(status(found, **changes), level="standard", retest=retest)
    assert decision.run is run
    assert why in decision.why


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="thorough"):
        burnin.decide(status(evidence(level="thorough")), level="standard", retest=False)


def test_only_extended_has_a_length() -> None:
    assert burnin.run_options("quick", 7200, "", None) == ["--level", "quick"]
    assert burnin.run_options("extended", 7200, "", None) == ["--level", "extended", "--for", "7200s"]


def test_the_level_and_the_wait_are_left_to_the_host_where_nothing_is_said() -> None:
    assert burnin.run_options(None, 7200, "", None) == []
    given = burnin.run_options("quick", 7200, "granted", 900)
    assert given == ["--level", "quick", "--waves", "granted", "--wave-wait", "900s"]


def test_warnings_of_the_report_are_returned() -> None:
    assert burnin.summary(status(evidence()))["burnin_warnings"] == []
    warned = evidence(warnings=[{"code": "EXTENDED_WANTED"}])
    assert burnin.summary(status(warned))["burnin_warnings"] == [{"code": "EXTENDED_WANTED"}]


def test_summary_names_the_report() -> None:
    result = burnin.summary(status(evidence(report="/var/lib/x/report.json"), gate_open=False))
    assert result["report"] == "/var/lib/x/report.json"
    assert (result["gate_open"], result["gate_message"]) == (False, "closed")


def test_summary_names_the_page_of_a_run_that_left_one() -> None:
    """Version 0.1.0 left none; what is not there cannot be brought to the controller."""
    assert "page" not in burnin.summary(status(evidence()))
    assert burnin.summary(status(evidence(page="/r/report.html")))["page"] == "/r/report.html"


def test_files_of_a_run_have_digests_as_far_as_they_are_there(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("x")
    found = module.digests({"report": str(report), "page": str(tmp_path / "report.html"), "verdict": "PASS"})
    assert found == {"report_sha256": hashlib.sha256(b"x").hexdigest()}
    assert module.digests({"ran": False}) == {}


def test_a_gate_that_does_not_work_fails_the_task() -> None:
    found = status(evidence(), gate_open=False)
    found["gate"] |= {"exit_code": 2, "message": "gpu-burnin gate does not work: no host key"}
    with pytest.raises(FleetError, match="gate does not work: no host key"):
        burnin.summary(found)


class FakeModule:
    """As much of AnsibleModule as the program's wrapper uses."""

    def __init__(self, program: Path, answer: tuple[int, str, str], config: str | None = None) -> None:
        self.params = {"program": str(program), "config": config}
        self.commands: list[list[str]] = []
        self._answer = answer

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command)
        return self._answer


def ask(tmp_path: Path, *answer: Any, config: str | None = None) -> tuple[burnin.Program, FakeModule]:
    path = tmp_path / "gpu-burnin"
    path.touch(mode=0o755)
    module = FakeModule(path, answer, config)  # type: ignore[arg-type]
    return burnin.Program(module), module  # type: ignore[arg-type]


def test_the_program_is_asked_in_json(tmp_path: Path) -> None:
    program, module = ask(tmp_path, 0, '{"state": "over"}', "", config="/c.yaml")
    assert program.status("--wait-for", "end") == {"state": "over"}
    program.start(["--level", "quick"])
    assert program.grant_and_wait(90.4) == "over"
    assert [command[1:] for command in module.commands] == [
        ["status", "--json", "--config", "/c.yaml", "--wait-for", "end"],
        ["start", "--json", "--", "--config", "/c.yaml", "--level", "quick"],
        ["power-grant", "--json", "--config", "/c.yaml", "--wait", "--timeout", "90s"],
    ]


def test_an_error_of_the_program_is_the_tasks_one_sentence(tmp_path: Path) -> None:
    program, _ = ask(tmp_path, 2, "", "Usage: x\ngpu-burnin: /etc/c.yaml:3: unknown key levle\n")
    with pytest.raises(FleetError, match=r"^/etc/c\.yaml:3: unknown key levle$"):
        program.status()
    program, _ = ask(tmp_path, 3, "", "gpu-burnin: gpu-1: the burn-in has not ended after 5 s and goes on\n")
    with pytest.raises(FleetError, match="run the play again, which joins it, or raise gpu_burnin_timeout_s"):
        program.status()
    program, _ = ask(tmp_path, 4, "", "")
    with pytest.raises(FleetError, match="ended with exit code 4 and said nothing"):
        program.status()
    program, _ = ask(tmp_path, 0, "started", "")
    with pytest.raises(FleetError, match="did not answer in JSON"):
        program.status()


def test_a_host_without_the_program_says_what_to_do(tmp_path: Path) -> None:
    program = burnin.Program(FakeModule(tmp_path / "none", (0, "", "")))  # type: ignore[arg-type]
    with pytest.raises(FleetError, match="is not installed; apply the role gpu_burnin"):
        program.status()


# --- the modules' phases ---


class Script:
    """A host whose program answers one status after another, and keeps what it is asked."""

    def __init__(self, path: Path, *statuses: dict[str, Any], check_mode: bool = False, **params: Any) -> None:
        path.touch(mode=0o755)
        self.check_mode, self._statuses = check_mode, list(statuses)
        self.params = {
            "program": str(path), "config": None, "timeout_s": 1800, "phase": "all", "level": "standard",
            "retest": False, "extended_s": 7200, "extended_for_new": "", "waves": "granted", "wave_wait_s": None,
            "after_sequence": 0, "joined": False, "maintenance": "", "despite_maintenance": False, **params,
        }  # fmt: skip
        self.commands: list[str] = []

    def run_command(self, command: list[str]) -> tuple[int, str, str]:
        self.commands.append(command[1])
        if command[1] == "status":
            return 0, json.dumps(self._statuses.pop(0)), ""
        return 0, json.dumps({"state": "over", "started": True}), ""


def of_host(found: dict[str, Any] | None, *, running: bool, waves: str = "none", **unit: Any) -> dict[str, Any]:
    """The whole status of a host."""
    base = {"name": "gpu-burnin-run.service", "running": running, "failed": "", "last_lines": "the last line", **unit}
    return {**status(found), "unit": base, "power_grant": {"state": waves, "waves_s": 24.5}}


IDLE, ASKS = of_host(None, running=False), of_host(None, running=True, waves="waiting")
PASSED = of_host(evidence(), running=False, waves="over")


RUNS = of_host(None, running=True)


def test_a_run_is_started_and_not_waited_for(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", IDLE, phase="start")
    done = module.run(host)  # type: ignore[arg-type]
    assert (done["under_way"], done["joined"], done["sequence_before"], done["ran"]) == (True, False, 0, False)
    assert (done["changed"], host.commands) == (True, ["status", "start"])


def test_a_run_that_is_found_is_not_started_again(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", RUNS, phase="start", retest=True)
    done = module.run(host)  # type: ignore[arg-type]
    assert (done["under_way"], done["joined"], done["changed"], host.commands) == (True, True, False, ["status"])


@pytest.mark.parametrize("check_mode", [True, False])
@pytest.mark.parametrize("phase", ["start", "all"])
def test_a_test_of_a_node_that_has_passed_is_not_waited_for(phase: str, check_mode: bool, tmp_path: Path) -> None:
    """An extended one takes two hours, and no play waits so long for a result that it has."""

    def under_test(level: str) -> dict[str, Any]:
        found = of_host(evidence(level=level), running=True)
        return found | {"gate": {"open": False, "exit_code": 3, "message": "closed", "under_test": True}}

    host = Script(tmp_path / "p", under_test("standard"), phase=phase, check_mode=check_mode)
    done = module.run(host)  # type: ignore[arg-type]
    assert (done["verdict"], done["gate_open"], done["ran"], host.commands) == ("PASS", True, False, ["status"])
    assert done["why"].startswith("a pass of this boot exists; a test of it is under way in ")
    for why, found, params in (
        ("a lower level", under_test("quick"), {}),
        ("a retest", under_test("standard"), {"retest": True}),
        ("killed before", of_host(evidence(), running=True) | {"gate": status(gate_open=False)["gate"]}, {}),
    ):
        host = Script(tmp_path / "p", found, phase="start", **params)
        assert module.run(host)["joined"], why  # type: ignore[arg-type]


def test_where_nothing_is_to_be_run_the_start_gives_the_result(tmp_path: Path) -> None:
    done = module.run(Script(tmp_path / "p", PASSED, phase="start"))  # type: ignore[arg-type]
    assert (done["verdict"], done["changed"], done["waves"], "under_way" in done) == ("PASS", False, "none", False)


@pytest.mark.parametrize("joined", [True, False])
def test_the_wait_comes_back_when_waves_are_asked_for(joined: bool, tmp_path: Path) -> None:
    host = Script(tmp_path / "p", ASKS, phase="wait", joined=joined)
    done = module.run(host)  # type: ignore[arg-type]
    assert (done["waves"], done["waves_s"], done["sequence_before"], done["ran"]) == ("waiting", 24.5, 0, False)
    assert host.commands == ["status"], "a grant is for the module that has a turn"


def test_a_run_that_ended_before_it_was_waited_for_is_no_second_one(tmp_path: Path) -> None:
    for joined in (True, False):
        host = Script(tmp_path / "p", PASSED, phase="wait", joined=joined, retest=True)
        done = module.run(host)  # type: ignore[arg-type]
        assert (done["verdict"], done["ran"], host.commands) == ("PASS", True, ["status"])
    with pytest.raises(FleetError, match="the burn-in ended without evidence: the last line"):
        module.run(Script(tmp_path / "p", PASSED, phase="wait", after_sequence=1))  # type: ignore[arg-type]


def test_a_run_of_a_lower_level_that_was_joined_is_followed_by_the_one_that_is_wanted(tmp_path: Path) -> None:
    low = of_host(evidence(level="quick", passed_level="quick"), running=False)
    high = of_host(evidence(sequence=2), running=False, waves="over")
    host = Script(tmp_path / "p", low, high, phase="wait", joined=True)
    done = module.run(host)  # type: ignore[arg-type]
    assert (host.commands, done["verdict"]) == (["status", "start", "status"], "PASS")
    assert done["why"].startswith("joined the run in gpu-burnin-run.service; ")


DEEP = evidence(level="quick", passed_level="standard", sequence=2)


@pytest.mark.parametrize(
    ("left", "again"),
    [
        (DEEP, True),
        ({**DEEP, "verdict": "INCONCLUSIVE", "passed_level": ""}, True),
        ({**DEEP, "verdict": "FAIL", "passed_level": ""}, False),
        ({**DEEP, "level": "standard"}, False),
        # It left nothing: what is there is of before it.
        (evidence(verdict="FAIL"), True),
        (None, True),
    ],
)
@pytest.mark.parametrize("phase", ["all", "wait"])
def test_a_retest_that_joins_a_run_which_does_less_is_not_dropped(
    left: dict[str, Any] | None, again: bool, phase: str, tmp_path: Path
) -> None:
    """Idle nodes are tested daily at a lower level, and a repair, or a person, asks for a deeper one meanwhile."""
    first = () if phase == "wait" else (of_host(evidence(), running=True),)
    done = of_host(evidence(sequence=3), running=False, waves="over")
    params = {"joined": True, "after_sequence": 1} if phase == "wait" else {}
    host = Script(tmp_path / "p", *first, of_host(left, running=False), done, phase=phase, retest=True, **params)
    result = module.run(host)  # type: ignore[arg-type]
    assert host.commands.count("start") == again
    assert result["ran"] and ("a retest was asked for" in result["why"]) == again


def test_the_role_tells_each_wait_what_was_asked_for() -> None:
    tasks = yaml.safe_load((ROOT / "roles/gpu_burnin/tasks/result.yml").read_text())
    waits = [task["muster.fleet.burnin"] for task in tasks if "muster.fleet.burnin" in task]
    assert [(one["phase"], one["retest"], one["joined"]) for one in waits] == [
        (phase, "{{ gpu_burnin_retest }}", "{{ __gpu_burnin_result.joined }}") for phase in ("wait", "end")
    ]


def test_a_joined_run_with_waves_that_does_less_than_a_retest_asks_for_is_told(tmp_path: Path) -> None:
    params = {"phase": "end", "joined": True, "retest": True}
    with pytest.raises(FleetError, match="ended PASS at level standard, and a retest of level extended is asked for"):
        module.run(Script(tmp_path / "p", PASSED, level="extended", **params))  # type: ignore[arg-type]
    assert module.run(Script(tmp_path / "p", PASSED, **params))["verdict"] == "PASS"  # type: ignore[arg-type]


def test_the_whole_run_in_one_task_grants_by_itself(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", IDLE, ASKS, PASSED)
    done = module.run(host)  # type: ignore[arg-type]
    assert host.commands == ["status", "start", "status", "power-grant", "status"]
    assert (done["verdict"], done["waves"], done["ran"]) == ("PASS", "over", True)


def test_a_run_under_way_is_joined_and_its_result_is_as_good_as_a_retest(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", of_host(None, running=True), PASSED, retest=True)
    done = module.run(host)  # type: ignore[arg-type]
    assert (done["verdict"], done["changed"], done["ran"]) == ("PASS", True, True)
    assert done["why"] == "joined the run in gpu-burnin-run.service; a pass of this boot exists"
    assert "start" not in host.commands


WINDOW = "aws: maintenance (system-reboot) is announced from 2026-12-01T22:00:00Z"
NOTICED = {**IDLE, "maintenance": {"near": WINDOW, "unknown": ""}}


@pytest.mark.parametrize(("found", "params"), [(IDLE, {"maintenance": WINDOW}), (NOTICED, {})])
def test_no_run_begins_in_a_maintenance_window(found: dict[str, Any], params: dict[str, Any], tmp_path: Path) -> None:
    host = Script(tmp_path / "p", found, **params)
    done = module.run(host)  # type: ignore[arg-type]
    assert host.commands == ["status"]
    assert (done["changed"], done["ran"], done["postponed"], done["waves"]) == (False, False, True, "none")
    assert "verdict" not in done
    assert done["why"] == (
        "no burn-in has been completed on this host, but nothing begins in a maintenance window "
        f"({WINDOW}); run it again when that is over"
    )


@pytest.mark.parametrize("check_mode", [True, False])
def test_a_retest_that_is_postponed_leaves_the_result_of_this_boot(check_mode: bool, tmp_path: Path) -> None:
    for this_boot in (True, False):
        found = of_host(evidence(this_boot=this_boot), running=False)
        host = Script(tmp_path / "p", found, check_mode=check_mode, retest=True, maintenance=WINDOW)
        done = module.run(host)  # type: ignore[arg-type]
        assert (done["postponed"], done["changed"]) == (True, False)
        assert done.get("verdict") == ("PASS" if this_boot else None)


def test_a_person_may_begin_a_run_in_a_window(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", NOTICED, PASSED, maintenance=WINDOW, despite_maintenance=True)
    assert module.run(host)["ran"]  # type: ignore[arg-type]


def test_a_window_keeps_nothing_that_is_not_needed_and_ends_no_run(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", PASSED, maintenance=WINDOW)
    assert module.run(host)["why"] == "a pass of this boot exists"  # type: ignore[arg-type]
    host = Script(tmp_path / "p", of_host(None, running=True), PASSED, maintenance=WINDOW)
    assert module.run(host)["ran"]  # type: ignore[arg-type]


def test_where_nobody_knows_of_maintenance_the_run_of_a_play_begins(tmp_path: Path) -> None:
    found = {**IDLE, "maintenance": {"near": "", "unknown": "aws: no answer"}}
    assert module.run(Script(tmp_path / "p", found, PASSED))["ran"]  # type: ignore[arg-type]


def test_the_last_phase_waits_for_the_end_and_gives_the_result(tmp_path: Path) -> None:
    done = module.run(Script(tmp_path / "p", PASSED, phase="end"))  # type: ignore[arg-type]
    assert (done["verdict"], done["changed"], done["gate_open"]) == ("PASS", True, True)
    with pytest.raises(FleetError, match="the burn-in ended without evidence: the last line"):
        module.run(Script(tmp_path / "p", PASSED, phase="end", after_sequence=1))  # type: ignore[arg-type]


def test_evidence_that_cannot_be_used_is_no_result(tmp_path: Path) -> None:
    damaged = of_host(evidence(problem="it is not signed"), running=False)
    with pytest.raises(FleetError, match="evidence that cannot be used: it is not signed"):
        module.run(Script(tmp_path / "p", IDLE, damaged))  # type: ignore[arg-type]


def test_a_unit_that_failed_fails_the_task(tmp_path: Path) -> None:
    failed = of_host(None, running=False, failed="exit-code")
    with pytest.raises(FleetError, match=r"gpu-burnin-run\.service failed \(exit-code\): the last line"):
        module.run(Script(tmp_path / "p", IDLE, failed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "changed", "why"),
    [
        (IDLE, True, "no burn-in has been"),
        (PASSED, False, "a pass of this boot"),
        (ASKS, False, "a burn-in is going on in"),
    ],
)
def test_a_check_run_starts_nothing(found: dict[str, Any], changed: bool, why: str, tmp_path: Path) -> None:
    host = Script(tmp_path / "p", found, check_mode=True)
    done = module.run(host)  # type: ignore[arg-type]
    assert (done["changed"], done["ran"], why in done["why"]) == (changed, False, True)
    assert host.commands == ["status"]


def test_a_check_run_on_a_host_without_the_program(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", check_mode=True, program="/none/gpu-burnin")
    assert module.run(host)["changed"]  # type: ignore[arg-type]


def test_a_wrong_duration_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="extended_for_new: 'soon' is not a duration"):
        module.run(Script(tmp_path / "p", extended_for_new="soon"))  # type: ignore[arg-type]


def test_a_grant_is_given_where_it_is_asked_for_alone(tmp_path: Path) -> None:
    host = Script(tmp_path / "p", ASKS)
    done = power_grant.run(host)  # type: ignore[arg-type]
    assert (done["changed"], done["waves"], host.commands) == (True, "over", ["status", "power-grant"])
    for found in (IDLE, PASSED, of_host(None, running=True), of_host(None, running=False, waves="waiting")):
        host = Script(tmp_path / "p", found)
        assert not power_grant.run(host)["changed"]  # type: ignore[arg-type]
        assert host.commands == ["status"]
    host = Script(tmp_path / "p", ASKS, check_mode=True)
    assert power_grant.run(host)["changed"]  # type: ignore[arg-type]
    assert host.commands == ["status"]


@pytest.mark.parametrize(
    ("allowed", "command"),
    [
        ("granted", "start --follow -- --waves never"),
        ("never", "start --follow -- --waves never"),
        ("always", "start --follow"),
    ],
)
def test_a_power_cut_does_not_make_a_row_of_machines_swing(allowed: str, command: str) -> None:
    """The run at boot is started by the one starter, and makes no power waves, unless they are allowed at any time."""
    template = (ROOT / "roles/gpu_burnin/templates/gpu-burnin-boot.service.j2").read_text()
    variables = {"gpu_burnin_power_waves": allowed, "__gpu_burnin_program": "gpu-burnin", "ansible_managed": "x"}
    lines = jinja2.Environment().from_string(template).render(variables).splitlines()
    assert f"ExecStart=gpu-burnin {command}" in lines
    assert "SuccessExitStatus=1 3" in lines


def test_durations_of_the_role_are_those_of_the_program() -> None:
    for text in ("90s", "30m", "2h", "1d"):
        assert burnin.duration_s(text) == parse_duration(text)
    assert burnin.duration_s("") == 0
    with pytest.raises(FleetError, match="extended_for_new: 'soon' is not a duration"):
        burnin.duration_s("soon")
