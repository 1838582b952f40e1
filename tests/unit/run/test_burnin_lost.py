"""Whole runs that are stopped, killed, or cannot write: what becomes of verdict, report and gate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from gpu_burnin.api import evidence
from gpu_burnin.report import model
from gpu_burnin.types import Verdict
from tests.support.clocks import PATIENCE_S
from tests.support.node_runs import LAB, Node, codes, full, refused


@pytest.mark.slow
def test_interrupted_run_leaves_a_valid_report(node: Node) -> None:
    """By SIGTERM; Ctrl-C alone is the campaign's (test_command.py, "interrupted")."""
    node.configure(level="standard", checks=["gemm", "hbm"])  # long enough to be interrupted
    process = node.start("run", "--json")
    assert process.stderr is not None
    for line in process.stderr:
        if "gemm started" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    report = json.loads(out)
    model.validate(report)
    assert report["interrupted"] is True
    assert report["reasons"][0]["code"] == "INTERRUPTED"
    gaps = {(gap["check"], gap["gpu"] is None) for gap in report["coverage"]["not_run"]}
    assert {("gemm", False), ("hbm", False)} <= gaps
    evidence_of = evidence.parse_statement((node.store.latest / "evidence.json").read_bytes())
    assert evidence_of.verdict is Verdict.INCONCLUSIVE


@pytest.mark.slow
def test_an_impatient_ctrl_c_leaves_the_report_all_the_same(node: Node) -> None:
    node.configure(level="standard", checks=["gemm", "hbm"])
    process = node.start("run", "--json")
    assert process.stderr
    for line in process.stderr:
        if "gemm started" in line:
            break
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert json.loads(out)["interrupted"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stream", "scenario", "wanted"),
    [
        ("stdout", "sick-ecc-xid79", 1),
        ("stderr", "healthy-2gpu", 0),
        pytest.param("stdout", "healthy-2gpu", 0, marks=pytest.mark.soak),
        pytest.param("stderr", "sick-ecc-xid79", 1, marks=pytest.mark.soak),
    ],
)
def test_a_reader_that_goes_away_changes_neither_run_nor_exit_code(
    stream: str, scenario: str, wanted: int, node: Node
) -> None:
    node.configure(checks=["state"])
    node.scenario = scenario
    process = node.start("run", "--json")
    gone, kept = (process.stdout, process.stderr) if stream == "stdout" else (process.stderr, process.stdout)
    assert gone and kept
    gone.close()
    kept.read()
    assert process.wait(PATIENCE_S) == wanted
    assert [(run.path / "evidence.json").exists() for run in node.store.runs()] == [True]


@pytest.mark.slow
def test_closed_standard_streams_do_not_matter(node: Node) -> None:
    node.configure(checks=["state"])
    command = f"exec {sys.executable} -m gpu_burnin run --config {node.directory}/config.yaml <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], env={**os.environ, **node.environment}, check=False)
    assert done.returncode == 0
    assert (node.store.root / "lock").read_text().strip().isdecimal(), "no message has gone into a file of the run"


@pytest.mark.slow
def test_evidence_that_cannot_be_signed_leaves_the_verdict_and_closes_the_gate(node: Node) -> None:
    assert node.run("--checks", "state")[0] == 3
    key = node.directory / "key"
    shutil.copy(node.host_key, key)
    shutil.copy(node.host_key.with_suffix(".pub"), key.with_suffix(".pub"))
    node.configure(checks=["hbm"], host_key=str(key))
    node.scenario = "sick-ecc-xid79"
    with node.kernel_log.open("a") as log:
        log.write((LAB / "scenarios" / "sick-ecc-xid79.kmsg").read_text())
    process = node.start("run", "--json")
    assert process.stderr
    for line in process.stderr:
        if "started" in line:
            break
    key.unlink()
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, json.loads(out)["verdict"]) == (1, "FAIL"), err
    assert "cannot sign" in err.splitlines()[-1]
    assert "the FAIL stands and the gate stays closed" in err.splitlines()[-1]
    shutil.copy(node.host_key, key)
    assert node.call("gate")[0] == 3


@pytest.mark.slow
def test_full_disk_before_the_run(passed_node: Node) -> None:
    node = passed_node
    code, _, err = node.call("run", "--json", file_limit_bytes=0)
    assert code == 2
    assert node.call("gate")[0] == 0, "a run that cannot close the gate does not begin"
    assert "the run gave up: " in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("file_limit_bytes", [pytest.param(500, marks=pytest.mark.soak), 5000])
def test_full_disk_takes_no_verdict_away_and_leaves_the_gate_closed(file_limit_bytes: int, passed_node: Node) -> None:
    """500 bytes end the journal, 5000 the report; the campaign has both, of a verdict that opens no gate anyway."""
    node = passed_node
    assert node.call("gate")[0] == 0
    code, verdict, said = full(node, file_limit_bytes)
    assert (code, verdict) == (3, "PASS")
    assert "this PASS does not count and the gate stays closed" in said
    assert node.call("gate")[0] == 3
    assert node.run()[0] == 0, "the next run does not take it for a host that died"
    node.scenario = "sick-ecc-xid79"
    code, verdict, said = full(node, file_limit_bytes)
    assert (code, verdict) == (1, "FAIL")
    assert "the FAIL stands and the gate stays closed" in said
    code, _, err = node.call("gate")
    assert code == 3
    assert "run 4 has begun and left no evidence" in err


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_the_gate_closed(passed_node: Node) -> None:
    node = passed_node
    assert node.call("gate")[0] == 0
    node.configure()
    process = node.start("run", "--json")
    assert process.stderr
    for line in process.stderr:
        if "started" in line:
            break
    assert node.call("gate")[0] == 3, "from the first check on"
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    code, _, err = node.call("gate")
    assert code == 3
    assert "run 2 has begun and left no evidence" in err
    node.configure(checks=["state"])
    refused(node, "unknown checks", "--skip", "nvlinks", runs=2)
    assert node.run()[0] == 0
    refused(node, "unknown checks", "--skip", "nvlinks", runs=3)
    assert node.call("gate")[0] == 0, "what ends before a check begins closes nothing"


@pytest.mark.slow
def test_an_unwritable_place_of_metrics_changes_no_verdict(node: Node) -> None:
    (node.directory / "gpu_burnin.prom").mkdir()
    node.configure(checks=["state"], metrics_file=str(node.directory / "gpu_burnin.prom"))
    for scenario, wanted in (("healthy-2gpu", 0), ("sick-ecc-xid79", 1)):
        node.scenario = scenario
        code, report, err = node.run()
        assert (code, report["verdict"]) == (wanted, "FAIL" if wanted else "PASS")
        assert "metrics_file" in err.splitlines()[-1]
        assert node.call("gate")[0] == wanted


@pytest.mark.soak
@pytest.mark.slow
def test_a_run_after_damage_to_the_last_journal(passed_node: Node) -> None:
    node = passed_node
    run = node.store.runs()[-1]
    run.journal.write_bytes(b"\0" * 100 + run.journal.read_bytes())
    (run.path / "report.json").unlink()
    code, report, _ = node.run()
    assert (code, codes(report)) == (1, {"DIED_DURING_CHECK"})
    assert "the journal of run 1 is damaged" in report["reasons"][0]["message"]


@pytest.mark.slow
def test_a_truncated_journal_of_this_boot_is_no_death(passed_node: Node) -> None:
    node = passed_node
    journal = node.store.runs()[-1].journal
    journal.write_bytes(journal.read_bytes()[:-30])
    assert node.run()[0] == 0
