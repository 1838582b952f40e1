"""SIGTERM to a service that is the first process of its container."""

from __future__ import annotations

import os
import signal

import pytest

from gpu_burnin.cli.muster.termination import end_with_sigterm


def test_sigterm_ends_it_with_0() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        end_with_sigterm()
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        assert ended.value.code == 0
    finally:
        signal.signal(signal.SIGTERM, before)
