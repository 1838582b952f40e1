"""Whole runs through the command line: what they say of healthy and of faulty nodes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from gpu_burnin.api import evidence
from gpu_burnin.checks import CHECKS, SELFTESTED, USUAL_CHECKS
from gpu_burnin.node import reports, signing
from gpu_burnin.report import model
from gpu_burnin.system import host
from gpu_burnin.types import Verdict
from tests.support.clocks import PATIENCE_S
from tests.support.node_runs import BOOT_LINE, LAB, Node, codes, full


@pytest.mark.slow
def test_healthy_node_passes_opens_the_gate_and_clears_an_older_revocation(node: Node, public_line: str) -> None:
    node.store.root.mkdir()
    (node.store.root / "revoked").write_text("XID 79 yesterday\n")
    code, report, err = node.run()
    assert (code, report["verdict"], report["reasons"]) == (0, "PASS", [])
    assert "GPU 1: gemm PASS" in err
    assert report["simulated"] is True
    assert {(check["name"], check["gpu"] is None) for check in report["checks"]} == {
        (name, not CHECKS[name].scope.per_gpu) for name in USUAL_CHECKS
    }
    # Its GPUs are new here, which is said and holds nothing back.
    assert "EXTENDED_WANTED" in {warning["code"] for warning in report["warnings"]}
    run = node.store.runs()[0]
    names = {path.name for path in run.path.iterdir()}
    assert names == {
        "report.json", "report.txt", "report.html", "junit.xml", "metrics.prom", "series.json", "journal.jsonl",
        "evidence.json", "evidence.json.sig", "hardware.json", "begun",
    }  # fmt: skip
    assert model.document(reports.load(node.store.latest)) == report
    found = evidence.verify(
        signing.annotation_of(run.path),
        public_line,
        evidence.Expectation(
            node="gpu-1",
            machine_id=host.machine_id(),
            boot_id=host.boot_id(),
            hardware_sha256=report["hardware_sha256"],
            allow_simulated=True,
        ),
    )
    statement = found.statement
    assert [gpu[0] for gpu in found.hardware["gpus"]] == sorted(gpu["uuid"] for gpu in report["gpus"])  # type: ignore[index, union-attr]
    assert statement.sequence == report["sequence"] == 1
    assert statement.simulated is True
    assert node.store.revoked() is None
    assert node.call("gate")[0] == 0
    node.configure(allow_simulated=False)
    code, _, err = node.call("gate")
    assert code == 3
    assert "EVIDENCE_SIMULATED" in err
    code, shown, _ = node.call("report")
    assert code == 0
    assert shown == (run.path / "report.txt").read_text()


@pytest.mark.slow
def test_faulty_node_fails_with_its_reasons_and_closes_the_gate(node: Node) -> None:
    node.scenario = "sick-ecc-xid79"
    with node.kernel_log.open("a") as log:
        log.write((LAB / "scenarios" / "sick-ecc-xid79.kmsg").read_text())
    code, report, _ = node.run("--checks", "state")
    assert code == 1
    assert report["verdict"] == "FAIL"
    assert {"XID_FATAL", "ECC_UNCORRECTED"} <= codes(report)
    assert report["action"] == "power_cycle"
    assert [gpu["verdict"] for gpu in report["gpus"]][1] == "FAIL"
    code, _, err = node.call("gate")
    assert code == 1
    assert "the verdict of run 1 is FAIL" in err
    assert evidence.parse_statement((node.store.latest / "evidence.json").read_bytes()).verdict is Verdict.FAIL


@pytest.mark.slow
def test_less_than_the_configuration_asks_is_never_a_pass(node: Node) -> None:
    node.configure(level="standard")
    code, report, _ = node.run("--level", "quick", "--checks", "state", "--gpus", "1")
    assert code == 3
    assert codes(report) == {"COVERAGE_LOW"}
    said = " ".join(reason["message"] for reason in report["reasons"])
    assert "sm, gemm, hbm" in said
    assert "less than standard" in said
    assert "1 of 2 GPUs" in said


@pytest.mark.soak
def test_a_lower_level_passes_while_the_gate_is_open_and_never_opens_it(node: Node) -> None:
    """As tests of idle nodes do, with real runs; what makes it one is in tests/unit/node/test_run_options.py."""
    node.configure(checks=["state"], level="standard")
    assert node.run("--level", "quick")[0] == 3
    assert node.run()[0] == 0
    code, report, _ = node.run("--level", "quick")
    assert (code, report["level"], report["verdict"]) == (0, "quick", "PASS")
    assert node.call("gate")[0] == 0
    (node.store.root / "revoked").write_text("XID 79\n")
    assert node.run("--level", "quick")[0] == 3
    assert node.call("gate")[0] == 1


@pytest.mark.slow
def test_injected_fault_is_found_and_leaves_no_evidence(node: Node) -> None:
    node.configure(checks=["hbm"], host_key="/none")
    code, report, _ = node.run("--inject", "hbm:bitflip:gpu=1", "--gpus", "1")
    assert code == 1
    assert {"HBM_BIT_ERROR", "INJECTED"} <= codes(report)
    assert not (node.store.latest / "evidence.json").exists()
    assert node.store.counter() == 0, "and does not speak for the node"


@pytest.mark.slow
def test_gpus_with_one_uuid_are_said_once_and_the_others_are_tested(node: Node) -> None:
    node.own_scenario = "gpus = 3\ngpu1.uuid_of = 0\n"
    node.configure(checks=["state", "hbm"], expect={"gpus": 3})
    code, report, _ = node.run()
    assert (code, codes(report), report["action"]) == (3, {"GPU_UUID_SHARED"}, "hold")
    assert [gpu["verdict"] for gpu in report["gpus"]] == ["INCONCLUSIVE", "INCONCLUSIVE", "PASS"]
    assert {check["gpu"] for check in report["checks"] if check["name"] == "hbm"} == {report["gpus"][2]["uuid"]}
    code, report, _ = node.run("--checks", "hbm")
    assert {reason["message"] for reason in report["reasons"]} == {
        "checks were left out: state", "2 of 3 GPUs no longer answer or have the same UUID"
    }  # fmt: skip


@pytest.mark.slow
def test_a_machine_without_nvlink_passes_and_says_what_it_was_taken_for(node: Node) -> None:
    node.own_scenario = "gpus = 1\nnvlink_links = 0\nfabric_state = 0\n"
    node.configure(checks=["state", "nvlink"], expect={"gpus": 1})
    code, report, _ = node.run()
    assert (code, report["reasons"]) == (0, [])
    assert "NVLINK_ABSENT" in {warning["code"] for warning in report["warnings"]}
    said = "Expected as given: gpus 1. This machine has no NVLink: its one GPU has no active link"
    run = node.store.runs()[-1].path
    for name in ("report.txt", "report.html"):
        assert said in " ".join((run / name).read_text().split()), name
    # The operator's word settles it, and one that asks for links is not met.
    node.configure(checks=["state", "nvlink"], expect={"nvlink_links": 0})
    code, report, _ = node.run()
    assert (code, "NVLINK_ABSENT" in {warning["code"] for warning in report["warnings"]}) == (0, False)
    node.configure(checks=["state", "nvlink"])
    code, report, _ = node.run("--expect", "gpus=1", "--expect", "nvlink_links=18")
    assert code == 1 and codes(report) == {"NVLINK_DOWN", "FABRIC_NOT_READY", "COVERAGE_LOW"}
    assert "the run expects gpus 1, this host's configuration 2" in {one["message"] for one in report["reasons"]}


@pytest.mark.slow
def test_an_unsigned_pass_neither_opens_the_gate_nor_leaves_it_to_an_older_one(passed_node: Node) -> None:
    node = passed_node
    assert node.call("gate")[0] == 0
    (node.store.root / "revoked").write_text("XID 79 yesterday\n")
    node.configure(checks=["state"], require_evidence=False, host_key="/none")
    code, report, _ = node.run()
    assert (code, report["verdict"]) == (0, "PASS")
    assert node.store.revoked() == "XID 79 yesterday"
    (node.store.root / "revoked").unlink()
    node.configure(checks=["state"])
    code, _, said = node.call("gate")
    assert (code, "closed" in said) == (3, True)


@pytest.mark.slow
def test_a_clock_that_is_set_back_is_said_and_makes_no_time_negative(node: Node) -> None:
    node.configure(checks=["state"])
    program = """
import runpy, sys
from datetime import UTC, datetime, timedelta
import gpu_burnin.run
from gpu_burnin.system.clock import RunClock
hours = iter((0, -1))
gpu_burnin.run.RunClock = lambda: RunClock(lambda: datetime.now(UTC) + timedelta(hours=next(hours)))
sys.argv = ["gpu-burnin", "run", "--json", "--config", sys.argv[1]]
runpy.run_module("gpu_burnin", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(node.directory / "config.yaml")],
        env={**os.environ, **node.environment}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["started_at"] < report["finished_at"]
    (stepped,) = [warning for warning in report["warnings"] if warning["code"] == "CLOCK_STEPPED"]
    assert "was set back by 3600." in stepped["message"] or "was set back by 3599." in stepped["message"]


@pytest.mark.slow
def test_a_lost_gpu_and_a_wrong_count_are_no_pass_without_the_state_check(node: Node) -> None:
    node.own_scenario = "gpus = 2\ngpu1.lost = handle\n"
    node.configure(checks=["hbm"], expect={"gpus": 4})
    code, report, _ = node.run()
    assert (code, codes(report)) == (3, {"COVERAGE_LOW"})
    said = " ".join(reason["message"] for reason in report["reasons"])
    assert "1 of 2 GPUs no longer answer" in said
    assert "2 GPUs were found, 4 are expected" in said


@pytest.mark.slow
def test_a_kernel_log_that_is_cut_during_the_run_is_no_pass(node: Node) -> None:
    node.configure(checks=["hbm"])
    node.kernel_log.write_text(f"{BOOT_LINE}6,1,200,-;a message that is lost\n")
    process = node.start("run", "--json")
    assert process.stderr
    for line in process.stderr:
        if "started" in line:
            break
    node.kernel_log.write_text(BOOT_LINE)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, codes(json.loads(out))) == (3, {"XID_GAP"})


@pytest.mark.slow
def test_a_gpu_in_use_is_named_and_nothing_else_is_started(node: Node) -> None:
    node.own_scenario = "model = h100-sxm\ngpus = 2\ngpu1.processes = 4711:1073741824\n"
    for arguments in ((), ("--checks", "gemm", "--inject", "gemm:nan")):
        code, report, err = node.run(*arguments)
        assert code == 3
        assert report["verdict"] == "INCONCLUSIVE"
        busy = next(reason for reason in report["reasons"] if reason["code"] == "GPU_BUSY")
        assert "GPU 1" in busy["message"]
        assert "4711" in busy["message"]
        assert [check["name"] for check in report["checks"]] == ["state"]
        assert report["selftest"] == [test for test in report["selftest"] if test["check"] not in SELFTESTED]
        assert "gemm" not in err
        gap = {"check": "gemm", "gpu": None, "why": "a foreign process uses a GPU"}
        assert gap in report["coverage"]["not_run"]
        assert "because a foreign process uses a GPU" in " ".join(reason["message"] for reason in report["reasons"])
    code, out, err = node.call("selftest")
    assert (code, out) == (3, "")
    assert "GPU 1" in err
    assert "in use by process 4711" in err


@pytest.mark.slow
def test_metrics_are_written_for_node_exporter(node: Node) -> None:
    directory = node.directory / "textfiles"
    directory.mkdir()
    target = directory / "gpu_burnin.prom"
    node.configure(checks=["state"], metrics_file=str(target))
    assert node.run()[0] == 0
    assert target.read_bytes() == (node.store.latest / "metrics.prom").read_bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert list(directory.iterdir()) == [target]


@pytest.mark.slow
def test_a_run_with_injected_faults_leaves_metrics_and_gate_alone(node: Node) -> None:
    target = node.directory / "gpu_burnin.prom"
    node.configure(checks=["state", "hbm"], metrics_file=str(target))
    inject = ("--inject", "hbm:bitflip:gpu=0")
    node.configure(checks=["state"], metrics_file=str(target))
    assert node.run()[0] == 0
    before = target.read_bytes()
    node.configure(checks=["state", "hbm"], metrics_file=str(target))
    assert full(node, 5000, *inject)[:2] == (1, "FAIL")
    assert node.run(*inject)[0] == 1
    assert target.read_bytes() == before, "alerts must not see a fault that was planted"
    assert node.call("gate")[0] == 0
