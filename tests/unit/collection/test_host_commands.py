"""Commands of a host: what they give, and that they have an end."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host import commands
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import (
    CommandError,
    NotInstalledError,
    Output,
    run_command,
)


def test_what_a_command_says_and_ends_with() -> None:
    assert run_command(["sh", "-c", "echo out; exit 3"]) == Output(3, "out\n", "")
    assert run_command(["sh", "-c", "printf '\\377'; kill -9 $$"]) == Output(-9, "\N{REPLACEMENT CHARACTER}", "")


def test_a_command_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(popen(*arguments, **options))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(commands.subprocess, "Popen", start)
    with pytest.raises(CommandError, match=r"sleep gave no answer in 0\.1 s"):
        run_command(["sleep", "1000"], timeout_s=0.1)
    assert started[0].returncode == -signal.SIGKILL


def test_a_command_that_is_not_installed() -> None:
    with pytest.raises(NotInstalledError, match="no-such-program is not installed"):
        run_command(["no-such-program"])
