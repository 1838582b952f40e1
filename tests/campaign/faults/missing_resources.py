"""`gpu-burnin` on a host without something, which only the workers notice.

Started as `python -m tests.campaign.faults.missing_resources WHAT run ...`: the real command with real processes,
whose workers find what MISSING says where they ask the host for it.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from unittest import mock

from gpu_burnin import run
from gpu_burnin.__main__ import main as gpu_burnin
from gpu_burnin.checks.nccl import library as nccl
from gpu_burnin.checks.nccl.cpu import CpuNccl
from gpu_burnin.checks.nvlink import check as nvlink
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.nvlink.port import NvlinkUnavailable
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.engine import worker
from gpu_burnin.engine.executor import execute
from gpu_burnin.telemetry.topology import PairTopology
from gpu_burnin.types import JSON

_MODULE = "tests.campaign.faults.missing_resources"
_WORKER = "worker"


def _no_pinning(*_: Any) -> Any:
    """RLIMIT_MEMLOCK."""
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def _no_library(*_: Any) -> Any:
    """The real search for NCCL on a host that has none."""

    def opener(path: str) -> Any:
        raise OSError(f"{path}: cannot open shared object file: No such file or directory")

    return nccl.load_library(opener)


_ATTACH = CpuNvlink.attach


def _no_way(self: CpuNvlink, uuid: str, handle: JSON) -> None:
    """A GPU reaches only itself."""
    if uuid != self._own:
        raise NvlinkUnavailable("CUDA error 217: peer access is not supported between these two devices")
    _ATTACH(self, uuid, handle)


def _between(pair: PairTopology) -> Callable[[str, Iterable[str]], dict[str, PairTopology]]:
    return lambda own, others: dict.fromkeys(others, pair)


def _pairs(**found: Any) -> tuple[Any, ...]:
    """What NVML and sysfs say of all pairs of GPUs; CUDA refuses them."""
    pair = PairTopology(path="pcie", read="ok", write="ok", **found)
    return (mock.patch.object(nvlink, "read_topology", _between(pair)), mock.patch.object(CpuNvlink, "attach", _no_way))


MISSING: Mapping[str, tuple[Any, ...]] = {
    "pinned memory": (mock.patch.object(CpuPcie, "_pin", _no_pinning),),
    "nccl": (mock.patch.object(CpuNccl, "version", _no_library),),
    "peer access, for acs": _pairs(redirecting=("0000:00:01.0",)),
    "peer access, for the iommu": _pairs(iommu=("DMA-FQ",)),
}


def main() -> int:
    """The command, or one of its workers. Command line: WHAT ARGUMENTS... or worker WHAT."""
    if sys.argv[1] == _WORKER:
        for patch in MISSING[sys.argv[2]]:
            patch.start()
        return worker.main()
    what = sys.argv.pop(1)
    command = [sys.executable, "-P", "-m", _MODULE, _WORKER, what]
    with mock.patch.object(run, "execute", partial(execute, command=command)):
        gpu_burnin()
    return 0


if __name__ == "__main__":
    sys.exit(main())
