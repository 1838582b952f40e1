"""Whole runs that are refused before their first check, each in one sentence, with nothing left behind."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gpu_burnin.checks import CHECK_NAMES
from gpu_burnin.cli.main import cli
from gpu_burnin.hardware import load_reasons, load_skus, load_xids
from gpu_burnin.hardware.policy import load_policy
from gpu_burnin.node.prepare import Prepared, RunOptions, prepare
from tests.support.node_runs import Node, codes, refused


@pytest.mark.slow
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
    refused(node, "are of different versions (NVML error 18)", "--backend", "auto", exit_code=3)
    mismatch.write_text("init_error = driver_not_loaded\n")
    refused(node, "the NVIDIA kernel module is not loaded; run modprobe nvidia", "--backend", "cuda", exit_code=3)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(node.directory))
    refused(node, "libnvidia-ml.so.1 was not found", "--backend", "cuda", exit_code=3)
    node.configure(host_key="/none")
    refused(node, "cannot read the host key /none (No such file or directory)")
    for wrong in ("/dev/null", "/proc"):
        node.configure(kernel_log=wrong)
        refused(node, f"kernel_log {wrong} is not a regular file")
    node.configure(metrics_file="/none/gpu_burnin.prom")
    refused(node, "metrics_file /none/gpu_burnin.prom cannot be written")
    node.configure(colour="red")
    refused(node, "unknown key colour")


def test_a_machine_that_could_not_report_is_not_tested_for_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    refused(node, "since a Python package does not load (import of jsonschema")


@pytest.fixture
def keyless(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """A host whose gate waits for evidence, and which has no key to sign with."""
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    node.configure(checks=["state"], host_key="/none", allow_simulated=False)
    return node


def test_options_are_checked_before_the_key_is_asked_for(keyless: Node) -> None:
    keyless.configure(host_key="/none")
    refused(keyless, "unknown checks gem: choose from", "--checks", "gem")
    refused(keyless, "unknown fault 'gremlin'", "--inject", "gemm:gremlin")
    refused(keyless, "--gpus 7 fits none", "--gpus", "7")
    refused(keyless, "does not go with --level quick", "--level", "quick", "--for", "2h")
    refused(keyless, "cannot read the host key /none")


@pytest.mark.slow
def test_a_real_node_that_cannot_sign_is_refused_before_its_first_check(
    keyless: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def real(options: RunOptions) -> Prepared:
        made = prepare(options)
        return replace(made, plan=replace(made.plan, backend="cuda"), found=replace(made.found, simulated=False))

    def begins(*_: object, **__: object) -> None:
        raise AssertionError("a check has begun")

    monkeypatch.setattr("gpu_burnin.run.prepare", real)
    monkeypatch.setattr("gpu_burnin.run.execute", begins)
    refused(keyless, "this run could not be signed, and require_evidence is set: cannot read the host key /none")
    refused(keyless, "require_evidence is set", "--state-dir", str(keyless.store.root))
    with pytest.raises(AssertionError, match="a check has begun"):
        CliRunner().invoke(
            cli,
            ["run", "--config", str(keyless.directory / "config.yaml"), "--out", str(keyless.directory / "look")],
            catch_exceptions=False,
        )


@pytest.mark.slow
def test_a_simulated_run_and_one_in_another_directory_need_no_key(keyless: Node) -> None:
    code, report, err = keyless.run()
    assert (code, codes(report)) == (3, {"SIMULATED"}), err
    assert "cannot read the host key /none" in next(
        warning["message"] for warning in report["warnings"] if warning["code"] == "NO_EVIDENCE"
    )
    assert not (keyless.store.runs()[-1].path / "evidence.json").exists()
    keyless.configure(checks=["state"], host_key="/none")
    assert keyless.call("run")[0] == 2, "in a lab the gate waits for the evidence of simulated runs"
    assert keyless.call("run", "--out", str(keyless.directory / "look"))[0] == 0
    assert keyless.call("gate")[0] == 3


def test_malformed_data_files_are_named_with_their_line(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    loaders = (("skus", load_skus), ("xid", load_xids), ("reasons", load_reasons), ("policy", load_policy))
    for name, loader in loaders:
        path = node.directory / f"{name}.yaml"
        path.write_text("---\nfirst: [unfinished\n")
        with monkeypatch.context() as patched:
            patched.setattr(f"gpu_burnin.node.prepare.{loader.__name__}", functools.partial(loader, path))
            refused(node, f"{path}:3: ")


@pytest.mark.slow
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
