"""The local gate opens for a pass of this boot only, and quickly."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.run_files import BEGUN, EVIDENCE
from gpu_burnin.cli.main import cli
from gpu_burnin.node.gate import GateClosed, check_gate
from gpu_burnin.node.store import Store
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.types import Verdict
from tests.support.report_helpers import NOW, leave_run, make_key


def closed(config: Config, root: Path) -> GateClosed:
    with pytest.raises(GateClosed) as caught:
        check_gate(config, root, NOW)
    assert "\n" not in str(caught.value)
    assert "gpu-1" in str(caught.value)
    return caught.value


def test_pass_of_this_boot_opens(config: Config, statement: Statement, root: Path) -> None:
    run = leave_run(config, statement)
    assert check_gate(config, root, NOW).sequence == run.sequence


def test_no_run_is_closed(config: Config, root: Path) -> None:
    assert closed(config, root).exit_code == 1


@pytest.mark.parametrize(
    ("change", "code", "exit_code"),
    [
        ({"verdict": Verdict.FAIL}, "EVIDENCE_VERDICT", 1),
        ({"verdict": Verdict.INCONCLUSIVE}, "EVIDENCE_VERDICT", 3),
        ({"boot_id": "99999999-2222-3333-4444-555555555555"}, "EVIDENCE_BOOT", 1),
        ({"machine_id": "f" * 32}, "EVIDENCE_NODE", 1),
        ({"node": "gpu-2"}, "EVIDENCE_NODE", 1),
        ({"simulated": True}, "EVIDENCE_SIMULATED", 3),
        ({"simulated": True, "verdict": Verdict.INCONCLUSIVE}, "EVIDENCE_SIMULATED", 3),
    ],
)
def test_anything_else_is_closed(
    change: dict[str, object], code: str, exit_code: int, config: Config, statement: Statement, root: Path
) -> None:
    leave_run(config, Statement(**{**asdict(statement), **change}))
    error = closed(config, root)
    assert code in str(error)
    assert error.exit_code == exit_code


def test_a_later_fail_closes_and_a_later_pass_opens(config: Config, statement: Statement, root: Path) -> None:
    leave_run(config, statement)
    leave_run(config, replace(statement, verdict=Verdict.FAIL))
    closed(config, root)
    leave_run(config, statement)
    check_gate(config, root, NOW)


def test_a_run_that_has_begun_closes_and_so_does_lost_evidence(
    config: Config, statement: Statement, root: Path
) -> None:
    good, store = leave_run(config, statement), Store(config.state_dir)
    with store.locked():
        planted = store.new_run(NOW)
        check_gate(config, root, NOW)
        store.begin(planted)
    error = closed(config, root)
    assert "run 2 has begun and left no evidence" in str(error)
    assert error.exit_code == 3
    newest = leave_run(config, statement)
    check_gate(config, root, NOW)
    (newest.path / EVIDENCE).unlink()
    assert good.path.exists()
    assert "run 3 has begun and left no evidence" in str(closed(config, root))


def test_what_ran_may_start_again_while_a_test_of_it_is_under_way(
    config: Config, statement: Statement, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(config.state_dir)

    def is_open() -> bool:
        with contextlib.suppress(GateClosed):
            check_gate(config, root, NOW, under_test=True)
            return True
        return False

    with store.locked():
        first = store.new_run(NOW)
        store.begin(first)
        assert not is_open(), "nothing has passed before it"
    good = leave_run(config, statement)
    with store.locked():
        run = store.new_run(NOW)
        store.begin(run)
        assert check_gate(config, root, NOW, under_test=True).sequence == good.sequence
        assert closed(config, root).exit_code == 3, "as for whoever asks whether it has passed"
        store.revoke("XID 79")
        assert not is_open()
        store.clear_revocation("XID 79")
        monkeypatch.setattr(host, "boot_id", lambda _: "99999999-2222-3333-4444-555555555555")
        with pytest.raises(GateClosed, match=f"run {run.sequence} has begun"):
            check_gate(config, root, NOW, under_test=True)
        monkeypatch.undo()
        (run.path / BEGUN).write_text(f"1 {good.sequence}\n")
        assert not is_open(), "the lock is of another process: the run was killed, and the agent signs a revocation"
    assert not is_open(), "it was killed"
    leave_run(config, replace(statement, verdict=Verdict.FAIL))
    with store.locked():
        store.begin(store.new_run(NOW))
        assert not is_open(), "a FAIL came before"


@pytest.mark.parametrize("kind", ["fifo", "endless", "directory", "large", "deep", "digits"])
def test_evidence_that_is_no_small_file_closes_at_once(
    kind: str, config: Config, statement: Statement, root: Path
) -> None:
    path = leave_run(config, statement).path / EVIDENCE
    path.unlink()
    make: dict[str, Callable[[], object]] = {
        "fifo": lambda: os.mkfifo(path),
        "endless": lambda: path.symlink_to("/dev/zero"),
        "directory": path.mkdir,
        "large": lambda: path.write_bytes(b" " * (1 << 21)),
        "deep": lambda: path.write_bytes(b"[" * 100_000),
        "digits": lambda: path.write_bytes(b'{"sequence":' + b"9" * 5000 + b"}"),
    }
    make[kind]()
    assert "EVIDENCE_" in str(closed(config, root))


def test_older_pass_copied_over_a_newer_fail_is_seen(config: Config, statement: Statement, root: Path) -> None:
    good, bad = leave_run(config, statement), leave_run(config, replace(statement, verdict=Verdict.FAIL))
    for name in (EVIDENCE, f"{EVIDENCE}.sig"):
        (bad.path / name).write_bytes((good.path / name).read_bytes())
    assert "EVIDENCE_REPLAYED" in str(closed(config, root))


def test_changed_statement_or_other_key_is_closed(
    config: Config, statement: Statement, root: Path, tmp_path: Path
) -> None:
    run = leave_run(config, replace(statement, verdict=Verdict.FAIL))
    path = run.path / EVIDENCE
    path.write_bytes(path.read_bytes().replace(b"FAIL", b"PASS"))
    assert "EVIDENCE_SIGNATURE" in str(closed(config, root))
    leave_run(replace(config, host_key=make_key(tmp_path / "other")), statement)
    assert "EVIDENCE_SIGNATURE" in str(closed(config, root))


def test_revoked_is_closed(config: Config, statement: Statement, root: Path) -> None:
    leave_run(config, statement)
    (config.state_dir / "revoked").write_text("XID 79 while running\n")
    assert "XID 79 while running" in str(closed(config, root))


def test_simulated_where_allowed_opens(config: Config, statement: Statement, root: Path) -> None:
    leave_run(config, replace(statement, simulated=True))
    check_gate(replace(config, allow_simulated=True), root, NOW)


def run_gate(config: Config, tmp_path: Path, *options: str) -> Result:
    """`gpu-burnin gate` on this machine."""
    path = tmp_path / "config.yaml"
    settings = {"node_name": "gpu-1", "host_key": str(config.host_key), "state_dir": str(config.state_dir)}
    path.write_text(yaml.safe_dump(settings))
    return CliRunner().invoke(cli, ["gate", "--config", str(path), *options])


def test_the_answer_as_json_has_the_statement_that_opens(config: Config, statement: Statement, tmp_path: Path) -> None:
    here = replace(statement, machine_id=host.machine_id(), boot_id=host.boot_id())
    leave_run(config, here)
    done = run_gate(config, tmp_path, "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["schema"], told["open"], told["exit_code"]) == (0, "muster-gate/v1", True, 0)
    assert (told["node"], told["why"], told["code"]) == ("gpu-1", None, None)
    assert told["statement"]["verdict"] == "PASS" and told["statement"]["boot_id"] == here.boot_id
    assert run_gate(config, tmp_path, "--json", "--quiet").exit_code == 2


def test_a_closed_gate_is_json_too_and_keeps_its_exit_code(
    config: Config, statement: Statement, tmp_path: Path
) -> None:
    done = run_gate(config, tmp_path, "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["open"], told["exit_code"], told["code"], told["statement"]) == (
        1,
        False,
        1,
        None,
        None,
    )
    assert told["why"] == "no burn-in has been completed here; run gpu-burnin run"
    here = replace(statement, machine_id=host.machine_id(), boot_id=host.boot_id())
    leave_run(config, replace(here, verdict=Verdict.INCONCLUSIVE))
    done = run_gate(config, tmp_path, "--json")
    told = json.loads(done.stdout)
    assert (done.exit_code, told["exit_code"], told["code"]) == (3, 3, "EVIDENCE_VERDICT")
    assert told["statement"]["verdict"] == "INCONCLUSIVE"
    assert told["why"].startswith("the verdict of run 1 is INCONCLUSIVE") and "gpu-burnin report" in told["why"]
    without = run_gate(config, tmp_path)
    assert isinstance(without.exception, GateClosed) and without.exception.exit_code == 3 and not without.stdout


def test_gate_loads_nothing_heavy() -> None:
    code = (
        "import sys, gpu_burnin.cli.main, gpu_burnin.cli.gate, gpu_burnin.node.gate\n"
        "heavy = {'numpy', 'rich', 'jinja2', 'jsonschema', 'pynvml', 'paramiko', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
