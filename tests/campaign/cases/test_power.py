"""Power: wrong products and copies under the real power check, and what NVML says meanwhile, by real samplers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import CHECKS, REGISTRY, CheckContext
from gpu_burnin.device.storage import Buffer
from gpu_burnin.exact.faults import FAULTS
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.sampling import Sampling
from gpu_burnin.types import CheckResult, Gpu, Verdict
from tests.campaign.conftest import Record
from tests.campaign.faults.faulty_link import FaultyNvlinkDevice, FaultyPcieDevice
from tests.campaign.faults.faulty_products import FaultyProductsDevice, always, each
from tests.campaign.faults.power import POWER_FAULTS, PowerFault
from tests.campaign.faults.wires import FAULTY_WIRES
from tests.campaign.model import MISSED, NOT_TESTED, TOOLS_NOT_TESTED, Expect, case_random, case_seed, demand, row
from tests.campaign.node import gpus_of
from tests.campaign.nvml_child import SCENARIO_VARIABLE, NvmlChild
from tests.campaign.together import judge_group, node_of, run_group
from tests.support import coverages
from tests.support.power_time import own_power_time

FAIL, INCONCLUSIVE, PASS = Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS
GPUS = 3
# Neither tool swings the load of all GPUs; DCGM's pulse_test is closed and belongs to level 4.
_INTERVAL_S, _READY_S = 0.02, 30.0
# Seconds of a check: simulated waves take 1.2 s of it, the mixed load has the rest.
_BUDGET_S = 2.2
# So many messages of each sampler before a round of the mixed load: a fault comes 1.2 s after the load at the latest,
# its rules want to see it for a second, and each message is of 0.2 s and more.
_ENOUGH = 12
_WAVES = {True: {"power_waves": "always"}, False: {"power_waves": "never"}}


Watched = Callable[[PowerFault, int, int], tuple[tuple[Gpu, ...], list[CheckResult], TelemetryFindings]]


class _WrongOnEdge(FaultyProductsDevice):
    """Only the first product after a rest is wrong: what gives way when the current rises."""

    def __init__(self, seed: int) -> None:
        super().__init__(FAULTS["bitflip"], lambda number, _: self._rested, seed)
        self._rested = False
        self._collects = self._since_collect = 0

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        # The load is measured first, in three bursts at least.
        self._rested = self._collects >= 3 and self._since_collect == 0
        self._since_collect += 1
        super().gemm(precision, a, b, c)

    def collect(self) -> Any:
        self._collects += 1
        self._since_collect = 0
        return super().collect()


_FAULTY_PRODUCTS = {
    "every product": lambda seed: FaultyProductsDevice(FAULTS["low_mantissa"], always, seed),
    "each seventh product": lambda seed: FaultyProductsDevice(FAULTS["bitflip"], each(7), seed),
    "first product after a rest": _WrongOnEdge,
}


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with other work makes every wave all the same."""
    own_power_time(monkeypatch)


@pytest.mark.usefixtures("own_time")
@pytest.mark.parametrize("waves", [True, False], ids=["waves", "mixed load"])
@pytest.mark.parametrize("name", _FAULTY_PRODUCTS)
def test_wrong_products_under_swinging_load(name: str, waves: bool, record: Record) -> None:
    seed = case_seed("power", name, waves)
    gpus, faulty = node_of("power", name, waves, least=2, most=3)
    results = run_group(
        "power", gpus, seed, devices={faulty: _FAULTY_PRODUCTS[name](seed)}, level="standard", options=_WAVES[waves]
    )
    judged = judge_group("power", gpus, seed, results)
    record(row("power", f"wrong: {name}", seed, judged, variant="waves" if waves else "mixed", tools=TOOLS_NOT_TESTED))
    note = f"seed {seed:#x}, faulty GPU {faulty}: {[reason.message for reason in judged.reasons]}"
    demand(Expect(frozenset({"POWER_MISMATCH"}), FAIL, frozenset({faulty})), judged, gpus, note)


@pytest.mark.usefixtures("own_time")
@pytest.mark.parametrize("name", CHECKS["power"].faults)
def test_injected_faults_of_power(name: str, record: Record) -> None:
    seed = case_seed("power", "inject", name)
    gpus, faulty = node_of("power", "inject", name, least=2, most=3)
    results = run_group("power", gpus, seed, inject={faulty: (name,)}, level="standard", options=_WAVES[True])
    judged = judge_group("power", gpus, seed, results)
    record(row("power", f"injected: {name}", seed, judged, tools=TOOLS_NOT_TESTED))
    code, severity = {"late": ("COVERAGE_LOW", INCONCLUSIVE), "wrong_transfer": ("PCIE_DATA", FAIL)}.get(
        name, ("POWER_MISMATCH", FAIL)
    )
    demand(
        Expect(frozenset({code}), severity, frozenset({faulty})), judged, gpus, f"seed {seed:#x}, faulty GPU {faulty}"
    )


def test_wrong_copies_under_mixed_load(record: Record) -> None:
    """The wires go bad only while everything else works too."""
    seed = case_seed("power", "copies")
    gpus, faulty = node_of("power", "copies", least=3, most=3)
    to_host = FaultyPcieDevice({"h2d": FAULTY_WIRES["data line stuck"](seed)})
    ahead = gpus[(faulty + 1) % len(gpus)]
    wire = FAULTY_WIRES["data line stuck"](seed)
    for name, device, code, blamed in (
        ("host", to_host, "PCIE_DATA", faulty),
        ("peer", FaultyNvlinkDevice({(ahead.uuid, "write"): wire}), "TRANSFER_MISMATCH", ahead.index),
    ):
        judged = judge_group("power", gpus, seed, run_group("power", gpus, seed, devices={faulty: device}))
        record(row("power", f"mixed load: wrong copies, {name}", seed, judged, tools=TOOLS_NOT_TESTED))
        assert judged.verdict is not PASS, name
        told = [(reason.code, reason.gpu) for reason in judged.reasons]
        assert told == [(code, gpus[blamed].uuid)], name


# --- what NVML says meanwhile ---


class _Seen:
    """How many messages of samples there were of each GPU, of ten samples each."""

    def __init__(self, gpus: tuple[Gpu, ...]) -> None:
        self._counts = dict.fromkeys((gpu.uuid for gpu in gpus), 0)
        self._changed = threading.Condition()

    def take(self, event: Mapping[str, Any]) -> None:
        """One message of a sampler."""
        with self._changed:
            self._counts[event["gpu"]] += 1
            self._changed.notify_all()

    def wait(self, more: int) -> None:
        """Until there are so many more of each. Raises AssertionError when a sampler says nothing."""
        with self._changed:
            wanted = {gpu: count + more for gpu, count in self._counts.items()}
            seen = self._changed.wait_for(
                lambda: all(count >= wanted[gpu] for gpu, count in self._counts.items()), _READY_S
            )
            assert seen, f"messages of each GPU: {self._counts}, wanted {wanted}"


@pytest.fixture
def watched(nvml: NvmlChild, fake_nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Runs the power check on all GPUs while samplers watch them; a fault's time counts from the load's start."""

    def run(fault: PowerFault, faulty: int, seed: int) -> tuple[tuple[Gpu, ...], list[CheckResult], TelemetryFindings]:
        start = f"identity = power\ngpus = {GPUS}\n"
        gpus = gpus_of(nvml.node(start))
        scenario, loaded = tmp_path / "power.scenario", tmp_path / "loaded"
        scenario.write_text(start + fault.scenario(GPUS, faulty))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml))
        monkeypatch.setenv(SCENARIO_VARIABLE, str(scenario))
        monkeypatch.setenv("MUSTER_FAKE_NVML_CLOCK", str(loaded))
        seen = _Seen(gpus)

        def progress(event: Mapping[str, Any]) -> None:
            if not loaded.exists():
                loaded.touch()
            if event["phase"] == "mixed load":
                # A busy machine takes fewer samples in the same time: so the load goes on until there are enough.
                seen.wait(_ENOUGH)

        def check(ctx: CheckContext) -> CheckResult:
            return REGISTRY["power"].run(replace(ctx, progress=progress))

        with Sampling(gpus, tmp_path, seen.take, _INTERVAL_S) as sampling:
            seen.wait(1)
            results = run_group(
                "power", gpus, seed, level="extended", options=_WAVES[fault.waves], budget_s=_BUDGET_S, run=check
            )
        return gpus, results, sampling.findings()

    return run


@pytest.mark.parametrize("name", POWER_FAULTS)
def test_what_nvml_says_under_load(name: str, watched: Watched, record: Record) -> None:
    fault, seed = POWER_FAULTS[name], case_seed("power", name)
    faulty = case_random("power", name).randrange(GPUS)
    gpus, results, findings = watched(fault, faulty, seed)
    judged = judge_group("power", gpus, seed, results, telemetry=findings)
    # gpu-burn prints temperatures and judges none; DCGM has throttle reasons as health, which is not restated here.
    tools = {"gpu-burn": MISSED, "dcgm": NOT_TESTED}
    record(row("power", name, seed, judged, variant="waves" if fault.waves else "mixed", tools=tools))
    note = f"seed {seed:#x}, faulty GPU {faulty}: {[(n.code, n.gpu, n.message) for n in judged.notices]}"
    faulty_gpus = frozenset({faulty}) if fault.codes else frozenset()
    demand(Expect(fault.codes, fault.verdict, faulty_gpus, also=fault.also), judged, gpus, note)
    # That the waves were not made is a notice of the node.
    told = {(n.code, n.gpu) for n in judged.notices if n.check == "power" and n.gpu is not None}
    assert told == {(code, gpus[faulty].uuid) for code in fault.notices}, note


def test_a_healthy_node_has_nothing_to_tell(watched: Watched) -> None:
    gpus, results, findings = watched(PowerFault("healthy", {}, PASS, waves=True), -1, 1)
    judged = judge_group("power", gpus, 1, results, telemetry=findings)
    demand(Expect(frozenset(), PASS), judged, gpus, "healthy")
    assert judged.notices == ()
    assert all(coverages.power(result).waves.run for result in results)
