"""The nccl check: collective operations of all GPUs of the node, every result compared on every rank.

Bus bandwidth is that of NVIDIA/nccl-tests (doc/PERFORMANCE.md): size over time, times 2 (n - 1) / n for all_reduce and
(n - 1) / n for the others, with the size of the whole array. Unlike there, each result is compared before the next
operation comes over it; that is not in the time. A single GPU has no bus between ranks: its rates have names of their
own and are judged by no floor.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpu_burnin.checks import CheckContext, needed_device
from gpu_burnin.checks.nccl.judge import (
    Blame,
    algorithm_reasons,
    blame,
    broken_reason,
    data_reasons,
    late_rank,
    library_reasons,
    multicast_expected,
    transport_reasons,
    vias,
    why_no_floor,
)
from gpu_burnin.checks.nccl.operations import KINDS, Operation, Outcome, bus_factor
from gpu_burnin.checks.nccl.port import Transports, nccl_port
from gpu_burnin.checks.nccl.result import Curve, NcclCoverage
from gpu_burnin.checks.nccl.session import Session, Stopped, settled, wrong_elements
from gpu_burnin.checks.nccl.tally import Tally
from gpu_burnin.checks.selftest import hindered, injected
from gpu_burnin.checks.together import Group
from gpu_burnin.device.port import Device, DeviceError, given_back
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.hardware.skus import load_skus
from gpu_burnin.settings.expectations import expectations_of
from gpu_burnin.telemetry.node_links import node_links_of
from gpu_burnin.types import JSON, CheckResult, Gpu, Measurement, Reason, SelftestResult, verdict_of

# The verifier looks at each element alone, so a small buffer shows the same.
_SELFTEST_BYTES = 64 << 10
# Over PCIe more takes long and shows the same.
_MOST_BYTES_WITHOUT_NVLINK = 1 << 30


class Check:
    """Collectives of all GPUs together."""

    name = "nccl"

    def run(self, ctx: CheckContext) -> CheckResult:
        """All ranks run the same operations; each compares its own results and tells the others how it went."""
        device, gpu = _needed(ctx)
        started = time.monotonic()
        group = Group(ctx)
        port = nccl_port(device)
        session = Session(ctx, group, port)
        members, version, found = group.members, "", _Found(ctx, gpu, group.members)
        with given_back(port.close):
            try:
                hellos = session.hello()
                version = hellos[gpu.uuid].version or ""
                found.reasons += library_reasons(gpu.uuid, hellos, expectations_of(ctx.options).nccl)
                if not found.reasons:
                    session.run(ctx.shapes["collective_bytes"] if found.nvlink else _MOST_BYTES_WITHOUT_NVLINK)
            except Stopped as stopped:
                reason = broken_reason(gpu.uuid, found.names, stopped.lost, stopped.reports, stopped.what)
                found.reasons += (reason,) if reason else ()
        found.judge(session.tally, group)
        return CheckResult(
            name=self.name,
            gpu=gpu.uuid,
            verdict=verdict_of(found.reasons),
            seconds=time.monotonic() - started,
            measurements=tuple(_measurements(session.tally, len(members))),
            coverage=_coverage(session, ctx, group, members, found, version),
            errors=tuple(session.tally.errors),
            reasons=tuple(found.reasons),
        )

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """A wrong element and a lost result in a buffer of this GPU; no library and no other rank takes part."""
        device, gpu = _needed(ctx)
        port = nccl_port(device)
        results: list[SelftestResult] = []
        try:
            for index, (part, op) in enumerate(settled(port, _SELFTEST_BYTES, ctx.seed)):
                if not ctx.selftest_full and index % (len(KINDS) + 1):
                    continue
                # Without a fault first: where an element is wrong, the fault is real.
                if (clean := port.verify(op)).wrong:
                    results.append(hindered(ctx, self.name, f"wrong_element {part}", _real(gpu, op, clean)))
                    break
                place = (ctx.seed + index) % op.recv_elements
                port.flip(op, place, 1)
                began = time.perf_counter()
                seen = port.verify(op)
                latency_s = time.perf_counter() - began
                hit = seen.wrong == 1 and seen.recorded[0].position == place
                results.append(injected(ctx, self.name, f"wrong_element {part}", hit, latency_s, changed_bits=1))
                port.forget(op)
                began = time.perf_counter()
                # An element that is -1 by chance looks like one that was never written: all but a few must be seen.
                hit = port.verify(op).wrong > 0.99 * op.recv_elements
                results.append(injected(ctx, self.name, f"stale {part}", hit, time.perf_counter() - began))
        finally:
            port.close()
        return tuple(results)


class _Found:
    """The reasons of one rank, as they come up."""

    def __init__(self, ctx: CheckContext, gpu: Gpu, members: tuple[str, ...]) -> None:
        self._ctx, self._gpu, self._members = ctx, gpu, members
        skus, links = load_skus().skus, node_links_of(ctx.options)
        ranks = {other.uuid: skus.get(other.sku) for other in ctx.gpus if other.uuid in members}
        self.names = {other.uuid: other.label for other in ctx.gpus}
        self.no_floor_why = links.why_no_floor(gpu.uuid, skus.get(gpu.sku))
        self.nvlink, self._multicast = links.joined(ranks), multicast_expected(ranks, links)
        self.reasons: list[Reason] = []

    def judge(self, tally: Tally, group: Group) -> None:
        """What was counted and read back; the last exchange tells who else got wrong elements, and from whom."""
        if set(group.members) == set(self._members):
            answers = group.gather({"wrong": tally.wrong, "sources": [*tally.sources]})
            rows = {uuid: row for uuid, row in answers.items() if isinstance(row, Mapping)}
        else:
            rows = {self._gpu.uuid: {"wrong": tally.wrong, "sources": [*tally.sources]}}
        wrong = {uuid: int(str(row["wrong"])) for uuid, row in rows.items()}
        sources = {uuid: [str(one) for one in _list(row["sources"])] for uuid, row in rows.items()}
        first = tally.errors[0] if tally.errors else None
        self.reasons += data_reasons(self._gpu, self.names, wrong, blame(wrong, sources), first)
        for algorithm, transports in tally.transports.items():
            self.reasons += self._transport(algorithm, transports)
        self.reasons += self._coverage()

    def _transport(self, algorithm: str, transports: Transports) -> Iterator[Reason]:
        if self._ctx.device is None or self._ctx.device.simulated:
            return
        ranks = len(self._members)
        # Only the first communicator is of NCCL's own choosing.
        multicast = algorithm == "default" and self._multicast
        yield from transport_reasons(
            self._gpu.uuid, algorithm, transports, ranks=ranks, nvlink=self.nvlink, multicast=multicast
        )
        if ranks > 1:
            yield from algorithm_reasons(self._gpu.uuid, algorithm, transports)

    def _coverage(self) -> Iterator[Reason]:
        missing = [gpu for gpu in self._ctx.gpus if gpu.uuid not in self._members]
        if missing:
            listed: list[JSON] = [gpu.uuid for gpu in missing]
            message = (
                f"{len(self._members)} of {len(self._ctx.gpus)} GPUs took part; missing: "
                f"{', '.join(gpu.label for gpu in missing)}: see their own reasons, and test again"
            )
            yield make_reason("COVERAGE_LOW", Check.name, message, gpu=self._gpu.uuid, details={"missing": listed})


def _needed(ctx: CheckContext) -> tuple[Device, Gpu]:
    device = needed_device(ctx, Check.name)
    if ctx.gpu is None:
        raise DeviceError("the nccl check needs a GPU: this is a fault of the caller")
    return device, ctx.gpu


def _real(gpu: Gpu, op: Operation, found: Outcome) -> Reason:
    """NCCL_DATA of the one GPU that had a part in an operation with itself."""
    first = next(iter(wrong_elements(op, found.recorded, [gpu.uuid])), None)
    at_fault = Blame("gpu", (gpu.uuid,))
    return next(data_reasons(gpu, {gpu.uuid: gpu.label}, {gpu.uuid: found.wrong}, at_fault, first))


def _list(value: JSON) -> list[JSON]:
    return list(value) if isinstance(value, list | tuple) else []


def _busbw(collective: str, size_bytes: int, seconds: float, ranks: int) -> float:
    """Bytes per second; of one rank, which has no bus, the algorithm bandwidth."""
    return size_bytes / max(seconds, 1e-9) * (bus_factor(collective, ranks) if ranks > 1 else 1.0)


def _measurements(tally: Tally, ranks: int) -> Iterator[Measurement]:
    """Each collective at its best size, with the first algorithm: the library's own choice."""
    first = tally.curves[0].algorithm if tally.curves else ""
    for curve in tally.curves:
        if curve.algorithm != first:
            continue
        best = max(_busbw(curve.collective, point.size_bytes, point.seconds, ranks) for point in curve.points)
        name = f"{curve.collective}_busbw" if ranks > 1 else f"{curve.collective}_one_rank"
        yield Measurement(name, best, "B/s")


def _coverage(
    session: Session, ctx: CheckContext, group: Group, members: tuple[str, ...], found: _Found, version: str
) -> NcclCoverage:
    tally, ranks, wire_bytes = session.tally, len(members), round(session.tally.wire_bytes)
    default = next(iter(tally.transports.values()), Transports())
    return NcclCoverage(
        ranks=ranks,
        gpus_in_plan=len(ctx.gpus),
        curves=tuple(_curves(tally, ranks)),
        algorithms_used=default.algorithms,
        nvls_multicast=default.multicast,
        types=tuple(tally.kinds),
        operations=tally.launched,
        operations_verified=tally.operations,
        elements_verified=tally.elements,
        wrong_elements=tally.wrong,
        **tally.time.counted(),
        latest_gpu=late_rank(tally.durations),
        bytes_moved=tally.memory_bytes,
        nvlink_bytes_moved=wire_bytes if found.nvlink else None,
        pcie_bytes_moved=None if found.nvlink else wire_bytes,
        why_no_busbw=None if ranks > 1 else "one rank: nothing went from one GPU to another",
        no_floor_why=found.no_floor_why or why_no_floor(ranks, session.largest_bytes),
        version=version,
        lost=group.lost,
        simulated=ctx.device is None or ctx.device.simulated,
    )


def _curves(tally: Tally, ranks: int) -> Iterator[Curve]:
    for curve in tally.curves:
        points = []
        for point in curve.points:
            rate = _busbw(curve.collective, point.size_bytes, point.seconds, ranks)
            told = replace(point, busbw_bytes_per_s=rate) if ranks > 1 else replace(point, algbw_bytes_per_s=rate)
            points.append(told)
        yield replace(curve, transport=vias(tally.transports.get(curve.algorithm, Transports())), points=tuple(points))
    for algorithm, why in tally.left_out.items():
        yield Curve(collective="all_reduce", algorithm=algorithm, why=why)
