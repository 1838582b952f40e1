"""The CUDA C of all checks, which workers compile when they open their GPU."""

from __future__ import annotations

from gpu_burnin.checks.hbm.source import SOURCE as HBM
from gpu_burnin.checks.nccl.source import SOURCE as NCCL
from gpu_burnin.checks.nvlink.source import SOURCE as NVLINK
from gpu_burnin.checks.pcie.source import SOURCE as PCIE
from gpu_burnin.checks.sm.source import SOURCE as SM
from gpu_burnin.exact.source import SOURCE as PRODUCTS

# Those that take longest come first: workers that start at once then take the rest from each other.
SOURCES = {
    "products": PRODUCTS,
    "hbm": HBM,
    "sm": SM,
    "nccl": NCCL,
    "pcie": PCIE,
    "nvlink": NVLINK,
}
