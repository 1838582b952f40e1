"""Running the pcie check on simulated GPUs whose links are of a class of the test."""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.checks.pcie.check import Check
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.types import CheckResult
from tests.support.devices import DeviceWith
from tests.support.together_helpers import contexts, run_together


def run(count: int = 1, kind: type[CpuPcie] = CpuPcie, **changes: object) -> dict[str, CheckResult | Exception]:
    made = [replace(ctx, device=DeviceWith(pcie=kind)) for ctx in contexts(count, **changes)]  # type: ignore[arg-type]
    return run_together(Check().run, made)


def one(kind: type[CpuPcie] = CpuPcie, **changes: object) -> CheckResult:
    """The result of a single GPU."""
    result = run(1, kind, **changes)["GPU-0"]
    assert isinstance(result, CheckResult)
    return result
