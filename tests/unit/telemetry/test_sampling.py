"""Sampler processes on the fake NVML: what a run's telemetry sees, and that no fault of a GPU reaches the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.telemetry.findings import Counter, Source, TelemetryFindings
from gpu_burnin.telemetry.inventory import read_inventory_in_child
from gpu_burnin.telemetry.sampling import Sampling
from gpu_burnin.telemetry.sampling_record import EVENTS, SAMPLES
from gpu_burnin.telemetry.state import to_gpu
from gpu_burnin.types import Gpu
from tests.support.clocks import PATIENCE_S, has_ended, wait_until
from tests.support.observed import observed

INTERVAL_S = 0.02
# Of the faults below.
FAULT_AFTER_S = 0.1
Environment = Callable[[str], dict[str, str]]
Node = Callable[[str], tuple[Gpu, ...]]


class Watcher:
    """Takes the events of a run and waits for them."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []
        self._changed = threading.Condition()

    def __call__(self, event: Mapping[str, Any]) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def of(self, gpu: Gpu) -> list[Mapping[str, Any]]:
        return [event for event in self.events if event["gpu"] == gpu.uuid]

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S)

    def wait_for_events(self, gpus: tuple[Gpu, ...], count: int) -> None:
        self.wait(lambda: all(len(self.of(gpu)) >= count for gpu in gpus))


@pytest.fixture
def node(scenario_environment: Environment, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Sets up a scenario for this process's children and gives its GPUs."""

    def make(scenario: str) -> tuple[Gpu, ...]:
        for name, value in scenario_environment(scenario).items():
            monkeypatch.setenv(name, value)
        return tuple(to_gpu(state, "h100-sxm5-80gb") for state in read_inventory_in_child().gpus)

    return make


def sampling(gpus: tuple[Gpu, ...], tmp_path: Path, watcher: Watcher, **options: Any) -> Sampling:
    return Sampling(gpus, tmp_path, watcher, INTERVAL_S, **options)


def source(findings: TelemetryFindings, gpu: Gpu, name: str = SAMPLES) -> Source:
    (found,) = [one for one in findings.sources if (one.name, one.gpu) == (name, gpu.uuid)]
    return found


def counter(findings: TelemetryFindings, gpu: Gpu, name: str) -> Counter:
    (found,) = [one for one in findings.counters if (one.name, one.gpu) == (name, gpu.uuid)]
    return found


def codes(findings: TelemetryFindings, gpus: tuple[Gpu, ...]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Codes of reasons and of notices by GPU, only where there are some."""
    reasons, notices = judge_telemetry(observed(gpus=gpus, telemetry=findings))
    by_gpu: tuple[dict[str, list[str]], dict[str, list[str]]] = ({}, {})
    for found, told in zip(by_gpu, (reasons, notices), strict=True):
        for one in told:
            found.setdefault(str(one.gpu), []).append(one.code)
    return by_gpu


@pytest.mark.slow
def test_healthy_gpus_are_sampled_and_nothing_is_left(node: Node, tmp_path: Path) -> None:
    gpus, watcher = node("gpus = 2\n"), Watcher()
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    started_s = time.monotonic()
    with sampling(gpus, run_dir, watcher) as samplers:
        watcher.wait_for_events(gpus, 2)
        pids = [process.pid for process in samplers._processes.values()]
        findings = samplers.findings()
    assert samplers.findings() == findings
    assert codes(findings, gpus) == ({}, {})
    assert all(map(has_ended, pids))
    assert samplers.left_behind == ()
    assert list(run_dir.iterdir()) == []
    assert [one.gpu for one in findings.series] == [gpu.uuid for gpu in gpus]
    for series in findings.series:
        assert series.samples >= len(series.t_s) >= 2
        assert started_s < series.t_s[0] < series.t_s[-1] < time.monotonic()
        for columns in (series.columns, series.lowest, series.highest):
            assert set(columns["power_w"]) == {71.0}
            assert len(columns["power_w"]) == len(series.t_s)
        assert set(series.columns) == {*series.lowest, "clocks_event_reasons"}
        assert series.reason_samples == {1: series.samples}
        assert (series.limits["slowdown_c"], series.limits["tlimit_slowdown_c"]) == (89, -2)
        assert (series.limits["power_limit_w"], series.limits["clock_sm_max_mhz"]) == (700, 1980)
        assert set(series.highest["energy_mj"]) == {123456789.0}
    assert all(one.alive for one in findings.sources)
    assert source(findings, gpus[0], EVENTS).detail == "xid, ecc_double_bit, ecc_single_bit"
    event = watcher.of(gpus[1])[0]
    assert (event["event"], event["temperature_c"], event["clock_sm_mhz"]) == ("sample", 31, 345)
    assert event["power_w"] == 71.0
    assert counter(findings, gpus[0], "energy_mj").delta == 0


# Each line is the fault of one GPU, with the reasons and the notices it must give; GPU 0 is healthy.
FAULTS: list[tuple[str, list[str], list[str]]] = [
    ("", [], []),
    ("ecc_uncorrected_volatile@0.1s = 3", ["ECC_UNCORRECTED"], []),
    ("ecc_corrected_volatile@0.1s = 20000001", ["ECC_CORRECTED"], []),
    ("ecc_corrected_volatile@0.1s = 500", [], ["ECC_CORRECTED"]),
    ("error.nvmlDeviceGetMemoryErrorCounter@0.1s = not_supported", ["COUNTER_LOST"], []),
    ("remap_pending@0.1s = yes", ["REMAP_PENDING"], []),
    ("pcie_fatal_errors@0.1s = 1", ["PCIE_DEGRADED"], []),
    ("nvlink_recovery@0.1s = 1", ["NVLINK_ERRORS"], []),
    ("nvlink_replay@0.1s = 4", [], ["NVLINK_ERRORS"]),
    ("clocks_event_reasons@0.1s = 0x40", ["THROTTLED"], []),
    ("clocks_event_reasons@0.1s = 0x24", [], ["THROTTLED"]),
    ("temperature_c@0s = 90 over 0.1s", ["TEMPERATURE_HIGH"], ["TEMPERATURE_HIGH"]),
    ("temperature_memory_c@0.1s = 97", ["TEMPERATURE_HIGH"], []),
    ("throttle_hw_thermal_ns@0.1s = 50", ["THROTTLED"], []),
]
MORE_FAULTS: list[tuple[str, list[str], list[str]]] = [
    ("", [], []),
    ("lost@0.1s = calls", ["GPU_LOST"], []),
    ("event@0.1s = double_bit_ecc", ["ECC_UNCORRECTED"], []),
    ("event@0.1s = single_bit_ecc", [], []),
    ("error.nvmlDeviceGetTemperatureV@0.1s = unknown", ["TELEMETRY_LOST"], []),
    ("error.nvmlDeviceGetCurrentClocksEventReasons = unknown", ["TELEMETRY_LOST"], []),
    ("nvlink_receive_errors@0.1s = 2\ngpu6.nvlink_version = 7", [], ["NVLINK_ERRORS"]),
    ("remap_failure@0.1s = yes", ["REMAP_FAILED"], []),
    ("retired_pages_single_bit@0.1s = 1\ngpu8.retired_pages_supported = yes", ["RETIRED_PAGES"], []),
    ("event@0.1s = xid 0", [], []),
    ("event@0.1s = xid 48", [], []),  # judged with the kernel log's
    ("pcie_replay@0.1s = 3", [], []),
    ("pcie_replay@0.1s = 90", [], ["PCIE_ERRORS"]),
]


@pytest.fixture(scope="module", params=[FAULTS, MORE_FAULTS], ids=["first", "second"])
def faulty_run(
    request: pytest.FixtureRequest, fake_nvml: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[list[tuple[str, list[str], list[str]]], tuple[Gpu, ...], TelemetryFindings]]:
    """One run over GPUs that each have another fault, whose time begins when all counters were read once."""
    faults, folder = request.param, tmp_path_factory.mktemp("faults")
    lines = [f"gpu{number}.{line}" for number, (line, _, _) in enumerate(faults) if line]
    (folder / "scenario").write_text("\n".join([f"gpus = {len(faults)}", *lines, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(fake_nvml))
        patch.setenv("MUSTER_FAKE_NVML_SCENARIO", str(folder / "scenario"))
        patch.setenv("MUSTER_FAKE_NVML_CLOCK", str(folder / "clock"))
        gpus = tuple(to_gpu(state, "h100-sxm5-80gb") for state in read_inventory_in_child().gpus)
        watcher = Watcher()
        with sampling(gpus, folder, watcher) as samplers:
            (folder / "clock").touch()
            faulty_s = time.monotonic() + FAULT_AFTER_S
            # All samples of the second message are after that of the first.
            watcher.wait(lambda: all(sum(t_s > faulty_s for t_s in one.series().t_s) >= 2 for one in samplers._records))
            yield faults, gpus, samplers.findings()


@pytest.mark.slow
def test_each_fault_gives_its_codes_on_its_gpu_only(faulty_run: Any) -> None:
    faults, gpus, findings = faulty_run
    reasons, notices = codes(findings, gpus)
    told = [(reasons.get(gpu.uuid, []), notices.get(gpu.uuid, [])) for gpu in gpus]
    assert [(line, *one) for (line, _, _), one in zip(faults, told, strict=True)] == faults


@pytest.mark.slow
@pytest.mark.parametrize(("reads", "delta"), [(1, 1), (2, 0)])
def test_a_short_run_reads_the_counters_at_its_two_ends(node: Node, tmp_path: Path, reads: int, delta: int) -> None:
    """The jump comes with the reading after so many; a third one comes after 20 s only."""
    gpus = node(f"gpus = 1\necc_uncorrected_aggregate_sram@{reads}reads = 1\n")
    with Sampling(gpus, tmp_path, Watcher(), interval_s=0.2) as samplers:
        findings = samplers.findings()
    assert counter(findings, gpus[0], "ecc_aggregate_uncorrected_sram").delta == delta


@pytest.mark.slow
def test_xids_of_nvml_are_told_with_their_gpu(node: Node, tmp_path: Path) -> None:
    gpus, watcher = (
        node("gpus = 2\ngpu1.event@0.1s = xid 79\ngpu1.event@0.2s = xid 79\ngpu1.event@0.2s = xid 0\n"),
        Watcher(),
    )
    with sampling(gpus, tmp_path, watcher) as samplers:
        watcher.wait_for_events(gpus, 3)
        findings = samplers.findings()
    (xid,) = findings.xids
    assert (xid.xid, xid.pci_bus_id, xid.pid, xid.sxid) == (79, gpus[1].pci_bus_id, None, False)
    (event,) = findings.events
    assert (event.kind, event.count, event.gpu) == ("xid", 2, gpus[1].uuid)
    assert abs(xid.monotonic_us / 1e6 - event.t_s) < 1e-3
    assert event.t_s > findings.series[1].t_s[0] - 1


@pytest.mark.slow
@pytest.mark.parametrize("when", ["@20reads", ""], ids=["later", "from-the-start"])
def test_a_sensor_that_hangs_does_not_hold_the_run(
    node: Node, scenario_environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    until, hangs = Sampling._until, tmp_path / "hangs"

    def healthy_first(samplers: Sampling, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Both may be slow: the time begins when the healthy one is ready, or has ended, and the other one hangs."""
        record, process = samplers._records[0], samplers._processes[0]
        until(samplers, lambda: not process.open if samplers._stopped else record.ready, PATIENCE_S)
        if not when:
            wait_until(hangs.exists)
        return until(samplers, condition, timeout_s)

    monkeypatch.setattr(Sampling, "_until", healthy_first)
    monkeypatch.setenv("MUSTER_FAKE_NVML_HANGS", str(hangs))
    gpus, watcher = node("gpus = 2\n"), Watcher()
    scenario_environment(f"gpus = 2\ngpu1.hang.nvmlDeviceGetPowerUsage{when} = 60\n")  # in the healthy one's place
    with sampling(gpus, tmp_path, watcher, stop_s=0.3, ready_s=PATIENCE_S if when else 0.3) as samplers:
        watcher.wait_for_events(gpus[:1], 3)
        # It hangs by the count of its reads; the healthy one's events come by time, however few reads fit into that.
        wait_until(hangs.exists)
        findings = samplers.findings()
    assert samplers.left_behind == ()
    assert source(findings, gpus[0]).alive
    assert not source(findings, gpus[1]).alive
    assert ("did not answer" if when else "was not ready") in source(findings, gpus[1]).detail
    assert codes(findings, gpus)[0] == {gpus[1].uuid: ["TELEMETRY_LOST"]}


@pytest.mark.slow
def test_a_sampler_that_stalls_is_no_live_source(node: Node, tmp_path: Path) -> None:
    gpus, watcher = node("gpus = 2\ngpu1.hang.nvmlDeviceGetPowerUsage@30reads = 2.5\n"), Watcher()
    with sampling(gpus, tmp_path, watcher, stall_s=2.0) as samplers:
        watcher.wait(lambda: not samplers._records[1].sources()[0].alive)
        findings = samplers.findings()
    assert source(findings, gpus[0]).alive
    assert not source(findings, gpus[1]).alive
    assert "no sample for" in source(findings, gpus[1]).detail
    assert codes(findings, gpus)[0] == {gpus[1].uuid: ["TELEMETRY_LOST"]}


@pytest.mark.slow
def test_slots_that_were_missed_are_counted(node: Node, tmp_path: Path) -> None:
    gpus, watcher = node("gpus = 1\nhang.nvmlDeviceGetPowerUsage = 0.05\n"), Watcher()
    with sampling(gpus, tmp_path, watcher) as samplers:
        watcher.wait_for_events(gpus, 2)
        findings = samplers.findings()
    missed = int(source(findings, gpus[0]).detail.rpartition("; ")[2].split()[0])
    assert missed >= findings.series[0].samples  # each reading takes two and a half slots


def test_a_killed_sampler_is_told_and_its_last_counters_stay(node: Node, tmp_path: Path) -> None:
    gpus, watcher = node("gpus = 2\n"), Watcher()
    with sampling(gpus, tmp_path, watcher) as samplers:
        watcher.wait_for_events(gpus, 1)
        os.kill(samplers._processes[1].pid, signal.SIGKILL)
        findings = samplers.findings()
    assert "status -9" in source(findings, gpus[1]).detail
    assert codes(findings, gpus)[0] == {gpus[1].uuid: ["TELEMETRY_LOST"]}
    last = counter(findings, gpus[1], "pcie_replays")
    assert (last.before, last.after) == (0, 0)
    assert "ended early" in last.why


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "detail"),
    [
        ("gpus = 1\n", "not_found"),
        ("gpus = 1\ninit_error = driver_not_loaded\n", "driver_not_loaded"),
        ("gpus = 1\nnonsense = 1\n", "scenario:2: the line has an unknown key"),
    ],
)
def test_a_sampler_that_cannot_begin_says_why(
    node: Node, scenario_environment: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    scenario: str, detail: str,
) -> None:  # fmt: skip
    gpus = node("gpus = 2\n")
    scenario_environment(scenario)  # in the place of the healthy one
    with sampling(gpus[1:], tmp_path, Watcher()) as samplers:
        findings = samplers.findings()
    assert not source(findings, gpus[1]).alive
    assert detail in source(findings, gpus[1]).detail
    wanted = "GPU_LOST" if detail == "not_found" else "TELEMETRY_LOST"
    assert codes(findings, gpus[1:])[0] == {gpus[1].uuid: [wanted]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "detail"),
    [
        (("/nonexistent/sampler",), "could not be started"),
        ((sys.executable, "-c", "print('nonsense')"), "not a message"),
        ((sys.executable, "-c", 'print(\'{"type": "ready"}\')'), "not a message"),
        ((sys.executable, "-c", 'print(\'{"type": "sung"}\')'), "not a message"),
        ((sys.executable, "-c", "raise SystemExit('broken')"), "status 1: broken"),
    ],
)
def test_a_program_that_is_no_sampler_is_no_live_source(
    node: Node, tmp_path: Path, command: tuple[str, ...], detail: str
) -> None:
    gpus = node("gpus = 1\n")
    with sampling(gpus, tmp_path, Watcher(), command=command) as samplers:
        findings = samplers.findings()
    assert not source(findings, gpus[0]).alive
    assert detail in source(findings, gpus[0]).detail
    assert (tmp_path / "sampler-0.log").exists() == ("status 1" in detail)


@pytest.mark.slow
def test_a_sampler_that_cannot_be_killed_is_left_behind(node: Node, tmp_path: Path) -> None:
    gpus, watcher = node("gpus = 1\nhang.nvmlDeviceGetPowerUsage@20reads = 60\n"), Watcher()
    with sampling(gpus, tmp_path, watcher, stop_s=0.2, kill_s=0.2) as samplers:
        watcher.wait_for_events(gpus, 1)
        process = samplers._processes[0]
        kill, process.signal = process.signal, lambda _number: None  # type: ignore[method-assign]
        findings = samplers.findings()
    assert samplers.left_behind == (process.pid,)
    assert not source(findings, gpus[0]).alive
    kill(signal.SIGKILL)
    assert process.gone(time.monotonic() + PATIENCE_S)


@pytest.mark.slow
def test_a_display_that_fails_does_not_end_the_telemetry(node: Node, tmp_path: Path) -> None:
    gpus, watcher = node("gpus = 1\n"), Watcher()
    calls: list[int] = []

    def broken(event: Mapping[str, Any]) -> None:
        calls.append(1)
        raise RuntimeError("no terminal")

    samplers = Sampling(gpus, tmp_path, broken, INTERVAL_S)
    with samplers:
        wait_until(lambda: samplers._records[0].series().samples > 30)
        findings = samplers.findings()
    assert calls == [1]
    assert source(findings, gpus[0]).alive
    assert watcher.events == []


def test_an_interrupted_start_leaves_no_sampler(
    node: Node, scenario_environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = node("gpus = 1\n")
    scenario_environment("gpus = 1\nhang.nvmlDeviceGetPowerUsage = 60\n")
    samplers = sampling(gpus, tmp_path, Watcher(), stop_s=0.2)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(samplers, "_wait_until_ready", interrupt)
    with pytest.raises(KeyboardInterrupt):
        samplers.__enter__()
    assert has_ended(samplers._processes[0].pid)


def test_samplers_end_with_their_parent(node: Node, tmp_path: Path) -> None:
    node("gpus = 1\n")
    code = f"""
import sys, time
from pathlib import Path
from gpu_burnin.telemetry.inventory import read_inventory_in_child
from gpu_burnin.telemetry.sampling import Sampling
from gpu_burnin.telemetry.state import to_gpu
from tests.support.observed import observed
gpus = [to_gpu(state, "") for state in read_inventory_in_child().gpus]
with Sampling(gpus, Path({str(tmp_path)!r}), lambda event: None) as samplers:
    print(samplers._processes[0].pid, flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not has_ended(pid)
        parent.kill()
    wait_until(lambda: has_ended(pid))


def test_no_gpu_is_no_telemetry(tmp_path: Path) -> None:
    with Sampling((), tmp_path, Watcher()) as samplers:
        assert samplers.findings() == TelemetryFindings()
