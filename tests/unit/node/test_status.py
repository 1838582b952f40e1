"""What `gpu-burnin status` knows of a node: newest run, evidence, gate, power waves, known GPUs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.checks.power import grant_request as power_grant
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import status, unit
from gpu_burnin.node.known_gpus import KNOWN_GPUS, remember
from gpu_burnin.node.maintenance import reader
from gpu_burnin.node.status import read_status, render
from gpu_burnin.node.store import POWER_GRANT_DIR, RunDirectory, Store
from gpu_burnin.report import model
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.settings.config import Config
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import Action, Gpu, Notice, Reason, Verdict
from tests.support.made_reports import make_report
from tests.support.report_helpers import HARDWARE, NOW, leave_run, make_key

REASON = Reason("XID_FATAL", "kernel_log", "XID 79", action=Action.REPAIR)
WARNING = Notice("EXTENDED_WANTED", "plan", "run an extended burn-in")


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """No systemd is asked."""
    monkeypatch.setattr(unit, "state", lambda: unit.UnitState(False))
    monkeypatch.setattr(unit, "last_lines", lambda: "it wrote nothing")


def put_run(config: Config, statement: Statement, **report: Any) -> RunDirectory:
    """A finished run with its report, as gpu_burnin leaves it."""
    told = {"verdict": statement.verdict, "level": statement.level, "action": Action.REPAIR, "reasons": (REASON,)}
    document = model.document(make_report(**told, **report))
    if "warnings" not in report:
        del document["warnings"]  # as in the first version
    body = json.dumps(document).encode()
    run = leave_run(config, replace(statement, report_sha256=hashlib.sha256(body).hexdigest()))
    (run.path / REPORT).write_bytes(body)
    return run


def test_a_node_without_a_run(config: Config, root: Path) -> None:
    found = read_status(config, root)
    assert (found.newest_run, found.evidence, found.problems, found.revoked) == (None, None, (), None)
    assert (found.gate.open, found.gate.exit_code) == (False, 1)
    assert found.power_grant.state == "none"
    assert "no burn-in has been completed here" in render(found)


def test_a_run_that_tested_nothing_is_told(config: Config, root: Path) -> None:
    found = read_status(config, root)
    ended = replace(found, unit=status.Unit("gpu-burnin-run.service", running=False, last_lines="no GPU can be tested"))
    assert "gpu-burnin-run.service left no evidence of this boot: no GPU can be tested" in " ".join(
        render(ended, 200).split()
    )
    assert "left no evidence" not in render(found, 200)


def test_the_newest_evidence_with_what_its_report_says(config: Config, statement: Statement, root: Path) -> None:
    put_run(config, statement)
    newest = put_run(config, replace(statement, verdict=Verdict.FAIL), warnings=(WARNING,))
    (config.state_dir / "runs" / "notes").mkdir()
    with Store(config.state_dir).locked():
        begun = Store(config.state_dir).new_run(NOW)
        Store(config.state_dir).begin(begun)
    found = read_status(config, root)
    assert found.newest_run == status.Run(3, str(begun.path))
    evidence = found.evidence
    assert evidence is not None
    assert (evidence.path, evidence.sequence, evidence.verdict) == (str(newest.path), 2, "FAIL")
    assert (evidence.this_boot, evidence.problem, evidence.action) == (True, "", "repair")
    assert evidence.reasons == (REASON,)
    assert evidence.warnings == (WARNING,)
    assert json.loads(evidence.annotation)["statement"] == (newest.path / EVIDENCE).read_text()
    assert (found.gate.open, found.gate.exit_code) == (False, 3), "the run that has begun speaks for the node"
    text = render(found, width=120)
    assert "FAIL of run 2 at level quick, of this boot" in text
    assert "XID_FATAL: XID 79" in text
    sentence = "Power the machine off and have the hardware checked or replaced"
    assert f"order:       {sentence}, then `gpu-burnin run`\n" in text
    document = json.loads(json.dumps(to_json(found)))
    assert document["evidence"]["order"] == {
        "action": "repair", "sentence": sentence, "command": "gpu-burnin run", "covered": [],
    }  # fmt: skip
    assert document["evidence"]["reasons"] == [to_json(REASON)]
    assert document["schema"] == "muster-node-status/v1"


@pytest.mark.parametrize(
    ("runs", "passed"),
    [
        ((("PASS", "standard"), ("PASS", "quick"), ("PASS", "quick")), "standard"),
        ((("PASS", "standard"), ("FAIL", "quick"), ("PASS", "quick")), "quick"),
        ((("PASS", "extended"), ("INCONCLUSIVE", "quick")), ""),
    ],
)
def test_the_level_of_the_passes_that_stand_is_told(
    config: Config, statement: Statement, root: Path, runs: tuple[tuple[str, str], ...], passed: str
) -> None:
    put_run(config, replace(statement, level="extended", boot_id="99999999-2222-3333-4444-555555555555"))
    for verdict, level in runs:
        put_run(config, replace(statement, verdict=Verdict(verdict), level=level))
    evidence = read_status(config, root).evidence
    assert evidence is not None and (evidence.passed_level, evidence.level) == (passed, runs[-1][1])


def test_a_pass_of_other_hardware_or_of_simulated_one_does_not_stand(
    config: Config, statement: Statement, root: Path
) -> None:
    leave_run(config, replace(statement, level="standard"), {**HARDWARE, "driver": "999.1"})
    put_run(config, statement)
    evidence = read_status(config, root).evidence
    assert evidence is not None and evidence.passed_level == "quick"
    leave_run(config, replace(statement, level="standard", simulated=True))
    put_run(config, statement)
    evidence = read_status(config, root).evidence
    assert evidence is not None and evidence.passed_level == "quick"


def test_a_report_of_the_first_version_has_no_warnings_and_no_page(
    config: Config, statement: Statement, root: Path
) -> None:
    run = put_run(config, statement)
    found = read_status(config, root)
    assert found.evidence is not None
    assert (found.evidence.warnings, found.evidence.page) == ((), "")
    assert found.evidence.report == f"{run.path}/report.json"
    assert found.gate.open
    assert "gate:        open" in render(found)
    (run.path / "report.html").touch()
    found = read_status(config, root)
    assert found.evidence is not None
    assert found.evidence.page == f"{run.path}/report.html"


def test_evidence_of_another_boot_is_told_as_such(config: Config, statement: Statement, root: Path) -> None:
    put_run(config, replace(statement, boot_id="99999999-2222-3333-4444-555555555555"))
    found = read_status(config, root)
    assert found.evidence is not None
    assert not found.evidence.this_boot
    assert "of another boot" in render(found)


def damage(run: RunDirectory, how: str, config: Config) -> Config:
    match how:
        case "changed report":
            (run.path / REPORT).write_text('{"action": "none", "reasons": []}')
        case "no report":
            (run.path / REPORT).unlink()
        case "huge report":
            with (run.path / REPORT).open("wb") as file:
                file.truncate(1 << 40)
        case "no evidence":
            (run.path / EVIDENCE).write_text("{")
        case "another key":
            return replace(config, host_key=make_key(config.state_dir / "other"))
    return config


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("changed report", "is not the report that was signed"),
        ("no report", "there is no report"),
        ("huge report", "it is larger than"),
        ("no evidence", "is not signed by this host's key"),
        ("another key", "is not signed by this host's key"),
    ],
)
def test_what_cannot_be_believed_is_a_problem_not_a_crash(
    how: str, says: str, config: Config, statement: Statement, root: Path
) -> None:
    run = put_run(config, statement)
    found = read_status(damage(run, how, config), root)
    assert found.evidence is not None
    assert says in found.evidence.problem
    assert (found.evidence.verdict, found.evidence.reasons, found.evidence.sequence) == ("", (), 1)
    assert says in render(found)
    ended = render(replace(found, unit=status.Unit("u.service", running=False, last_lines="killed")), 200)
    assert "left no evidence" not in ended and "u.service said last: killed" in ended


def test_a_report_that_was_signed_and_says_nothing_is_a_problem(
    config: Config, statement: Statement, root: Path
) -> None:
    run = leave_run(config, replace(statement, report_sha256=hashlib.sha256(b"{}").hexdigest()))
    (run.path / REPORT).write_bytes(b"{}")
    found = read_status(config, root)
    assert found.evidence is not None
    assert "this is not a burn-in report (no schema muster-report/vN.N in it)" in found.evidence.problem


def test_a_pass_that_a_test_follows_is_told_apart_from_none(config: Config, statement: Statement, root: Path) -> None:
    leave_run(config, statement)
    store = Store(config.state_dir)
    with store.locked():
        store.begin(store.new_run(NOW))
        gate = read_status(config, root).gate
        assert (gate.open, gate.exit_code, gate.under_test) == (False, 3, True)
    assert not read_status(config, root).gate.under_test


def test_power_waves_and_known_gpus_are_told(config: Config, root: Path) -> None:
    config.state_dir.mkdir()
    power_grant.ask(config.state_dir / POWER_GRANT_DIR, 60.0, 23.7)
    gpu = Gpu(0, "GPU-1", "165", "0000:01:00.0", "H100", "h100_sxm", 1 << 30, "96")
    remember(config.state_dir, [gpu], run_id="r", passed_at="2026-01-02T03:04:05Z", simulated=False)
    found = read_status(config, root)
    assert [known.serial for known in found.known_gpus] == ["165"]
    assert "a burn-in waits for a grant of 24 s; give it with: gpu-burnin power-grant" in render(found, width=100)
    assert to_json(found)["power_grant"]["state"] == "waiting"


@pytest.mark.parametrize(
    ("state", "says"),
    [("running", "under way, 24 s in all"), ("over", "over"), ("given_up", "waited 60 s for a grant and went on")],
)
def test_what_became_of_the_waves_is_told(state: str, says: str, config: Config, root: Path) -> None:
    directory = config.state_dir / POWER_GRANT_DIR
    power_grant.move(directory, power_grant.ask(directory, 60.0, 23.7), power_grant.State(state))
    assert says in render(read_status(config, root))


def test_one_damaged_part_hides_no_other(config: Config, statement: Statement, root: Path) -> None:
    put_run(config, statement)
    (config.state_dir / KNOWN_GPUS).write_text("{")
    (config.state_dir / POWER_GRANT_DIR).mkdir()
    (config.state_dir / POWER_GRANT_DIR / power_grant.REQUEST).write_text("{")
    found = read_status(config, root)
    assert found.gate.open
    assert found.evidence is not None and found.evidence.verdict == "PASS"
    assert [name for name in (KNOWN_GPUS, power_grant.REQUEST) if any(name in text for text in found.problems)] == [
        KNOWN_GPUS,
        power_grant.REQUEST,
    ]


def test_a_host_key_that_cannot_be_read_is_the_gates_problem(
    config: Config, statement: Statement, root: Path, tmp_path: Path
) -> None:
    put_run(config, statement)
    found = read_status(replace(config, host_key=tmp_path / "none"), root)
    assert found.gate.exit_code == 2
    assert "gpu-burnin gate does not work" in found.gate.message


def test_a_unit_that_failed_says_why(config: Config, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit, "state", lambda: unit.UnitState(False, "exit-code", "id"))
    monkeypatch.setattr(unit, "last_lines", lambda: "gpu-burnin: correct the configuration")
    text = render(read_status(config, root), width=100)
    assert "gpu-burnin-run.service failed (exit-code): gpu-burnin: correct the configuration" in text


def test_a_state_that_may_not_be_read_is_one_error(config: Config, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.state_dir.mkdir()
    monkeypatch.setattr(status.os, "access", lambda path, mode: False)
    with pytest.raises(GpuBurninError, match="cannot be read; run as root"):
        read_status(config, root)


def test_maintenance_that_is_announced_and_that_nobody_knows_of(
    config: Config, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "KEPT", tmp_path / "kept.json")
    assert read_status(config, root).maintenance == status.Upkeep()
    assert "maintenance" not in render(read_status(config, root))
    cloudy = replace(config, maintenance_provider="aws")
    found = read_status(cloudy, root)
    assert found.maintenance.unknown and not found.maintenance.near
    assert "maintenance: aws: its notices are not read; is" in render(found)
    reader.keep(Maintenance("aws", "none"), tmp_path / "kept.json")
    assert "maintenance: none is announced" in render(read_status(cloudy, root))
    reader.keep(Maintenance("aws", "scheduled", "2999-01-01T00:00:00Z"), tmp_path / "kept.json")
    assert "maintenance: announced from 2999-01-01T00:00:00Z" in render(read_status(cloudy, root))
    found = read_status(replace(cloudy, maintenance_before_s=1e11), root)
    assert found.maintenance.near in render(found, width=100)
    assert to_json(found)["maintenance"]["near"] == "aws: maintenance is announced from 2999-01-01T00:00:00Z"
