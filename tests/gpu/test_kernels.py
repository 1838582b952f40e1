"""Every case of the kernels, here on a real GPU: filling, random bits, digests, Freivalds, kept results, launches."""

from __future__ import annotations

from tests.support.cuda_cases import KernelCases


class TestKernels(KernelCases):
    """All cases on the GPU."""
