"""Whole runs through the command line, on the CPU backend and the lab's fake NVML."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from report_helpers import NOW

from gpu_burnin import evidence, host
from gpu_burnin.checks import CHECK_NAMES, ROWS, SELFTESTED, USUAL_CHECKS
from gpu_burnin.cli import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_reasons, load_skus, load_xids
from gpu_burnin.hardware.policy import load_policy
from gpu_burnin.journal import Journal
from gpu_burnin.report import model
from gpu_burnin.store import Store
from gpu_burnin.types import Verdict

LAB = Path(__file__).resolve().parents[2] / "lab"
BOOT_LINE = "6,0,100,-;Linux version 6.1\n"
SHAPES = {"gemm_m": 32, "gemm_n": 32, "gemm_k": 32, "hbm_bytes": 65536}


@dataclass
class Node:
    """A node of its own: configuration, state, kernel log, scenario."""

    directory: Path
    nvml: Path
    host_key: Path
    scenario: str = "healthy-2gpu"
    own_scenario: str = ""

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.kernel_log = self.directory / "kmsg"
        self.kernel_log.write_text(BOOT_LINE)
        self.configure()

    @property
    def store(self) -> Store:
        return Store(self.directory / "state")

    @property
    def environment(self) -> dict[str, str]:
        scenario = LAB / "scenarios" / f"{self.scenario}.scenario"
        if self.own_scenario:
            scenario = self.directory / "own.scenario"
            scenario.write_text(self.own_scenario)
        return {"LD_LIBRARY_PATH": str(self.nvml), "MUSTER_FAKE_NVML_SCENARIO": str(scenario)}

    def configure(self, **change: object) -> None:
        settings: dict[str, Any] = {
            "level": "quick",
            "backend": "cpu",
            "allow_simulated": True,
            "node_name": "gpu-1",
            "expect": {"gpus": 2},
            "shapes": SHAPES,
            "host_key": str(self.host_key),
            "require_evidence": True,
            "kernel_log": str(self.kernel_log),
            "state_dir": str(self.store.root),
            **change,
        }
        (self.directory / "config.yaml").write_text(yaml.safe_dump(settings))

    def start(self, *arguments: str, file_limit_bytes: int | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpu_burnin", *arguments, "--config", str(self.directory / "config.yaml")]
        if file_limit_bytes is not None:  # the kernel then refuses to let any file grow further, as a full disk does
            command = ["prlimit", f"--fsize={file_limit_bytes}", *command]
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.directory
        )

    def call(self, *arguments: str, file_limit_bytes: int | None = None) -> tuple[int, str, str]:
        process = self.start(*arguments, file_limit_bytes=file_limit_bytes)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def run(self, *arguments: str) -> tuple[int, Any, str]:
        """`run --json` with a fixed seed: exit code, report, standard error."""
        code, out, err = self.call("run", "--json", "--seed", "1", *arguments)
        return code, json.loads(out) if out else None, err


@pytest.fixture
def node(tmp_path: Path, fake_nvml: Path, host_key: Path) -> Node:
    return Node(tmp_path / "node", fake_nvml, host_key)


def codes(report: Any) -> set[str]:
    return {reason["code"] for reason in report["reasons"]}


def test_healthy_node_passes_opens_the_gate_and_clears_an_older_revocation(node: Node, public_line: str) -> None:
    node.store.root.mkdir()
    node.store.revoke("XID 79 yesterday")
    code, report, err = node.run()
    assert (code, report["verdict"], report["reasons"]) == (0, "PASS", [])
    assert "GPU 1: gemm PASS" in err
    assert report["simulated"] is True
    assert {(check["name"], check["gpu"] is None) for check in report["checks"]} == {
        (name, not ROWS[name].scope.per_gpu) for name in USUAL_CHECKS
    }
    # Its GPUs are new here, which is said and holds nothing back.
    assert "EXTENDED_WANTED" in {warning["code"] for warning in report["warnings"]}
    run = node.store.runs()[0]
    names = {path.name for path in run.path.iterdir()}
    assert names == {
        "report.json", "report.txt", "report.html", "junit.xml", "metrics.prom", "series.json", "journal.jsonl",
        "evidence.json", "evidence.json.sig",
    }  # fmt: skip
    assert model.load(node.store.latest) == report
    statement = evidence.verify(
        evidence.annotation_of(run.path),
        public_line,
        evidence.Expectation(
            node="gpu-1",
            machine_id=host.machine_id(),
            boot_id=host.boot_id(),
            hardware_sha256=report["hardware_sha256"],
            allow_simulated=True,
        ),
    )
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


def test_sick_node_fails_with_its_reasons_and_closes_the_gate(node: Node) -> None:
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


def test_less_than_the_configuration_asks_is_never_a_pass(node: Node) -> None:
    node.configure(level="standard")
    code, report, _ = node.run("--level", "quick", "--checks", "state", "--gpus", "1")
    assert code == 3
    assert codes(report) == {"COVERAGE_LOW"}
    said = " ".join(reason["message"] for reason in report["reasons"])
    assert "sm, gemm, hbm" in said
    assert "less than standard" in said
    assert "1 of 2 GPUs" in said


def test_simulated_hardware_does_not_pass_unless_allowed(node: Node) -> None:
    node.configure(allow_simulated=False, checks=["state"])
    code, report, _ = node.run()
    assert (code, codes(report)) == (3, {"SIMULATED"})


def test_injected_fault_is_found_and_leaves_no_evidence(node: Node) -> None:
    node.configure(checks=["hbm"], host_key="/none")
    code, report, _ = node.run("--inject", "hbm:bitflip:gpu=1", "--gpus", "1")
    assert code == 1
    assert {"HBM_BIT_ERROR", "INJECTED"} <= codes(report)
    assert not (node.store.latest / "evidence.json").exists()
    assert node.store.counter() == 0, "and does not speak for the node"


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
    said = "Expected as told: gpus 1. This machine has no NVLink: its one GPU has no active link"
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


def test_an_unsigned_pass_neither_opens_the_gate_nor_leaves_it_to_an_older_one(node: Node) -> None:
    node.configure(checks=["state"])
    assert node.run()[0] == 0
    assert node.call("gate")[0] == 0
    node.store.revoke("XID 79 yesterday")
    node.configure(checks=["state"], require_evidence=False, host_key="/none")
    code, report, _ = node.run()
    assert (code, report["verdict"]) == (0, "PASS")
    assert node.store.revoked() == "XID 79 yesterday"
    (node.store.root / "revoked").unlink()
    node.configure(checks=["state"])
    code, _, said = node.call("gate")
    assert (code, "closed" in said) == (3, True)


def test_a_clock_that_is_set_back_is_said_and_makes_no_time_negative(node: Node) -> None:
    node.configure(checks=["state"])
    program = """
import runpy, sys
from datetime import UTC, datetime, timedelta
import gpu_burnin.run
from gpu_burnin.clock import RunClock
hours = iter((0, -1))
gpu_burnin.run.RunClock = lambda: RunClock(lambda: datetime.now(UTC) + timedelta(hours=next(hours)))
sys.argv = ["gpu-burnin", "run", "--json", "--config", sys.argv[1]]
runpy.run_module("gpu_burnin", run_name="__main__")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(node.directory / "config.yaml")],
        env={**os.environ, **node.environment}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["started_at"] < report["finished_at"]
    (stepped,) = [warning for warning in report["warnings"] if warning["code"] == "CLOCK_STEPPED"]
    assert "was set back by 3600." in stepped["message"] or "was set back by 3599." in stepped["message"]


def test_lost_kernel_log_is_inconclusive(node: Node) -> None:
    node.configure(checks=["state"])
    node.kernel_log.unlink()
    code, report, _ = node.run()
    assert (code, codes(report)) == (3, {"XID_SOURCE_MISSING"})


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_a_valid_report(number: signal.Signals, node: Node) -> None:
    node.configure(level="standard")  # long enough to be interrupted
    process = node.start("run", "--json")
    assert process.stderr is not None
    for line in process.stderr:
        if "gemm started" in line:
            break
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
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
    node.configure(level="standard")
    process = node.start("run", "--json")
    assert process.stderr
    for line in process.stderr:
        if "gemm started" in line:
            break
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3
    assert json.loads(out)["interrupted"] is True


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_goes_away_changes_neither_run_nor_exit_code(stream: str, node: Node) -> None:
    node.configure(checks=["state"])
    for scenario, wanted in (("healthy-2gpu", 0), ("sick-ecc-xid79", 1)):
        node.scenario = scenario
        process = node.start("run", "--json")
        gone, kept = (process.stdout, process.stderr) if stream == "stdout" else (process.stderr, process.stdout)
        assert gone and kept
        gone.close()
        kept.read()
        assert process.wait(60) == wanted
    assert [(run.path / "evidence.json").exists() for run in node.store.runs()] == [True, True]


def test_closed_standard_streams_do_not_matter(node: Node) -> None:
    node.configure(checks=["state"])
    command = f"exec {sys.executable} -m gpu_burnin run --config {node.directory}/config.yaml <&- >&- 2>&-"
    done = subprocess.run(["sh", "-c", command], env={**os.environ, **node.environment}, check=False)
    assert done.returncode == 0
    assert (node.store.root / "lock").read_text().strip().isdecimal(), "no message has gone into a file of the run"


def test_a_lost_gpu_and_a_wrong_count_are_no_pass_without_the_state_check(node: Node) -> None:
    node.own_scenario = "gpus = 2\ngpu1.lost = handle\n"
    node.configure(checks=["hbm"], expect={"gpus": 4})
    code, report, _ = node.run()
    assert (code, codes(report)) == (3, {"COVERAGE_LOW"})
    said = " ".join(reason["message"] for reason in report["reasons"])
    assert "1 of 2 GPUs no longer answer" in said
    assert "2 GPUs were found, 4 are expected" in said


def test_a_kernel_log_that_is_cut_during_the_run_is_no_pass(node: Node) -> None:
    node.configure(checks=["hbm"])
    node.kernel_log.write_text(f"{BOOT_LINE}6,1,200,-;a message that is lost\n")
    process = node.start("run", "--json")
    assert process.stderr
    for line in process.stderr:
        if "started" in line:
            break
    node.kernel_log.write_text(BOOT_LINE)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, codes(json.loads(out))) == (3, {"XID_GAP"})


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
    out, err = process.communicate(timeout=60)
    assert (process.returncode, json.loads(out)["verdict"]) == (1, "FAIL"), err
    assert "cannot sign" in err.splitlines()[-1]
    assert "the FAIL stands and the gate stays closed" in err.splitlines()[-1]
    shutil.copy(node.host_key, key)
    assert node.call("gate")[0] == 3


@pytest.mark.slow
def test_full_disk_before_the_run(node: Node) -> None:
    node.configure(checks=["state"])
    assert node.run()[0] == 0
    code, _, err = node.call("run", "--json", file_limit_bytes=0)
    assert code == 2
    assert node.call("gate")[0] == 0, "a run that cannot close the gate does not begin"
    assert "the run was given up, since" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_host_that_died_mid_check_is_reported_by_the_next_run(node: Node) -> None:
    node.configure(checks=["state"])
    with node.store.locked():
        run = node.store.new_run(NOW)
    with Journal(run.journal, "99999999-2222-3333-4444-555555555555") as journal:
        journal.write({"event": "run_started"})
        journal.write({"event": "check_started", "check": "gemm", "gpu": "GPU-0"})
    code, report, _ = node.run()
    assert (code, codes(report)) == (1, {"DIED_DURING_CHECK"})
    assert "gemm" in report["reasons"][0]["message"]
    assert report["sequence"] == 2


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
        assert "since a foreign process uses a GPU" in " ".join(reason["message"] for reason in report["reasons"])
    code, out, err = node.call("selftest")
    assert (code, out) == (3, "")
    assert "GPU 1" in err
    assert "in use by process 4711" in err


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


def full(node: Node, file_limit_bytes: int, *arguments: str) -> tuple[int, str, str]:
    """Exit code, verdict and last sentence of a run whose files cannot be written."""
    code, out, err = node.call("run", "--json", *arguments, file_limit_bytes=file_limit_bytes)
    sentence = err.splitlines()[-1]
    assert sentence.startswith("gpu-burnin: ")
    assert "File too large" in err
    assert "Traceback" not in err
    assert not (node.store.runs()[-1].path / "evidence.json").exists()
    return code, json.loads(out)["verdict"], sentence


@pytest.mark.slow
@pytest.mark.parametrize("file_limit_bytes", [500, 5000])
def test_full_disk_takes_no_verdict_away_and_leaves_the_gate_closed(file_limit_bytes: int, node: Node) -> None:
    """500 bytes end the journal, 5000 the report."""
    node.configure(checks=["state"])
    assert node.run()[0] == 0
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


def test_a_run_that_is_killed_leaves_the_gate_closed(node: Node) -> None:
    node.configure(checks=["state"])
    assert node.run()[0] == 0
    assert node.call("gate")[0] == 0
    node.configure()
    process = node.start("run", "--json")
    assert process.stderr
    for line in process.stderr:
        if "started" in line:
            break
    assert node.call("gate")[0] == 3, "from the first check on"
    process.kill()
    process.communicate(timeout=60)
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


@pytest.mark.slow
def test_a_run_after_damage_to_the_last_journal(node: Node) -> None:
    node.configure(checks=["state"])
    assert node.run()[0] == 0
    run = node.store.runs()[-1]
    run.journal.write_bytes(b"\0" * 100 + run.journal.read_bytes())
    (run.path / "report.json").unlink()
    code, report, _ = node.run()
    assert (code, codes(report)) == (1, {"DIED_DURING_CHECK"})
    assert "the journal of run 1 is damaged" in report["reasons"][0]["message"]


@pytest.mark.slow
def test_a_truncated_journal_of_this_boot_is_no_death(node: Node) -> None:
    node.configure(checks=["state"])
    assert node.run()[0] == 0
    journal = node.store.runs()[-1].journal
    journal.write_bytes(journal.read_bytes()[:-30])
    assert node.run()[0] == 0


def refused(node: Node, says: str, *arguments: str, runs: int = 0) -> None:
    """In this process, since none of these gets as far as a run."""
    done = CliRunner().invoke(cli, ["run", *arguments, "--config", str(node.directory / "config.yaml")])
    error = done.exception if isinstance(done.exception, GpuBurninError) else None
    assert (error.exit_code if error else done.exit_code) == 2
    assert says in (str(error) if error else done.output)
    assert error is None or "\n" not in str(error)
    assert len(node.store.runs()) == runs


def test_usage_errors_leave_nothing_behind(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    refused(node, "NVML is a simulation here", "--backend", "auto")
    refused(node, "'slow' is not one of 'quick', 'standard', 'extended'", "--level", "slow")
    refused(node, "unknown checks", "--skip", "nvlinks")
    refused(node, "unknown checks nvlinks: choose from", "--checks", "nvlinks")
    refused(node, "cannot use the state directory /dev/null/x (Not a directory)", "--state-dir", "/dev/null/x")
    refused(node, "--gpus 7 fits none", "--gpus", "7")
    refused(node, "unknown fault", "--inject", "gemm:gremlin")
    refused(node, "--for sets the time of the level extended", "--level", "quick", "--for", "2h")
    refused(node, "duration 10 s is out of range", "--for", "10s")
    refused(node, "is not a duration", "--for", "soon")
    refused(node, "--checks and --skip both name hbm", "--checks", "gemm,hbm", "--skip", "hbm")
    refused(node, "--skip leaves no check to run", "--skip", ",".join(CHECK_NAMES))
    refused(node, "NVML is a simulation here", "--backend", "cuda")
    refused(node, "the check hbm is not part of this run", "--checks", "gemm", "--inject", "hbm:stuck")
    refused(node, "no GPU 1 is part of this run", "--gpus", "0", "--inject", "hbm:stuck:gpu=1")
    refused(node, "seed 18446744073709551616 is out of range", "--seed", str(1 << 64))
    with node.store.locked():
        refused(node, f"another gpu-burnin run (pid {os.getpid()})")
    mismatch = node.directory / "mismatch.scenario"
    mismatch.write_text("init_error = version_mismatch\n")
    monkeypatch.setenv("MUSTER_FAKE_NVML_SCENARIO", str(mismatch))
    refused(node, "are of different versions (NVML error 18)", "--backend", "auto")
    mismatch.write_text("init_error = driver_not_loaded\n")
    refused(node, "the NVIDIA kernel module is not loaded; run modprobe nvidia", "--backend", "cuda")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(node.directory))
    refused(node, "libnvidia-ml.so.1 was not found", "--backend", "cuda")
    node.configure(host_key="/none")
    refused(node, "cannot read the host key /none (No such file or directory)")
    for wrong in ("/dev/null", "/proc"):
        node.configure(kernel_log=wrong)
        refused(node, f"kernel_log {wrong} is no regular file")
    node.configure(metrics_file="/none/gpu_burnin.prom")
    refused(node, "metrics_file /none/gpu_burnin.prom cannot be written")
    node.configure(colour="red")
    refused(node, "unknown key colour")


def test_malformed_data_files_are_named_with_their_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    loaders = (("skus", load_skus), ("xid", load_xids), ("reasons", load_reasons), ("policy", load_policy))
    for name, loader in loaders:
        path = node.directory / f"{name}.yaml"
        path.write_text("---\nfirst: [unfinished\n")
        with monkeypatch.context() as patched:
            patched.setattr(f"gpu_burnin.prepare.{loader.__name__}", functools.partial(loader, path))
            refused(node, f"{path}:3: ")


def test_malformed_scenario_is_named_with_its_line(node: Node) -> None:
    node.own_scenario = "model = h100-sxm\ngpus = many\n"
    code, out, err = node.call("run", "--json")
    assert (code, out) == (2, "")
    assert "own.scenario:2: " in err.splitlines()[-1]
    assert node.store.runs() == []


def test_read_only_state_directory(node: Node) -> None:
    """Root may write everywhere, so the directory is one that nobody can write."""
    code, out, err = node.call("run", "--json", "--out", "/proc/gpu-burnin")
    assert (code, out) == (2, "")
    assert "cannot use the state directory /proc/gpu-burnin" in err
