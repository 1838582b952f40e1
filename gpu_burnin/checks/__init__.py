"""The checks: a folder each, which brings everything of its own; loaded by name, so that workers import what they run.

A check is added by its folder and one row in CHECKS.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpu_burnin.checks.spec import CheckSpec
from gpu_burnin.types import JSON, CheckResult, Coverage, Gpu, SelftestResult

if TYPE_CHECKING:
    from gpu_burnin.device.port import Device


# The checks, in the order of a run: a folder of this package each, which says the rest of itself (SPEC).
CHECKS: Mapping[str, CheckSpec] = {
    name: importlib.import_module(f"gpu_burnin.checks.{name}").SPEC
    for name in (
        "state",
        "sm",
        "gemm",
        "hbm",
        "pcie",
        "nvlink",
        "nccl",
        "power",
        "dcgm",
    )
}
CHECK_NAMES: tuple[str, ...] = tuple(CHECKS)
# The checks of a run that names none.
USUAL_CHECKS: tuple[str, ...] = tuple(name for name, row in CHECKS.items() if not row.optional)
# Checks whose detectors have to see injected faults in each run.
SELFTESTED: frozenset[str] = frozenset(name for name, row in CHECKS.items() if row.selftested)


@dataclass(frozen=True)
class CheckContext:
    """What a check is given.

    `budget_s` (seconds) is decided by the supervisor when the check starts; `late_s` seconds after it the worker is
    ended as hung. `gpu` is the GPU under test (None for a check of the whole node) and `gpus` all GPUs of the plan; of
    a GPU in MIG mode its instances are in its place, but for a check of the node.
    `shapes` are sizes (gemm_m, gemm_n, gemm_k, hbm_bytes); `options` are the plan's free settings, such as `expect`.
    `inject` holds fault specifications meant for this check and GPU (tests and --inject only). `selftest_full` asks a
    self-test for the whole table of faults instead of the few of a run.

    `progress` sends a small mapping to the supervisor for the live display, all keys optional: phase (text), rate
    (float) with rate_unit ("TFLOP/s", "TOP/s", "GB/s"), errors (int), done (0 to 1), and waited_s (float): seconds in
    which the check waited for somebody outside, which are not of the time it may take. `exchange` is for a check
    that runs on all GPUs together: it gives JSON values to the other workers in the same check and returns those
    of all that are still in it, by UUID, when the last has called.
    """

    seed: int
    level: str
    budget_s: float
    gpus: tuple[Gpu, ...]
    late_s: float = 60.0
    gpu: Gpu | None = None
    device: Device | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, JSON] = field(default_factory=dict)
    inject: tuple[str, ...] = ()
    selftest_full: bool = False
    progress: Callable[[Mapping[str, JSON]], None] = lambda _: None
    exchange: Callable[[JSON], Mapping[str, JSON]] = lambda _: {}

    @property
    def uuid(self) -> str | None:
        """UUID of the GPU under test; None for a check of the whole node."""
        return self.gpu.uuid if self.gpu else None


def needed_device(ctx: CheckContext, check: str) -> Device:
    """The device, for a check that computes. Raises DeviceError without one."""
    if ctx.device is None:
        from gpu_burnin.device.port import DeviceError

        raise DeviceError(f"the {check} check needs a device: this is a fault of the caller")
    return ctx.device


def done_share(spent_s: float, budget_s: float) -> float:
    """`done` of CheckContext.progress: the part of a budget that is spent."""
    return min(1.0, spent_s / budget_s) if budget_s > 0 else 1.0


class Check(Protocol):
    """One check."""

    name: str

    def run(self, ctx: CheckContext) -> CheckResult:
        """Run within ctx.budget_s (seconds, a target) and return what was found; raise only for a broken set-up."""
        ...

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Inject faults below the check's own detectors and tell which were seen; () where it has no detectors."""
        ...


def coverage_class(name: str) -> type[Coverage]:
    """The class of what a check covers, imported when it is first asked for. Raises KeyError for an unknown check."""
    if name not in CHECKS:
        raise KeyError(f"unknown check {name!r}: choose from {', '.join(CHECKS)}")
    module = importlib.import_module(f"gpu_burnin.checks.{name}.result")
    found: type[Coverage] = getattr(module, f"{name.capitalize()}Coverage")
    return found


class _Registry(Mapping[str, Check]):
    """Check objects by name; the module of a check is imported when it is first asked for."""

    def __getitem__(self, name: str) -> Check:
        if name not in CHECK_NAMES:
            raise KeyError(f"unknown check {name!r}: choose from {', '.join(CHECK_NAMES)}")
        check: Check = importlib.import_module(f"gpu_burnin.checks.{name}.check").Check()
        return check

    def __iter__(self) -> Iterator[str]:
        return iter(CHECK_NAMES)

    def __len__(self) -> int:
        return len(CHECK_NAMES)


REGISTRY: Mapping[str, Check] = _Registry()
