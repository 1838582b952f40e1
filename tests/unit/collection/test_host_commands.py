"""Commands of a host: what they give, and that they have an end."""

from __future__ import annotations

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output, run_command


def test_commands_have_an_end() -> None:
    assert run_command(["sh", "-c", "echo out; exit 3"]) == Output(3, "out\n", "")
    assert run_command(["sh", "-c", "printf '\\377'; kill -9 $$"]) == Output(-9, "\N{REPLACEMENT CHARACTER}", "")
    for command, says in ((["/none/such"], "is not installed"), (["sleep", "5"], "gave no answer in 0.1 s")):
        with pytest.raises(CommandError, match=says):
            run_command(command, 0.1)
