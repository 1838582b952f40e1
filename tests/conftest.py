"""What all tests share: signals as a terminal has them."""

from __future__ import annotations

import signal

import pytest


@pytest.fixture(scope="session", autouse=True)
def _signals_as_at_a_terminal() -> None:
    """A shell that starts the tests in the background leaves SIGINT ignored, nohup SIGHUP; programs under test inherit
    it and rightly keep to it, but then nothing could be seen of what a signal does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
