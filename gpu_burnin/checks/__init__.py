"""The checks: one file each, one Check class each, loaded lazily by name so that workers import only what they run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpu_burnin.types import JSON, CheckResult, Gpu

if TYPE_CHECKING:
    from gpu_burnin.compute.backend import Backend

# Modules under gpu_burnin.checks that hold a class named Check. Order is the order of a run.
CHECK_NAMES: tuple[str, ...] = ("state", "gemm", "hbm")
# Checks that judge the whole node in one go; the others run once for each GPU.
PER_NODE: frozenset[str] = frozenset({"state"})


@dataclass(frozen=True)
class CheckContext:
    """What a check is given.

    `gpu` is the GPU under test (None for a check of the whole node) and `gpus` all GPUs of the plan.
    `shapes` are sizes (gemm_m, gemm_n, gemm_k, hbm_bytes); `options` are the plan's free settings, such as
    `expect_gpus`. `inject` holds fault specifications meant for this check and GPU (tests and --inject only).
    `progress` sends a small mapping to the supervisor for the live display.
    """

    seed: int
    level: str
    budget_s: float
    gpus: tuple[Gpu, ...]
    gpu: Gpu | None = None
    backend: Backend | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, JSON] = field(default_factory=dict)
    inject: tuple[str, ...] = ()
    progress: Callable[[Mapping[str, JSON]], None] = lambda _: None


class Check(Protocol):
    """One check. `per_gpu` is False for a check that judges the whole node."""

    name: str
    per_gpu: bool

    def run(self, ctx: CheckContext) -> CheckResult:
        """Run within ctx.budget_s (seconds, a target) and return what was found; raise only for a broken set-up."""
        ...


class _Registry(Mapping[str, Check]):
    """Check objects by name; the module of a check is imported when it is first asked for."""

    def __getitem__(self, name: str) -> Check:
        if name not in CHECK_NAMES:
            raise KeyError(f"unknown check {name!r}: choose from {', '.join(CHECK_NAMES)}")
        check: Check = importlib.import_module(f"gpu_burnin.checks.{name}").Check()
        return check

    def __iter__(self) -> Iterator[str]:
        return iter(CHECK_NAMES)

    def __len__(self) -> int:
        return len(CHECK_NAMES)


REGISTRY: Mapping[str, Check] = _Registry()
