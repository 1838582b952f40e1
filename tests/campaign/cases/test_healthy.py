"""Healthy nodes of every kind: none of them may fail, all of them pass.

Model, number of GPUs, driver, temperatures, corrected errors, replays, clocks, kernel log, seeds and shapes are drawn
at random. State goes through the fake NVML library; one GPU of each node really runs the checks of single GPUs and all
self-tests with the case's own seed and shapes, and the others give the same; the checks of GPUs together run on all of
them; telemetry and log go through the records and readers of a run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.checks import CHECKS, REGISTRY, SELFTESTED, USUAL_CHECKS
from gpu_burnin.checks.spec import Scope
from gpu_burnin.judge.observations import KernelLogFindings
from gpu_burnin.telemetry.counters import UNITS
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kernel_log import open_kernel_log
from gpu_burnin.types import JSON, CheckResult, Gpu, SelftestResult, Verdict
from tests.campaign.conftest import Record
from tests.campaign.model import TOOLS_NOT_TESTED, Expect, case_random, case_seed, demand, row
from tests.campaign.node import SHAPES, context_of, gpus_of, made_up_gpus, observe, plan_of, sampled, verdict
from tests.campaign.nvml_child import NvmlChild
from tests.campaign.profile import make_profile
from tests.campaign.together import judge_group, run_group
from tests.support.power_time import own_power_time

RUNS, TOGETHER_RUNS = 200, 2
# Checks of GPUs together take most of the time of a case: they are part of every fourth.
TOGETHER_EACH = 4
_SIZES = (16, 32, 48, 64, 80, 96)
# Lines of a healthy machine, some of which look like trouble to a careless reader.
_LINES = (
    "6;Linux version 6.8.0-60-generic",
    "6;nvidia: loading out-of-tree module taints kernel.",
    "5;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05",
    "6;nvidia-nvswitch1: open (major=508)",
    "4;NVRM: GPU 0000:1b:00.0: RmInitAdapter succeeded",
    "14;app[4711]: NVRM: Xid (PCI:0000:1b:00): 79, written by a program",
    "6;EXT4-fs (nvme0n1p2): mounted filesystem",
    "4;nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20001, Non-fatal, Link 33 TX Replay Error",
    "3;NVRM: Xid (PCI:0000:43:00): 106, SMBPBI Test Message",
)


def _log(source: random.Random, path: Path) -> KernelLogFindings:
    """A kernel log without an XID that counts, through the real reader."""
    lines, number, at_us = [], source.randint(0, 3), 0
    for text in source.choices(_LINES, k=source.randint(1, 40)):
        priority, _, message = text.partition(";")
        at_us += source.randint(0, 2_000_000)
        lines.append(f"{priority},{number},{at_us},-;{message}")
        number += 1
    path.write_text("\n".join(lines) + "\n")
    events, gaps, name = open_kernel_log(str(path)).read()
    return KernelLogFindings(name, bool(name), gaps, events)


def _telemetry(source: random.Random, gpus: tuple[Gpu, ...]) -> TelemetryFindings:
    """Healthy samples with the noise of real GPUs: heat, power capping, counters that stand or rise a little."""
    base_c = source.randint(45, 70)
    found = []
    for _ in gpus:
        heat_c = base_c + source.randint(-6, 6)
        counters = {name: source.choice([0, 0, 0, source.randint(1, 500)]) for name in UNITS}
        # Boards without a value say so; a healthy one may lack many.
        absent = source.sample(sorted(UNITS), source.randint(0, 6))
        first = {name: "not_supported" if name in absent else value for name, value in counters.items()}
        rising = {"energy_mj": 10_000_000, "throttle_power_ns": 900_000_000, "pcie_correctable_errors": 1}
        # Fewer than 100 corrected errors and 8 replays are no rate (hardware/policy.yaml).
        rising |= {"ecc_volatile_corrected_dram": source.randint(0, 50), "pcie_replays": source.randint(0, 3)}
        last = {n: counters[n] + up for n, up in rising.items() if n not in absent and up}
        found.append(
            {
                "counters": first,
                "changed": last,
                "temperature_c": [heat_c - 4, heat_c - 1.5, heat_c],
                "reasons": source.choice([0x0, 0x1, 0x4, 0x4]),
            }
        )
    return sampled(gpus, found)


def _results(
    names: Sequence[str], gpus: tuple[Gpu, ...], tested: int, seed: int, shapes: dict[str, int]
) -> tuple[list[CheckResult], list[SelftestResult]]:
    """The named checks of GPUs, here and now."""
    results: list[CheckResult] = []
    tests: list[SelftestResult] = []
    for name in (name for name in names if CHECKS[name].scope.per_gpu):
        context = context_of(gpus, tested, seed=seed, shapes=shapes)
        if CHECKS[name].scope is Scope.TOGETHER:
            results += run_group(name, gpus, seed, shapes=shapes)
        else:
            result = REGISTRY[name].run(context)
            results += [replace(result, gpu=gpu.uuid) for gpu in gpus]
        own = REGISTRY[name].selftest(context) if name in SELFTESTED else ()
        tests += [replace(test, gpu=gpu.uuid) for gpu in gpus for test in own]
    return results, tests


@pytest.mark.parametrize("index", range(RUNS))
def test_healthy_run_passes(index: int, nvml: NvmlChild, tmp_path: Path, record: Record) -> None:
    seed, source = case_seed("healthy", index), case_random("healthy", index)
    profile = make_profile("healthy", index)
    gpus = gpus_of(nvml.node(profile.scenario()))
    state = nvml.check(profile.scenario(), gpus, {"expect": {"gpus": profile.gpus}})
    m, n, k = (source.choice(_SIZES) for _ in range(3))
    shapes = {**SHAPES, "gemm_m": m, "gemm_n": n, "gemm_k": k, "hbm_bytes": 4096 * source.randint(1, 32)}
    shapes |= {name: 4096 * source.randint(1, 8) for name in ("transfer_bytes", "collective_bytes")}
    names = [name for name in USUAL_CHECKS if index % TOGETHER_EACH == 0 or CHECKS[name].scope is not Scope.TOGETHER]
    results, tests = _results(names, gpus, source.randrange(len(gpus)), seed, shapes)
    seen = observe(
        plan_of(gpus, *names, seed=seed),
        [state, *results],
        tests,
        kernel_log=_log(source, tmp_path / "kmsg"),
        telemetry=_telemetry(source, gpus),
    )
    judged = verdict(seen)
    note = f"{profile.gpus} x {profile.sku.key}, driver {profile.driver}, {m} x {n} x {k}"
    record(
        row("healthy", f"{profile.sku.architecture}, driver {profile.branch}", seed, judged, variant=note,
            tools=TOOLS_NOT_TESTED)
    )  # fmt: skip
    demand(Expect(frozenset(), Verdict.PASS), judged, gpus, f"seed {seed:#x}, {note}")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("index", range(TOGETHER_RUNS))
def test_healthy_gpus_together(count: int, index: int, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of GPUs together as a standard run has them, with waves: nothing fails and nothing is told."""
    seed = case_seed("healthy together", count, index)
    gpus = made_up_gpus(count)
    for name in (name for name in USUAL_CHECKS if CHECKS[name].scope is Scope.TOGETHER):
        options: dict[str, JSON] = {"power_waves": "always"}
        with monkeypatch.context() as patched:
            if name == "power":  # eight swing on two processors, which others want too
                own_power_time(patched)
            results = run_group(name, gpus, seed, level="standard", options=options)
        judged = judge_group(name, gpus, seed, results)
        variant = f"{name}, {count} GPUs"
        record(row("healthy", f"together: {name}", seed, judged, variant=variant, tools={}))
        demand(Expect(frozenset(), Verdict.PASS), judged, gpus, f"{name}, {count} GPUs, seed {seed:#x}")
