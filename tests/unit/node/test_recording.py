"""What a run leaves once it has its verdict: nothing that cannot be written takes the verdict away."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.api import evidence
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.engine.plan import make_plan
from gpu_burnin.judge.verdict import judge
from gpu_burnin.node import reports
from gpu_burnin.node.known_gpus import KNOWN_GPUS, read_known
from gpu_burnin.node.recording import Finished, Recorded, record
from gpu_burnin.node.store import Store
from gpu_burnin.report import build
from gpu_burnin.report.series import RunSeries
from gpu_burnin.settings.config import Config
from gpu_burnin.system import files
from gpu_burnin.system.host import Host
from gpu_burnin.types import Action, Verdict
from tests.support.report_helpers import BOOT, MACHINE, NOW
from tests.support.run_helpers import GPUS, RUN, healthy

NO_SERIES = RunSeries(started_monotonic_s=0.0)
HOST = Host(MACHINE, BOOT, "gpu-1", "6.1")


def finished(config: Config, verdict: Verdict = Verdict.PASS, level: str = "quick", *, signed: bool = True) -> Finished:
    """A run that has begun and come to `verdict`."""
    store = Store(config.state_dir)
    with store.locked():
        run = store.new_run(NOW)
        store.begin(run)
    seen = healthy(make_plan(level, backend="cuda", gpus=GPUS, seed=1))
    report = build.build(replace(RUN, run_id=run.run_id, sequence=run.sequence), seen, judge(seen))
    return Finished(run, seen.plan, HOST, replace(report, verdict=verdict), NO_SERIES, planted=False, signed=signed)


def recorded(config: Config, done: Finished) -> Recorded:
    found = record(done, Store(config.state_dir), config)
    assert all("\n" not in problem for problem in found.problems)
    return found


@pytest.mark.parametrize(
    ("level", "verdict", "known"),
    [("extended", Verdict.PASS, True), ("extended", Verdict.FAIL, False), ("standard", Verdict.PASS, False)],
)
def test_gpus_go_on_record_after_an_extended_pass(level: str, verdict: Verdict, known: bool, config: Config) -> None:
    done = finished(config, verdict, level, signed=False)
    assert recorded(config, done) == Recorded(False, ())
    found = [(entry.uuid, entry.run_id, entry.passed_at) for entry in read_known(config.state_dir)]
    assert found == ([(gpu.uuid, done.run.run_id, RUN.finished_at) for gpu in GPUS] if known else [])


def test_the_pass_of_the_deepest_level_outlives_any_number_of_tests_of_the_idle_node(
    config: Config, statement: evidence.Statement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else site.yml would test a node at work again, at the level that it has passed long since."""
    monkeypatch.setattr(Store.finish, "__defaults__", (2, None))
    quick = finished(config)
    shutil.rmtree(quick.run.path)
    passed = replace(
        statement, boot_id=BOOT, hardware_sha256=quick.report.hardware_sha256, simulated=quick.report.simulated
    )
    left = []
    for level in ("standard", "standard", "quick", "quick"):
        left.append(Store(config.state_dir).new_run(NOW))
        (left[-1].path / EVIDENCE).write_bytes(replace(passed, level=level, sequence=left[-1].sequence).canonical())
    newest = finished(config)
    assert recorded(config, newest) == Recorded(False, ())
    assert Store(config.state_dir).runs() == [left[1], left[-1], newest.run]


def test_what_is_beside_the_evidence_costs_a_pass_nothing(config: Config) -> None:
    """Whoever is root may write everywhere: directories stand where the files would go."""
    for name in (KNOWN_GPUS, "latest", "metrics"):
        (config.state_dir / name / "x").mkdir(parents=True)
    (config.state_dir / "revoked").mkdir()
    config = replace(config, metrics_file=config.state_dir / "metrics")
    done = replace(finished(config, level="extended"), revoked=Store(config.state_dir).revoked())
    found = recorded(config, done)
    assert not found.lost
    assert evidence.parse_statement((done.run.path / EVIDENCE).read_bytes()).verdict is Verdict.PASS
    said = "\n".join(found.problems)
    assert len(found.problems) == 4
    for what in (KNOWN_GPUS, "latest cannot be set", "metrics_file", "the gate stays closed, since"):
        assert what in said


@pytest.mark.parametrize("name", ["report.json", "evidence.json.sig", "evidence.json"])
@pytest.mark.parametrize("directory", [False, True])
def test_without_evidence_a_pass_does_not_count_and_a_fail_stands(
    name: str, directory: bool, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EIO when one file is brought to the disk, or its new name is: then it is there, and may be gone after a crash."""
    renamed: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def failing_fsync(fd: int) -> None:
        opened = Path(f"/proc/self/fd/{fd}").readlink()
        if (opened.is_dir() and renamed[-1:] == [name]) if directory else opened.name.startswith(f".{name}."):
            raise OSError(errno.EIO, "Input/output error")
        fsync(fd)

    def noted_rename(self: Path, target: Path) -> Path:
        renamed.append(target.name)
        return rename(self, target)

    monkeypatch.setattr(files.os, "fsync", failing_fsync)
    monkeypatch.setattr(Path, "replace", noted_rename)
    config = replace(config, metrics_file=config.state_dir / "metrics.prom")
    passed = finished(config)
    found = recorded(config, passed)
    assert found.lost
    assert "this PASS does not count and the gate stays closed" in found.problems[-1]
    assert "Input/output error" in " ".join(found.problems)
    assert not (passed.run.path / EVIDENCE).exists()
    assert not (config.state_dir / "metrics.prom").exists()
    renamed.clear()
    failed = finished(config, Verdict.FAIL)
    found = recorded(config, failed)
    assert found.lost
    assert "the FAIL stands and the gate stays closed" in " ".join(found.problems)
    assert (config.state_dir / "metrics.prom").exists(), "alerts hear of a FAIL"


def test_evidence_that_cannot_be_signed_is_said(config: Config, tmp_path: Path) -> None:
    config = replace(config, host_key=tmp_path / "gone")
    done = finished(config, Verdict.FAIL)
    found = recorded(config, done)
    assert found.lost
    assert "cannot sign with the host key" in found.problems[0]
    assert reports.load(Store(config.state_dir).latest).verdict is Verdict.FAIL, "the report is there all the same"


def test_a_broken_journal_is_said_beside_the_verdict(config: Config) -> None:
    done = replace(finished(config), unjournaled=OSError(errno.ENOSPC, "No space left on device"))
    found = recorded(config, done)
    assert not found.lost
    assert "journal.jsonl (No space left on device)" in found.problems[0]


def test_planted_faults_leave_metrics_alone(config: Config) -> None:
    config = replace(config, metrics_file=config.state_dir / "metrics.prom")
    done = replace(finished(config, Verdict.FAIL, signed=False), planted=True)
    assert recorded(config, done) == Recorded(False, ())
    assert not (config.state_dir / "metrics.prom").exists()


@pytest.mark.parametrize(("verdict", "signed"), [(Verdict.FAIL, "power_cycle"), (Verdict.PASS, "")])
def test_the_evidence_of_a_fail_says_what_its_report_asks_for(config: Config, verdict: Verdict, signed: str) -> None:
    done = finished(config, verdict)
    done = replace(done, report=replace(done.report, action=Action.POWER_CYCLE))
    recorded(config, done)
    assert evidence.parse_statement((done.run.path / EVIDENCE).read_bytes()).action == signed
