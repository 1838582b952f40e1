"""Running the pcie check on simulated GPUs whose links are of a class of the test."""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.checks.pcie.check import Check
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.pcie.port import PciePort
from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.types import CheckResult
from tests.support.together_helpers import contexts, run_together


class Device(CpuDevice):
    """Gives links of a class of the test."""

    def __init__(self, kind: type[CpuPcie]) -> None:
        super().__init__()
        self._kind = kind

    def host_link(self) -> PciePort:
        return self._kind()


def run(count: int = 1, kind: type[CpuPcie] = CpuPcie, **changes: object) -> dict[str, CheckResult | Exception]:
    made = [replace(ctx, device=Device(kind)) for ctx in contexts(count, **changes)]  # type: ignore[arg-type]
    return run_together(Check().run, made)


def one(kind: type[CpuPcie] = CpuPcie, **changes: object) -> CheckResult:
    """The result of a single GPU."""
    result = run(1, kind, **changes)["GPU-0"]
    assert isinstance(result, CheckResult)
    return result
