"""Telemetry: kernel logs through the real reader, and real samplers on the fake NVML library."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.judge.observations import KernelLogFindings
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kernel_log import open_kernel_log
from gpu_burnin.telemetry.sampling import Sampling
from gpu_burnin.types import Gpu, Verdict
from tests.campaign.conftest import Record
from tests.campaign.faults import failing_sampler
from tests.campaign.faults.telemetry import (
    HARMLESS_LOGS,
    LOG_FAULTS,
    SAMPLED_FAULTS,
    WARNED,
    LogFault,
    SampledFault,
)
from tests.campaign.model import TOOLS_NOT_TESTED, Expect, case_random, case_seed, demand, row
from tests.campaign.node import clean, gpus_of, healthy_telemetry, made_up_gpus, observe, plan_of, verdict
from tests.campaign.nvml_child import SCENARIO_VARIABLE, NvmlChild
from tests.support.clocks import PATIENCE_S, IdleClock, wait_until

LOG_SEEDS, SAMPLED_SEEDS = 3, 2
_INTERVAL_S = 0.02
# Messages of ten samples each, so 0.8 s: the faults come after 0.3 s.
_MESSAGES = 4
_HANG_S, _LOOK_S = 1.0, 0.02
_KILLED = "killed"
_FAILING = Path(failing_sampler.__file__)


# --- kernel log ---


def _read_log(fault: LogFault, faulty: Gpu, pid: int, path: Path) -> KernelLogFindings:
    """Write the log as the kernel would and read it back through the real reader."""
    if fault.file:
        lines = ["6,100,90000,-;Linux version 6.1"]
        number = 101 + fault.lost
        for text in fault.lines:
            prefix, separator, rest = text.partition(";")
            priority, message = (prefix, rest) if separator and prefix.isdecimal() else ("3", text)
            message = message.format(bus=faulty.pci_bus_id.rpartition(".")[0], pid=pid)
            lines.append(f"{priority},{number},{number * 1000},-;{message}")
            number += 1
        path.write_text("\n".join(lines) + "\n")
    events, gaps, source = open_kernel_log(str(path)).read()
    return KernelLogFindings(source or str(path), bool(source), gaps, events)


def _judge_log(fault: LogFault, index: int, path: Path) -> tuple[tuple[Gpu, ...], int, Judgement]:
    source = case_random("telemetry", fault.name, index)
    gpus = made_up_gpus(source.randint(1, 8))
    faulty, pid = source.randrange(len(gpus)), source.randint(1000, 4_000_000)
    log = _read_log(fault, gpus[faulty], pid, path)
    found = [clean("hbm", gpu) for gpu in gpus]
    seen = observe(
        plan_of(gpus, "hbm"),
        [result for result, _ in found],
        [test for _, tests in found for test in tests],
        kernel_log=log,
        killed_pids=frozenset({pid}) if fault.own else frozenset(),
    )
    return gpus, faulty, verdict(seen)


@pytest.mark.parametrize("index", range(LOG_SEEDS))
@pytest.mark.parametrize("name", LOG_FAULTS)
def test_log_fault(name: str, index: int, tmp_path: Path, record: Record) -> None:
    fault, seed = LOG_FAULTS[name], case_seed("telemetry", name, index)
    gpus, faulty, judged = _judge_log(fault, index, tmp_path / "kmsg")
    record(row("telemetry", name, seed, judged, variant=f"{len(gpus)} GPUs", tools=TOOLS_NOT_TESTED))
    assert fault.code is not None
    expect = Expect(
        codes=frozenset(fault.code.split()),
        verdict=fault.verdict,
        gpus=frozenset({faulty}) if fault.on_gpu else frozenset(),
        also=fault.also,
        action=fault.action,
    )
    demand(expect, judged, gpus, f"seed {seed:#x}, faulty GPU {faulty} of {len(gpus)}, log:\n" + "\n".join(fault.lines))


@pytest.mark.parametrize("index", range(LOG_SEEDS))
@pytest.mark.parametrize("name", HARMLESS_LOGS)
def test_harmless_log_passes(name: str, index: int, tmp_path: Path) -> None:
    gpus, _, judged = _judge_log(HARMLESS_LOGS[name], index, tmp_path / "kmsg")
    demand(Expect(frozenset(), Verdict.PASS), judged, gpus, name)


# --- samplers ---


class _Messages:
    """Counts the samples of each GPU as they come."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self._changed = threading.Condition()

    def take(self, event: Mapping[str, Any]) -> None:
        with self._changed:
            self.count[event["gpu"]] += 1
            self._changed.notify_all()

    def wait(self, gpus: list[str]) -> None:
        """Until each of these GPUs was sampled long enough."""
        with self._changed:
            done = self._changed.wait_for(lambda: all(self.count[gpu] >= _MESSAGES for gpu in gpus), PATIENCE_S)
        assert done, f"no samples in {PATIENCE_S:g} s: {self.count}"


class _IdleSampling(Sampling):
    """Gives up what hangs, and not what others keep from the processor: only idle seconds count."""

    def _until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with IdleClock() as clock, self._changed:
            until_s = clock() + timeout_s
            while not condition() and clock() < until_s:
                self._changed.wait(_LOOK_S)
            return condition()


def _idle(seconds: float) -> None:
    """So long that a sampler of which nothing is heard has come to its fault, however busy this machine is."""
    with IdleClock() as clock:
        until_s = clock() + seconds
        wait_until(lambda: clock() >= until_s)


def _sample(fault: SampledFault, gpus: tuple[Gpu, ...], faulty: int, run_dir: Path) -> TelemetryFindings:
    command = None
    if fault.sampler:
        command = [sys.executable, "-S", str(_FAILING), fault.sampler, gpus[faulty].uuid, str(run_dir / _KILLED)]
    messages = _Messages()
    awaited = [gpu.uuid for gpu in gpus if gpu.index != faulty or not fault.silent]
    # What hangs is given up soon.
    kind, limits = Sampling, {"ready_s": PATIENCE_S, "stop_s": PATIENCE_S, "kill_s": PATIENCE_S}
    if fault.silent:
        kind, limits = _IdleSampling, {"ready_s": _HANG_S, "stop_s": _HANG_S, "kill_s": PATIENCE_S}
    with kind(gpus, run_dir, messages.take, _INTERVAL_S, command=command, **limits) as sampling:
        messages.wait(awaited)
        if fault.silent:
            _idle(_HANG_S / 2)
        if fault.sampler == "dies":
            wait_until((run_dir / _KILLED).exists)
    return sampling.findings()


def _judge_sampled(
    fault: SampledFault, index: int, nvml: NvmlChild, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[Gpu, ...], int, Judgement]:
    source = case_random("telemetry", fault.name, index)
    count = source.randint(2, 3)
    faulty = source.randrange(count)
    start = f"identity = sampled-{index}\ngpus = {count}\n"
    gpus = gpus_of(nvml.node(start))
    scenario = tmp_path / "sampled.scenario"
    scenario.write_text(start + "".join(f"gpu{faulty}.{key} = {value}\n" for key, value in fault.lines.items()))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv(SCENARIO_VARIABLE, str(scenario))
    findings = _sample(fault, gpus, faulty, tmp_path)
    found = [clean("hbm", gpu) for gpu in gpus]
    results = [result for result, _ in found]
    if fault.worked_s is not None:
        results = [replace(result, seconds=fault.worked_s) for result in results]
    tests = [test for _, own in found for test in own]
    return gpus, faulty, verdict(observe(plan_of(gpus, "hbm"), results, tests, telemetry=findings))


@pytest.mark.parametrize("index", range(SAMPLED_SEEDS))
@pytest.mark.parametrize("name", SAMPLED_FAULTS)
def test_sampled_fault(
    name: str, index: int, nvml: NvmlChild, fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    record: Record,
) -> None:  # fmt: skip
    fault, seed = SAMPLED_FAULTS[name], case_seed("telemetry", name, index)
    gpus, faulty, judged = _judge_sampled(fault, index, nvml, fake_nvml, tmp_path, monkeypatch)
    record(row("telemetry", name, seed, judged, variant=f"{len(gpus)} GPUs", tools=TOOLS_NOT_TESTED))
    expect = Expect(frozenset({fault.code}), fault.verdict, frozenset({faulty}), also=fault.also)
    demand(expect, judged, gpus, f"seed {seed:#x}, faulty GPU {faulty} of {len(gpus)}, lines {dict(fault.lines)}")


@pytest.mark.parametrize("name", WARNED)
def test_what_is_only_told(
    name: str, nvml: NvmlChild, fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A figure nobody vouches for warns: the node passes, and the notice names the right GPU."""
    fault = WARNED[name]
    gpus, faulty, judged = _judge_sampled(fault, 0, nvml, fake_nvml, tmp_path, monkeypatch)
    demand(Expect(frozenset(), Verdict.PASS), judged, gpus, f"lines {dict(fault.lines)}")
    assert {(notice.code, notice.gpu) for notice in judged.notices} == {(fault.code, gpus[faulty].uuid)}


def test_healthy_telemetry_of_the_other_areas_is_healthy() -> None:
    gpus = made_up_gpus(8)
    found = [clean("hbm", gpu) for gpu in gpus]
    seen = observe(plan_of(gpus, "hbm"), [result for result, _ in found], [t for _, own in found for t in own])
    assert seen.telemetry == healthy_telemetry(gpus)
    demand(Expect(frozenset(), Verdict.PASS), verdict(seen), gpus, "healthy")
