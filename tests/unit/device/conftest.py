"""What the tests of the device share: the real compiler, where it is installed."""

from __future__ import annotations

import pytest

from gpu_burnin.device import nvrtc
from gpu_burnin.device.nvrtc import Nvrtc


@pytest.fixture(scope="session")
def compiler() -> Nvrtc:
    """The compiler of the installed wheel."""
    for major in (13, 12):
        if len(nvrtc.library_paths(major)) > 1:
            return Nvrtc(nvrtc.load_library(major))
    pytest.skip("no nvidia-cuda-nvrtc wheel is installed")
