"""The NVLink check: copies between every two GPUs, both ways, verified where they arrive.

First one pair at a time while the rest of the node is idle, each GPU writing to and reading from each other: these
give the rates. Then pairs that share no GPU copy at once, both ways, and then all GPUs with all others. Every copy has
data of its own and is verified before the next one comes to its place. A PCIe tree shares its way up between pairs, so
the rates of the later phases say nothing of a pair.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from gpu_burnin.checks import CheckContext, needed_device
from gpu_burnin.checks.nvlink import SPEC
from gpu_burnin.checks.nvlink import selftest as own_selftest
from gpu_burnin.checks.nvlink.pairs import expected, measurements, moved_bytes, path_unproven
from gpu_burnin.checks.nvlink.phases import Phases
from gpu_burnin.checks.nvlink.port import (
    DATA_FAULTS,
    PIECES,
    TOO_MANY_PEERS,
    WORD_BYTES,
    LinkFaults,
    NvlinkPort,
    NvlinkUnavailable,
    nvlink_port,
)
from gpu_burnin.checks.nvlink.result import NAME, NvlinkCoverage, Pair
from gpu_burnin.checks.together import Group
from gpu_burnin.device.port import DeviceError, given_back
from gpu_burnin.hardware import load_skus, make_reason
from gpu_burnin.telemetry.node_links import node_links_of
from gpu_burnin.telemetry.topology import NVLINK_PATHS, PairTopology, bar1_bytes, read_topology, why_not
from gpu_burnin.types import JSON, CheckResult, Reason, SelftestResult, Verdict, verdict_of

# How often a copy of a slow link is repeated (fault injection).
_SLOW_TIMES = 64
# Share of the budget for the pairs in peace.
_PEACE_SHARE = SPEC.in_turns
_NO_PAIR = "no pair of GPUs: one GPU has no other to copy to"


class Check:
    """Copies between all GPUs of the node. FAILs of links and GPUs come from judge.attribution, which has the results
    of all GPUs."""

    name = NAME

    def run(self, ctx: CheckContext) -> CheckResult:
        """Raises DeviceError without a device, without memory, or when the device fails."""
        device = needed_device(ctx, NAME)
        if ctx.gpu is None:
            raise DeviceError("the nvlink check needs a GPU: this is a fault of the caller")
        started = time.monotonic()
        if len(ctx.gpus) < 2:
            nothing = NvlinkCoverage(pairs_total=0, pairs_covered=0, why=_NO_PAIR, simulated=device.simulated)
            return CheckResult(NAME, ctx.gpu.uuid, Verdict.PASS, time.monotonic() - started, coverage=nothing)
        group = Group(ctx)
        if len(group.members) < 2:
            return _alone(ctx, device.simulated, time.monotonic() - started)
        port = nvlink_port(device)
        with given_back(port.close, port.abandon):
            by_nvlink = _by_nvlink(ctx)
            pairs = _pairs(ctx, by_nvlink, device.simulated)
            size_bytes = _size_bytes(ctx, group, pairs)
            pairs, attached = _attach(ctx, group, port, pairs, by_nvlink, size_bytes, device.simulated)
            for fault in DATA_FAULTS:
                if fault in ctx.inject:
                    port.inject(_victim(ctx), fault)
            phases = Phases(ctx, group, port, pairs, attached, size_bytes)
            phases.in_peace(max(0.0, started + _PEACE_SHARE * group.budget_s - time.monotonic()))
            while phases.continues(started + group.budget_s):
                phases.disjoint_pairs()
                phases.all_at_once()
            coverage = _coverage(ctx, group, phases, device.simulated)
            # Nobody may give back memory that another still has mapped.
            port.detach_all()
            group.barrier()
        unproven = [pair for pair in coverage.p2p if pair.peer in by_nvlink and path_unproven(pair)]
        reasons = (
            *(
                _wrong_data(ctx.gpu.uuid, pair, phases.errors)
                for pair in coverage.p2p
                if any(pair.transfers_wrong.values())
            ),
            *_refused(ctx.gpu.uuid, [pair for pair in coverage.p2p if pair.refused_by_host]),
            *_unproven(ctx.gpu.uuid, unproven),
        )
        return CheckResult(
            name=NAME,
            gpu=ctx.gpu.uuid,
            verdict=verdict_of(reasons),
            seconds=time.monotonic() - started,
            measurements=measurements(coverage.p2p),
            coverage=coverage,
            errors=tuple(phases.errors),
            reasons=reasons,
        )

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Faults in copies from this GPU to itself: the few of a run, or all kinds."""
        return own_selftest.run(ctx)


def _alone(ctx: CheckContext, simulated: bool, seconds: float) -> CheckResult:
    """The workers of all other GPUs ended, or were through before: an attempt on one GPU has nobody to copy with."""
    assert ctx.gpu is not None
    total = len(ctx.gpus) - 1
    message = "no other GPU was in the check at the same time, so nothing was copied: test all GPUs together again"
    details: dict[str, JSON] = {"pairs_total": total, "pairs_covered": 0}
    reason = make_reason("COVERAGE_LOW", NAME, message, gpu=ctx.gpu.uuid, details=details)
    coverage = NvlinkCoverage(pairs_total=total, pairs_covered=0, simulated=simulated)
    return CheckResult(NAME, ctx.gpu.uuid, reason.severity, seconds, (), coverage, (), (reason,))


def _by_nvlink(ctx: CheckContext) -> frozenset[str]:
    """The other GPUs, where both should have NVLink to all others."""
    links, skus = node_links_of(ctx.options), load_skus().skus
    to_all = {gpu.uuid for gpu in ctx.gpus if links.of(gpu.uuid, skus.get(gpu.sku)).to_all}
    return frozenset(to_all - {str(ctx.uuid)}) if ctx.uuid in to_all else frozenset()


def _pairs(ctx: CheckContext, by_nvlink: Set[str], simulated: bool) -> dict[str, Pair]:
    assert ctx.gpu is not None
    others = [gpu.uuid for gpu in ctx.gpus if gpu.uuid != ctx.gpu.uuid]
    known = read_topology(ctx.gpu.uuid, others)
    pairs: dict[str, Pair] = {}
    for uuid in others:
        topology = known.get(uuid, PairTopology())
        path = "host memory" if simulated else topology.path or "unknown"
        pairs[uuid] = Pair.of(uuid, topology, path, expected(topology, uuid in by_nvlink, simulated))
    return pairs


def _size_bytes(ctx: CheckContext, group: Group, pairs: Mapping[str, Pair]) -> int:
    """Size of one transfer, the same for all. Over PCIe a window is reached through BAR1, which small cards have little
    of: no more than half of it is taken."""
    size_bytes = ctx.shapes["transfer_bytes"]
    aperture = None if all(pair.path in NVLINK_PATHS for pair in pairs.values()) else bar1_bytes(group.uuid)
    if aperture is not None:
        unit = PIECES * WORD_BYTES
        size_bytes = max(unit, min(size_bytes, aperture // 2 // (2 * len(pairs)) // unit * unit))
    return int(group.least(size_bytes))


def _attach(
    ctx: CheckContext,
    group: Group,
    port: NvlinkPort,
    pairs: Mapping[str, Pair],
    by_nvlink: Set[str],
    size_bytes: int,
    simulated: bool,
) -> tuple[dict[str, Pair], dict[str, tuple[str, ...]]]:
    """Map the memory of all others that can be reached: the pairs with why not, and for each GPU those whose memory it
    has mapped."""
    uuids = [gpu.uuid for gpu in ctx.gpus]
    offer: dict[str, JSON] = {}
    try:
        peers = [uuid for uuid in uuids if uuid != group.uuid and uuid in group.members]
        offer["handle"] = port.export(group.uuid, peers, size_bytes, _link_faults(ctx))
    except NvlinkUnavailable as error:
        offer = {"why": str(error), "by_host": error.by_host}
    offers = group.gather(offer)
    tried: dict[str, Pair] = {}
    for uuid, pair in pairs.items():
        theirs = offers.get(uuid)
        if not isinstance(theirs, Mapping):
            tried[uuid] = replace(pair, why="its worker ended before the copies began", worker_ended=True)
            continue
        try:
            for one in (offer, theirs):
                if "why" in one:
                    raise NvlinkUnavailable(str(one["why"]), by_host=one["by_host"] is True)
            # Memory of the host can always be reached: what NVML says of the GPUs holds for it too.
            if simulated and pair.topology.possible is False:
                raise NvlinkUnavailable("the simulated GPUs do not reach each other")
            port.attach(uuid, theirs["handle"])
            tried[uuid] = pair
        except NvlinkUnavailable as error:
            tried[uuid] = replace(
                pair,
                why=str(error) if error.by_host else why_not(pair.topology, str(error), uuid in by_nvlink),
                refused_by_host=error.by_host,
                # A limit of every GPU where many are not on switches.
                expected=pair.expected and error.code != TOO_MANY_PEERS,
            )
    reached: list[JSON] = [uuids.index(uuid) for uuid, pair in tried.items() if not pair.why]
    found = group.gather(reached)
    return tried, {uuid: tuple(uuids[index] for index in _numbers(indices)) for uuid, indices in found.items()}


def _numbers(value: JSON) -> tuple[int, ...]:
    return tuple(int(item) for item in value if isinstance(item, int)) if isinstance(value, list | tuple) else ()


def _victim(ctx: CheckContext) -> str:
    """The GPU that faults of this one are injected into: the next in the plan."""
    assert ctx.gpu is not None
    uuids = [gpu.uuid for gpu in ctx.gpus]
    return uuids[(uuids.index(ctx.gpu.uuid) + 1) % len(uuids)]


def _link_faults(ctx: CheckContext) -> LinkFaults:
    slow: dict[str, int] = {}
    if "slow_gpu" in ctx.inject:
        slow = {gpu.uuid: _SLOW_TIMES for gpu in ctx.gpus if gpu != ctx.gpu}
    elif "slow_link" in ctx.inject:
        slow = {_victim(ctx): _SLOW_TIMES}
    return LinkFaults(slow, (_victim(ctx),) if "dead_link" in ctx.inject else ())


def _coverage(ctx: CheckContext, group: Group, phases: Phases, simulated: bool) -> NvlinkCoverage:
    assert ctx.gpu is not None
    uuids = [gpu.uuid for gpu in ctx.gpus]
    shared = group.gather([[uuids.index(uuid), moved] for uuid, moved in phases.moved_bytes.items()])
    mine = uuids.index(group.uuid)
    theirs = {uuid: _moved_with(mine, entries) for uuid, entries in shared.items()}
    pairs = tuple(_ended(pair) if uuid in group.lost else pair for uuid, pair in phases.pairs.items())
    # A pair that cannot copy and need not is nothing to cover.
    wanted = [pair for pair in pairs if pair.expected or not pair.why or pair.peer in group.lost]
    nvlink, pcie = moved_bytes(pairs, theirs, phases.moved_bytes)
    return NvlinkCoverage(
        p2p=pairs,
        pairs_total=len(wanted),
        pairs_covered=sum(pair.covered for pair in wanted),
        rounds=phases.rounds,
        copies_moved=phases.copies_moved,
        copies_verified=phases.copies_verified,
        **phases.time.counted(),
        transfers_checked=sum(sum(pair.transfers_checked.values()) for pair in pairs),
        bytes_verified=phases.verified_bytes,
        pairs_at_once_bytes_per_s=phases.disjoint_rate,
        all_at_once_bytes_per_s=phases.all_rate,
        nvlink_bytes_moved=nvlink,
        pcie_bytes_moved=pcie,
        no_floor_why=node_links_of(ctx.options).why_no_floor(ctx.gpu.uuid, load_skus().skus.get(ctx.gpu.sku)),
        simulated=simulated,
    )


def _ended(pair: Pair) -> Pair:
    """A pair whose other worker ended on the way: its memory may also have gone while it was to be mapped."""
    why = pair.why or (None if pair.covered else "its worker ended before the copies were done")
    return replace(pair, worker_ended=not pair.covered, why=why)


def _moved_with(mine: int, entries: JSON) -> int:
    pairs: Any = entries if isinstance(entries, list | tuple) else ()
    return next((int(moved) for index, moved in pairs if index == mine), 0)


def _refused(gpu: str, pairs: Sequence[Pair]) -> Iterator[Reason]:
    """COVERAGE_LOW for all copies that the host does not let anybody make."""
    if pairs:
        message = f"copies with {len(pairs)} other GPUs could not be tested, which does not blame them: {pairs[0].why}"
        peers: list[JSON] = [pair.peer for pair in pairs]
        yield make_reason("COVERAGE_LOW", NAME, message, gpu=gpu, details={"peers": peers, "why": pairs[0].why})


def _unproven(gpu: str, pairs: Sequence[Pair]) -> Iterator[Reason]:
    """COVERAGE_LOW for NVLinks of which only NVML says that the copies went over them."""
    if pairs:
        best = max(rate for pair in pairs for rate in pair.rates)
        message = (
            f"copies with {len(pairs)} other GPUs reached {best / 1e9:.4g} GB/s, which PCIe can carry too, so this "
            "does not prove that NVLink works: see nvidia-smi nvlink -s and the fabric manager"
        )
        peers: list[JSON] = [pair.peer for pair in pairs]
        details: dict[str, JSON] = {"peers": peers, "best_bytes_per_s": best}
        yield make_reason("COVERAGE_LOW", NAME, message, gpu=gpu, details=details)


def _wrong_data(gpu: str, pair: Pair, errors: list[dict[str, JSON]]) -> Reason:
    """What came in was wrong. Whose fault it is shows only beside the other GPUs' results: no FAIL of this GPU."""
    first = next((entry for entry in errors if entry["peer"] == pair.peer), {})
    message = (
        f"{sum(pair.transfers_wrong.values())} transfers from {pair.peer} arrived wrong ({first.get('kind')}, first "
        f"at offset {first.get('offset_bytes')}: expected {first.get('expected')}, got {first.get('got')}); the copies "
        "of all GPUs together tell whose fault it is"
    )
    wrong: dict[str, JSON] = {str(direction): count for direction, count in pair.transfers_wrong.items()}
    details: dict[str, JSON] = {**first, "peer": pair.peer, "transfers_wrong": wrong}
    return make_reason("P2P_CORRUPTED", NAME, message, gpu=gpu, details=details, severity=Verdict.INCONCLUSIVE)
