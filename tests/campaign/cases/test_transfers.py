"""Transfers: faulty wires between host and GPU and between two GPUs, below the real pcie and nvlink checks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.nvlink import check as nvlink
from gpu_burnin.device.port import Device
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.telemetry.topology import PairTopology
from gpu_burnin.types import Gpu, Notice, Reason, Verdict
from tests.campaign.conftest import Record
from tests.campaign.faults.faulty_link import (
    PEER_FAULTS,
    FaultyNvlinkDevice,
    FaultyPcieDevice,
    NoPinnedDevice,
    NvlinkFault,
)
from tests.campaign.faults.wires import FAULTY_WIRES, Wire
from tests.campaign.model import MISSED, NOT_TESTED, TOOLS_NOT_TESTED, Expect, case_seed, demand, row
from tests.campaign.node import SHAPES
from tests.campaign.reference_tools.copies import gpu_pair_view, host_view, slow_view
from tests.campaign.together import judge_group, node_of, run_group
from tests.support.copy_time import own_copy_time

SEEDS = 2
# Batches of a way in the pcie check: one copy to warm up, then alone, both ways, and four with all GPUs at once. A
# fault of one copy may be in any that has several: each of them is timed, and each is looked at.
_BATCHES = range(2, 2 + 6)
# Copies from one GPU to another in the nvlink check: four in peace, then at once with all (and by writes in pairs too).
_COPIES = range(1, 1 + 5)
FAIL, INCONCLUSIVE = Verdict.FAIL, Verdict.INCONCLUSIVE
# What the checks call it, where a fault is in one copy only and so leaves no doubt.
_KINDS = {
    "one copy dropped": "dropped",
    "one copy cut short": "stale",
    "one copy corrupted": "corrupted",
    "one copy duplicated": "duplicated",
    "two copies reordered": "reordered",
    "data line stuck": "corrupted",
}


@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("way", ["h2d", "d2h"])
@pytest.mark.parametrize("name", FAULTY_WIRES)
def test_faulty_wire_to_the_host(name: str, way: str, index: int, record: Record) -> None:
    seed = case_seed("transfers", "pcie", name, way, index)
    gpus, faulty = node_of("pcie", name, way, index)
    wire = FAULTY_WIRES[name](seed)
    wire.when = _BATCHES[seed % len(_BATCHES)]
    results = run_group("pcie", gpus, seed, devices={faulty: FaultyPcieDevice({way: wire})})
    judged = judge_group("pcie", gpus, seed, results)
    record(row("transfers", f"pcie {way}: {name}", seed, judged, tools=host_view(FAULTY_WIRES[name](seed))))
    note = f"seed {seed:#x}, faulty GPU {faulty} of {len(gpus)}, injected {wire.injected} times"
    demand(Expect(frozenset({"PCIE_DATA"}), FAIL, frozenset({faulty})), judged, gpus, note)
    details = next(reason.details for reason in judged.reasons if reason.gpu == gpus[faulty].uuid)
    assert set(dict(details["directions"])) == {way}, note  # type: ignore[arg-type]
    if name in _KINDS:
        assert set(dict(details["kinds"])) == {_KINDS[name]}, note  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CHECKS["pcie"].faults)
def test_injected_faults_of_pcie(name: str, record: Record) -> None:
    seed = case_seed("transfers", "inject pcie", name)
    gpus, faulty = node_of("inject pcie", name)
    results = run_group("pcie", gpus, seed, inject={faulty: (name,)})
    judged = judge_group("pcie", gpus, seed, results)
    record(row("transfers", f"pcie, injected: {name}", seed, judged))
    demand(Expect(frozenset({"PCIE_DATA"}), FAIL, frozenset({faulty})), judged, gpus, f"seed {seed:#x}")


def test_pinned_memory_refused(record: Record) -> None:
    """RLIMIT_MEMLOCK: a matter of the host's settings, named with the fix; never a FAIL of the GPU."""
    seed = case_seed("transfers", "memlock")
    gpus, faulty = node_of("memlock")
    judged = judge_group("pcie", gpus, seed, run_group("pcie", gpus, seed, devices={faulty: NoPinnedDevice()}))
    record(row("transfers", "pcie: pinned memory refused", seed, judged))
    expect = Expect(frozenset({"CHECK_ERROR"}), INCONCLUSIVE, frozenset({faulty}))
    demand(expect, judged, gpus, f"seed {seed:#x}")
    assert any("memlock" in reason.message or "ulimit -l" in reason.message for reason in judged.reasons)


# --- between two GPUs ---


def _faulty_peers(
    fault: NvlinkFault, gpus: tuple[Gpu, ...], faulty: int, other: int, seed: int
) -> tuple[dict[int, Device], list[Wire]]:
    """Devices of which the copies between two GPUs, or of one with all, are faulty at both ends."""
    pairs = [(faulty, gpu.index) for gpu in gpus if gpu.index != faulty] if fault.whole_gpu else [(faulty, other)]
    far: dict[int, set[int]] = defaultdict(set)
    for one, two in pairs:
        far[one].add(two)
        far[two].add(one)
    made: dict[int, Device] = {}
    wires: list[Wire] = []
    for index, others in far.items():
        uuids = {gpus[other].uuid for other in others}
        over: dict[tuple[str, str], Wire] = {}
        for number, uuid in enumerate(sorted(uuids)):
            for way, direction in enumerate(("write", "read")):
                if fault.make is not None:
                    wire = fault.make(seed + 16 * index + 2 * number + way)
                    wire.when = _COPIES[wire.source.randrange(len(_COPIES))]
                    over[uuid, direction] = wire
        wires += over.values()
        slow = frozenset(uuids if fault.problem == "slow" else ())
        dead = dict.fromkeys(uuids, fault.dead) if fault.dead else {}
        made[index] = FaultyNvlinkDevice(over, slow, dead)
    return made, wires


@pytest.fixture(name="own_copy_time")
def _own_copy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    own_copy_time(monkeypatch)


@pytest.mark.usefixtures("own_copy_time")
@pytest.mark.parametrize("index", range(SEEDS))
@pytest.mark.parametrize("name", PEER_FAULTS)
def test_faulty_copies_between_gpus(name: str, index: int, record: Record) -> None:
    """Which link or which GPU it is has to be named, and no other."""
    fault, seed = PEER_FAULTS[name], case_seed("transfers", "nvlink", name, index)
    gpus, faulty = node_of("nvlink", name, index, least=4, most=6)
    other = (faulty + 1 + seed % (len(gpus) - 1)) % len(gpus)
    devices, wires = _faulty_peers(fault, gpus, faulty, other, seed)
    shapes = {**SHAPES, "transfer_bytes": 1 << 18} if fault.problem == "slow" else SHAPES
    judged = judge_group("nvlink", gpus, seed, run_group("nvlink", gpus, seed, devices=devices, shapes=shapes))
    tools = slow_view()
    if fault.make is not None:
        tools = gpu_pair_view(fault.make(seed), fault.make(seed))
    elif fault.dead:
        tools = {"gpu-burn": NOT_TESTED, "dcgm": MISSED, "nvbandwidth": MISSED}
    record(row("transfers", f"nvlink {name}", seed, judged, variant=f"{len(gpus)} GPUs", tools=tools))
    ends = [faulty] if fault.whole_gpu else [faulty, other]
    injected = sum(wire.injected for wire in wires)
    note = f"seed {seed:#x}, {len(gpus)} GPUs, faulty GPU {faulty}, other end {other}, injected {injected} times"
    wrong = misattributed(judged, gpus, fault, ends)
    assert not wrong, "\n".join([*wrong, note, *(f"{r.code} {r.gpu}: {r.message}" for r in judged.reasons)])


def misattributed(judged: Judgement, gpus: tuple[Gpu, ...], fault: NvlinkFault, ends: list[int]) -> list[str]:
    """What is wrong with who is named: the link or the GPU, alone, with its problem."""
    found: list[str] = []
    uuids = {gpus[index].uuid for index in ends}
    if judged.verdict is not fault.verdict:
        found.append(f"verdict {judged.verdict}, expected {fault.verdict}")
    findings: tuple[Reason | Notice, ...] = (*judged.reasons, *judged.notices)
    told = [item for item in findings if "attributed" in item.details]
    kind = "gpu" if fault.whole_gpu else "link"
    for item in told:
        blame: Any = item.details["attributed"]
        named = (item.code, blame["kind"], set(blame["gpus"]), blame["problem"])
        if named != (fault.code, kind, uuids, fault.problem):
            found.append(f"named {named}, expected {(fault.code, kind, uuids, fault.problem)}")
    if len(told) != 1:
        found.append(f"{len(told)} were named, expected one")
    # A GPU that only got the wrong data is not sure of itself; it is not to blame.
    for uuid, verdict in judged.gpus.items():
        accused = fault.whole_gpu and uuid in uuids
        if verdict is Verdict.FAIL and not accused:
            found.append(f"{uuid} is FAIL and has nothing")
        if accused and fault.verdict is FAIL and verdict is not Verdict.FAIL:
            found.append(f"{uuid} is {verdict}, and it is the faulty one")
    others = {reason.code for reason in judged.reasons} - {fault.code}
    return found + ([f"not expected: {others}"] if others else [])


@pytest.mark.usefixtures("own_copy_time")
@pytest.mark.parametrize("name", CHECKS["nvlink"].faults)
def test_injected_faults_of_nvlink(name: str, record: Record) -> None:
    seed = case_seed("transfers", "inject nvlink", name)
    gpus, faulty = node_of("inject nvlink", name, least=4, most=4)
    shapes = {**SHAPES, "transfer_bytes": 1 << 18} if name.startswith("slow") else SHAPES
    results = run_group("nvlink", gpus, seed, inject={faulty: (name,)}, shapes=shapes)
    judged = judge_group("nvlink", gpus, seed, results)
    record(row("transfers", f"nvlink, injected: {name}", seed, judged))
    slow = "P2P_GPU_SLOW" if name == "slow_gpu" else "P2P_LINK_SLOW"
    fault = PEER_FAULTS[
        {"slow_link": "link: slow", "slow_gpu": "gpu: slow", "dead_link": "link: dead"}.get(
            name, "link: copies corrupted"
        )
    ]
    assert not name.startswith("slow") or fault.code == slow
    ends = [faulty] if fault.whole_gpu else [faulty, (faulty + 1) % len(gpus)]
    assert misattributed(judged, gpus, fault, ends) == []


# --- where two GPUs cannot copy ---

_REFUSED = "CUDA error 217: peer access is not supported between these two devices"
# What NVML and sysfs say of the way between two GPUs, and a word of the fix that has to be told.
# Of a model with NVLink to all others it is NVLink that is looked at first.
_NVLINK = "nvidia-smi nvlink -s"


def _none(status: str) -> PairTopology:
    return PairTopology(path="none", level="across NUMA nodes", read=status, write=status)


OBSTACLES: dict[str, tuple[PairTopology, str]] = {
    "topology": (_none("topology_not_supported"), "PCIe switch"),
    "chipset": (_none("chipset_not_supported"), "PCIe switch"),
    "setting of the driver": (_none("disabled_by_regkey"), "NVreg_RegistryDwords"),
    "acs redirection": (PairTopology(path="pcie", read="ok", write="ok", redirecting=("0000:00:01.0",)), "setpci"),
    "iommu": (PairTopology(path="pcie", read="ok", write="ok", iommu=("DMA-FQ",)), "iommu=pt"),
    "mig on one of them": (replace(_none("not_supported"), mig=True), "-mig 0"),
}


@pytest.mark.parametrize("sku", ["h200-sxm", "l40s"])
@pytest.mark.parametrize("name", OBSTACLES)
def test_no_way_between_gpus(name: str, sku: str, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the model has NVLink to all others it is a FAIL of the GPU; elsewhere a person is told. With the fix."""
    pair, fix = OBSTACLES[name]
    seed = case_seed("transfers", "obstacle", name, sku)
    made, faulty = node_of("obstacle", name, sku, least=4, most=5)
    gpus = tuple(replace(gpu, sku=sku) for gpu in made)
    own = gpus[faulty].uuid

    def topology(one: str, others: Iterable[str]) -> dict[str, PairTopology]:
        good = PairTopology(path="pcie", read="ok", write="ok")
        return {other: pair if own in (one, other) else good for other in others}

    monkeypatch.setattr(nvlink, "read_topology", topology)
    others = {gpu.uuid: _REFUSED for gpu in gpus if gpu.index != faulty}
    devices: dict[int, Device] = {
        gpu.index: FaultyNvlinkDevice(dead=others if gpu.index == faulty else {own: _REFUSED}) for gpu in gpus
    }
    judged = judge_group("nvlink", gpus, seed, run_group("nvlink", gpus, seed, devices=devices))
    promised = sku == "h200-sxm" or pair.possible is True
    record(row("transfers", f"no way between gpus: {name}", seed, judged, variant=sku, tools=TOOLS_NOT_TESTED))
    told: list[Reason | Notice] = [*judged.reasons, *(n for n in judged.notices if n.check == "nvlink")]
    assert {item.code for item in told} == {"P2P_UNAVAILABLE"}, told
    fixes = {fix, _NVLINK} if sku == "h200-sxm" and fix == "PCIe switch" else {fix}
    assert all(any(words in item.message for words in fixes) for item in told), told
    if promised:
        demand(Expect(frozenset({"P2P_UNAVAILABLE"}), FAIL, frozenset({faulty})), judged, gpus, f"seed {seed:#x}")
    else:
        demand(Expect(frozenset(), Verdict.PASS), judged, gpus, f"seed {seed:#x}")
