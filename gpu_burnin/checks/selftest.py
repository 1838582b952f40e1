"""What self-tests share: how a result is made, and the table of what was seen. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_burnin.types import Reason, SelftestResult

if TYPE_CHECKING:
    from gpu_burnin.checks import CheckContext

SCOPE_DEVICE = "device buffers"
SCOPE_CPU = "detector logic only"


def injected(
    ctx: CheckContext, check: str, fault: str, detected: bool, latency_s: float, changed_bits: int | None = None
) -> SelftestResult:
    """The result of one injected fault. `fault` is its name, then after a space the part that had it ("nan bf16").

    The scope says what a detection proves: on a simulated device no more than the detector's logic.
    """
    return SelftestResult(
        fault=fault,
        check=check,
        gpu=ctx.uuid,
        injected=True,
        detected=detected,
        latency_s=latency_s,
        scope=_scope(ctx),
        changed_bits=changed_bits,
    )


def hindered(ctx: CheckContext, check: str, fault: str, real: Reason, beside: bool = False) -> SelftestResult:
    """The result where what came before the injection was wrong already, for which `real` is the reason; or, `beside`
    an injected fault, what that fault did not touch.

    A detector that always reports proves nothing, but its report counts against the GPU: the right result was known,
    and nothing had been injected there.
    """
    when = "beside the injected fault" if beside else "with no fault injected yet"
    said = replace(
        real,
        message=f"in the self-test, {when}: {real.message}",
        details={**real.details, "phase": "self-test"},
    )
    return SelftestResult(fault, check, ctx.uuid, False, False, 0.0, _scope(ctx), real=said)


def _scope(ctx: CheckContext) -> str:
    assert ctx.device is not None
    return SCOPE_CPU if ctx.device.simulated else SCOPE_DEVICE


@dataclass(frozen=True)
class Sensitivity:
    """What the detectors of one part of a check (a precision, a kind of kernel) saw, over all GPUs.

    `smallest_bits` is the size of the smallest fault that was seen wherever it was injected, None where no fault
    has a size. `slowest_s` is the longest time from a fault to its detection, in seconds. `missed` are names of
    faults that were not seen somewhere.
    """

    check: str
    part: str
    injected: int
    detected: int
    smallest_bits: int | None
    slowest_s: float
    missed: tuple[str, ...]


def sensitivity(results: Iterable[SelftestResult]) -> tuple[Sensitivity, ...]:
    """One row for each check and part, in the order in which they first come."""
    rows: dict[tuple[str, str], list[SelftestResult]] = {}
    for result in results:
        _, _, rest = result.fault.partition(" ")
        # What could not be injected at all has a sentence in the place of its part.
        part = rest.split(" ")[0] if result.injected else ""
        rows.setdefault((result.check, part), []).append(result)
    return tuple(_row(check, part, found) for (check, part), found in rows.items())


def _row(check: str, part: str, found: list[SelftestResult]) -> Sensitivity:
    faults: dict[str, list[SelftestResult]] = {}
    for result in found:
        faults.setdefault(result.fault, []).append(result)
    seen = {name: all(r.injected and r.detected for r in results) for name, results in faults.items()}
    sizes = [
        max(size for result in results if (size := result.changed_bits) is not None)
        for name, results in faults.items()
        if seen[name] and any(result.changed_bits is not None for result in results)
    ]
    return Sensitivity(
        check=check,
        part=part,
        injected=sum(result.injected for result in found),
        detected=sum(result.detected for result in found),
        smallest_bits=min(sizes, default=None),
        slowest_s=max((result.latency_s for result in found if result.detected), default=0.0),
        missed=tuple(name for name in faults if not seen[name]),
    )
