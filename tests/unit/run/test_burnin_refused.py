"""Whole runs that are refused before their first check, each in one sentence, with nothing left behind."""

from __future__ import annotations

import functools
import os

import pytest

from gpu_burnin.checks import CHECK_NAMES
from gpu_burnin.hardware import load_reasons, load_skus, load_xids
from gpu_burnin.hardware.policy import load_policy
from tests.support.node_runs import Node, refused


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
        refused(node, f"kernel_log {wrong} is not a regular file")
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
            patched.setattr(f"gpu_burnin.node.prepare.{loader.__name__}", functools.partial(loader, path))
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
