"""When the burnin module runs a burn-in, and what it believes of the newest evidence."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
import pytest
from ansible_collections.muster.fleet.plugins.module_utils import burnin

from gpu_burnin.settings.durations import parse_duration

ROOT = Path(__file__).resolve().parents[3]
BOOT = "11111111-2222-3333-4444-555555555555"
OTHER_BOOT = "99999999-2222-3333-4444-555555555555"


def put_run(state: Path, sequence: int, **changes: Any) -> Path:
    """One finished run as gpu_burnin leaves it; `changes` go into the statement."""
    run = state / "runs" / f"20260801T120000Z-{sequence:06d}"
    run.mkdir(parents=True)
    report = {"action": "repair", "reasons": [{"code": "XID_FATAL", "message": "XID 79", "check": "kernel_log"}]}
    body = json.dumps(report).encode()
    (run / "report.json").write_bytes(body)
    statement = {
        "report_sha256": hashlib.sha256(body).hexdigest(),
        "boot_id": BOOT,
        "verdict": "FAIL",
        "level": "quick",
        "simulated": True,
        "finished_at": "2026-08-01T12:00:30Z",
        **changes,
    }
    (run / "evidence.json").write_text(json.dumps(statement))
    return run


def evidence(**changes: Any) -> burnin.Evidence:
    """A PASS of this boot."""
    base = burnin.Evidence("r", "/r", 1, BOOT, "PASS", "standard", False, "2026-08-01T12:00:30Z", "none", ())
    return replace(base, **changes)


def decide(found: burnin.Evidence | None, **changes: Any) -> burnin.Decision:
    """The decision on a host with an open gate."""
    given = {"boot_id": BOOT, "level": "standard", "retest": False, "gate_open": True, "revoked": False, **changes}
    return burnin.decide(found, **given)


def test_newest_is_the_highest_sequence_with_evidence(tmp_path: Path) -> None:
    put_run(tmp_path, 9)
    newest = put_run(tmp_path, 10)
    (tmp_path / "runs" / "20260801T120000Z-000011").mkdir()
    (tmp_path / "runs" / "notes").mkdir()
    found = burnin.newest_evidence(tmp_path)
    assert found is not None
    assert (found.path, found.sequence, found.verdict) == (str(newest), 10, "FAIL")
    assert found.reasons[0]["code"] == "XID_FATAL"
    assert found.action == "repair"


def test_no_state_no_evidence(tmp_path: Path) -> None:
    assert burnin.newest_evidence(tmp_path) is None


def test_changed_report_is_not_believed(tmp_path: Path) -> None:
    run = put_run(tmp_path, 1, verdict="PASS")
    (run / "report.json").write_text('{"action": "none", "reasons": []}')
    found = burnin.newest_evidence(tmp_path)
    assert found is not None
    assert "is not the report that was signed" in found.problem
    assert decide(found).run


@pytest.mark.parametrize("name", ["evidence.json", "report.json"])
def test_damaged_files_are_a_problem_not_a_crash(tmp_path: Path, name: str) -> None:
    run = put_run(tmp_path, 1)
    if name == "evidence.json":
        (run / name).write_text("{")
    else:
        (run / name).unlink()
    found = burnin.newest_evidence(tmp_path)
    assert found is not None
    assert name.split(".")[0] in found.problem or "cannot be read" in found.problem


@pytest.mark.parametrize(
    ("found", "changes", "run", "why"),
    [
        (None, {}, True, "no burn-in has been completed"),
        (evidence(), {}, False, "a pass of this boot exists"),
        (evidence(), {"retest": True}, True, "a retest was asked for"),
        (evidence(boot_id=OTHER_BOOT), {}, True, "started again"),
        (evidence(level="quick"), {}, True, "this boot passed at quick; standard is required"),
        (evidence(level="extended"), {}, False, "a pass of this boot exists"),
        (evidence(), {"gate_open": False}, True, "does not accept"),
        (evidence(), {"gate_open": False, "revoked": True}, False, "closed by hand or by the cluster"),
        (evidence(verdict="FAIL"), {"gate_open": False}, False, "the FAIL of this boot stands"),
        (evidence(verdict="INCONCLUSIVE"), {"gate_open": False}, False, "the INCONCLUSIVE of this boot stands"),
        (evidence(verdict="FAIL"), {"gate_open": False, "retest": True}, True, "a retest was asked for"),
        (evidence(verdict="FAIL", boot_id=OTHER_BOOT), {"gate_open": False}, True, "started again"),
        # A FAIL is not tested again for the sake of a higher level.
        (evidence(verdict="FAIL", level="quick"), {"gate_open": False}, False, "the FAIL of this boot stands"),
    ],
)
def test_decisions(found: burnin.Evidence | None, changes: dict[str, Any], run: bool, why: str) -> None:
    decision = decide(found, **changes)
    assert decision.run is run
    assert why in decision.why


def test_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="thorough"):
        decide(evidence(level="thorough"))


def test_busy_units() -> None:
    assert burnin.is_busy(burnin.parse_show("ActiveState=activating\nResult=success\nExecMainStatus=0\n"))
    assert burnin.is_busy({"ActiveState": "deactivating"})
    assert not burnin.is_busy({"ActiveState": "failed"})
    assert not burnin.is_busy(burnin.parse_show("ActiveState=inactive\n"))


def test_run_survives_the_controller_and_verdicts_are_no_failures() -> None:
    command = burnin.run_command("/usr/local/bin/gpu-burnin", "quick", 60, "u.service", "p.service")
    assert command[0] == "systemd-run"
    assert "--no-block" not in command, "a start that is only queued looks like a run that has ended"
    assert "--service-type=exec" in command
    assert "--property=SuccessExitStatus=1 3" in command
    assert "--property=KillMode=mixed" in command, "workers that systemd kills look like workers that died"
    assert "--property=OOMPolicy=continue" in command, "systemd would end the run with the worker that the kernel took"
    assert command[-4:] == ["/usr/local/bin/gpu-burnin", "run", "--level", "quick"]


def test_only_extended_has_a_length() -> None:
    command = burnin.run_command("gpu-burnin", "extended", 7200, "u.service", "p.service")
    assert command[-4:] == ["--level", "extended", "--for", "7200s"]


def test_the_level_and_the_wait_are_left_to_the_host_where_nothing_is_said() -> None:
    command = burnin.run_command("gpu-burnin", None, 7200, "u.service", "p.service")
    assert command[-2:] == ["gpu-burnin", "run"]
    assert burnin.wave_options("", None) == []
    leave = burnin.wave_options("granted", 900)
    command = burnin.run_command("gpu-burnin", "quick", 7200, "u.service", "p.service", leave)
    assert command[-6:] == ["--level", "quick", "--waves", "granted", "--wave-wait", "900s"]


def test_warnings_of_the_report_are_returned(tmp_path: Path) -> None:
    put_run(tmp_path, 1)
    found = burnin.newest_evidence(tmp_path)
    assert found is not None
    assert burnin.summary(found, gate_open=True, gate_message="")["burnin_warnings"] == [], "0.1.0 had none"
    warned = replace(found, warnings=({"code": "EXTENDED_WANTED"},))
    assert burnin.summary(warned, gate_open=True, gate_message="")["burnin_warnings"] == [{"code": "EXTENDED_WANTED"}]


def test_summary_names_the_report() -> None:
    result = burnin.summary(evidence(path="/var/lib/x"), gate_open=False, gate_message="closed")
    assert result["report"] == "/var/lib/x/report.json"
    assert (result["gate_open"], result["gate_message"]) == (False, "closed")


def test_summary_names_the_page_of_a_run_that_left_one(tmp_path: Path) -> None:
    """Version 0.1.0 left none; what is not there cannot be brought to the controller."""
    found = evidence(path=str(tmp_path))
    assert "page" not in burnin.summary(found, gate_open=True, gate_message="")
    (tmp_path / "report.html").touch()
    assert burnin.summary(found, gate_open=True, gate_message="")["page"] == f"{tmp_path}/report.html"


def test_the_boot_unit_stops_the_run_alone() -> None:
    lines = (ROOT / "roles/gpu_burnin/templates/gpu-burnin-boot.service.j2").read_text().splitlines()
    run = next(line for line in lines if line.startswith("ExecStart="))
    assert run.startswith("ExecStart={{ __gpu_burnin_program }} run")
    assert "KillMode=mixed" in lines, "workers that systemd kills look like workers that died"
    assert "OOMPolicy=continue" in lines


@pytest.mark.parametrize(
    ("allowed", "command"), [("granted", "run --waves never"), ("never", "run --waves never"), ("always", "run")]
)
def test_a_power_cut_does_not_make_a_row_of_machines_swing(allowed: str, command: str) -> None:
    """The run at boot makes no power waves, unless they are allowed at any time."""
    template = (ROOT / "roles/gpu_burnin/templates/gpu-burnin-boot.service.j2").read_text()
    variables = {"gpu_burnin_power_waves": allowed, "__gpu_burnin_program": "gpu-burnin", "ansible_managed": "x"}
    lines = jinja2.Environment().from_string(template).render(variables).splitlines()
    assert f"ExecStart=gpu-burnin {command}" in lines


def test_durations_of_the_role_are_those_of_the_program() -> None:
    for text in ("90s", "30m", "2h", "1d"):
        assert burnin.duration_s(text) == parse_duration(text)
    assert burnin.duration_s("") == 0
    with pytest.raises(ValueError, match="'soon' is not a duration"):
        burnin.duration_s("soon")
