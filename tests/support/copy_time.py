"""Time of copies between GPUs on the CPU device, which passes by the copies alone: a slow host makes none slow."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.checks.nvlink import cpu as nvlink_cpu
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from tests.support.clocks import ThreadClock, use

_PIECE_S = 0.001


def own_copy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece takes 1 ms of its thread's processor time, whatever else this machine does."""
    clock, copy = ThreadClock(0.0), CpuNvlink._copy

    def timed(self: CpuNvlink, *arguments: Any) -> None:
        copy(self, *arguments)
        clock.sleep(_PIECE_S)

    monkeypatch.setattr(CpuNvlink, "_copy", timed)
    use(monkeypatch, clock, nvlink_cpu)
