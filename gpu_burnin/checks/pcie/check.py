"""The pcie check: copies between host memory and each GPU, alone in peace and all at once, verified word by word."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from gpu_burnin.checks import CheckContext, needed_device
from gpu_burnin.checks.pcie.numa import is_virtual, numa_nodes
from gpu_burnin.checks.pcie.phases import SMALL_BYTES, Session, Tally
from gpu_burnin.checks.pcie.port import (
    FAULTS,
    MOST_COPY_BYTES,
    Direction,
    Kind,
    PciePort,
    Verified,
    not_planted,
    pcie_port,
)
from gpu_burnin.checks.pcie.result import HostSide, LinkUnderLoad, PcieCoverage, PinnedMemory
from gpu_burnin.checks.selftest import hindered, injected
from gpu_burnin.checks.together import Group
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.telemetry.pci import read_link
from gpu_burnin.types import JSON, CheckResult, Reason, SelftestResult, verdict_of

# The self-test uses short copies: a wrong word is seen the same way in a short one.
_SELFTEST_BYTES = 64 << 10
# The faults of a run; all of them with ctx.selftest_full.
_SELFTEST_FAULTS = (Kind.CORRUPTED, Kind.DROPPED)


class Check:
    """Turns of one GPU after the other, then all together, until the budget is spent."""

    name = "pcie"

    def run(self, ctx: CheckContext) -> CheckResult:
        """One round at least. Raises DeviceError without a device, or when (pinned) memory is refused."""
        device = needed_device(ctx, self.name)
        started = time.monotonic()
        group = Group(ctx)
        with closing(pcie_port(device)) as link, closing(pcie_port(device)) as small:
            geometry = link.open(min(ctx.shapes["transfer_bytes"], MOST_COPY_BYTES))
            small.open(SMALL_BYTES)
            session = Session(ctx, group, link, small)
            session.run(geometry)
            pinned, simulated = link.pinned(), link.simulated
        tally = session.tally
        reasons = tuple(_reasons(group.uuid, tally))
        return CheckResult(
            name=self.name,
            gpu=group.uuid,
            verdict=verdict_of(reasons),
            seconds=time.monotonic() - started,
            measurements=tally.measurements(),
            coverage=_coverage(ctx, tally, pinned, simulated),
            errors=tuple(wrong.to_json() for wrong in tally.errors),
            reasons=reasons,
            series=tally.series(),
        )

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Spoil one copy in each direction with each fault, which must be seen, with its kind."""
        if ctx.device is None:
            return ()
        with closing(pcie_port(ctx.device)) as link:
            slots = link.open(_SELFTEST_BYTES).slots
            return tuple(_selftest(ctx, link, slots))


def _selftest(ctx: CheckContext, link: PciePort, slots: int) -> Iterator[SelftestResult]:
    directions: tuple[Direction, ...] = ("h2d", "d2h")
    for fault in FAULTS if ctx.selftest_full else _SELFTEST_FAULTS:
        link.fill(ctx.seed)
        # Copies without a fault first: where one is wrong, the fault is real.
        tally = Tally()
        for direction in directions:
            tally.saw(_batch(link, direction, slots))
        if real := next(_reasons(ctx.uuid, tally), None):
            yield hindered(ctx, "pcie", str(fault), real)
            return
        link.inject(fault, ctx.seed)
        for direction in directions:
            started = time.perf_counter()
            found = _batch(link, direction, slots)
            latency_s = time.perf_counter() - started
            beside = Tally()
            beside.saw(replace(found, wrong=not_planted(link.planted(), found)))
            if real := next(_reasons(ctx.uuid, beside), None):
                yield hindered(ctx, "pcie", f"{fault} {direction}", real, beside=True)
                return
            seen = bool(found.wrong) and all(one.kind is fault for one in found.wrong)
            bits = 1 if fault is Kind.CORRUPTED else None
            yield injected(ctx, "pcie", f"{fault} {direction}", seen, latency_s, bits)


def _batch(link: PciePort, direction: Direction, copies: int) -> Verified:
    link.begin(direction, copies)
    link.finish()
    return link.verify()


def _reasons(gpu: str | None, tally: Tally) -> Iterator[Reason]:
    if not tally.wrong:
        return
    first = tally.errors[0].to_json()
    counted = tally.wrong - tally.kinds.total()
    kinds = ", ".join(
        [*(f"{count} {kind}" for kind, count in sorted(tally.kinds.items())), *([f"{counted} counted"] * bool(counted))]
    )
    ways = " and ".join(sorted(tally.wrong_by_direction))
    message = (
        f"{tally.wrong} of {tally.verified.copies} verified copies over PCIe arrived wrong ({kinds}; {ways}), first "
        f"copy {first['copy']} {first['direction']} at offset {first['offset_bytes']}: expected {first['expected']}, "
        f"got {first['got']}"
    )
    details: dict[str, JSON] = {
        **first,
        "wrong_copies": tally.wrong,
        "kinds": dict(tally.kinds),
        "directions": dict(tally.wrong_by_direction),
    }
    yield make_reason("PCIE_DATA", "pcie", message, gpu=gpu, details=details)


def _coverage(ctx: CheckContext, tally: Tally, pinned: PinnedMemory, simulated: bool) -> PcieCoverage:
    kernel = None if simulated or ctx.gpu is None else read_link(ctx.gpu.pci_bus_id)
    link = (
        None
        if kernel is None
        else LinkUnderLoad(
            tally.generation,
            tally.width,
            kernel.max_generation,
            kernel.max_width,
            kernel.host_max_generation,
            kernel.host_max_width,
        )
    )
    return PcieCoverage(
        link=link,
        host=HostSide(numa_nodes(), is_virtual()),
        transfer_bytes=min(ctx.shapes["transfer_bytes"], MOST_COPY_BYTES),
        small_copy_bytes=SMALL_BYTES,
        copies_moved=tally.copies,
        copies_verified=tally.verified.copies,
        bytes_verified=tally.verified.bytes,
        pcie_bytes_moved=tally.bytes,
        wrong_copies=tally.wrong,
        **tally.time.counted(),
        rounds=tally.rounds,
        gpus_at_once=tally.gpus_at_once,
        simulated=simulated,
        **vars(pinned),
    )
