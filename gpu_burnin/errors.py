"""The error every command shows as one sentence. Standard library only."""

from __future__ import annotations

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3


class GpuBurninError(Exception):
    """Something the user can act on: one sentence that says what is wrong, where, and what to do.

    `exit_code` is what the command line returns: 2 (usage or configuration) unless given. `reason_code` is the code
    (reasons.yaml) that a check which ended so is judged by; None for one that could not be carried out.
    """

    reason_code: str | None = None

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def install_hint(extra: str) -> str:
    """The command that installs an extra of this distribution. From no index: the name there is not ours."""
    return f"pip install '.[{extra}]' in a checkout (of a release: 'FILE.whl[{extra}]')"
