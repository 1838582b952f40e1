"""Which pass stands: a test of an idle node may be of a lower level than the one before it, which then stands too."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_burnin.api import evidence
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.store import RunDirectory, Store
from gpu_burnin.system.files import read_bytes
from gpu_burnin.types import Verdict


@dataclass(frozen=True)
class Pass:
    """A run that passed, and its level."""

    run: RunDirectory
    level: str

    @property
    def rank(self) -> int:
        """How much the level looks at."""
        return LEVEL_NAMES.index(self.level)


def with_evidence(store: Store) -> list[RunDirectory]:
    """The runs that have left evidence, the newest first."""
    return [run for run in reversed(store.runs()) if os.path.lexists(run.path / EVIDENCE)]


def deepest(newest_first: Iterable[RunDirectory]) -> Pass | None:
    """Of the passes in a row that end with the newest evidence, the newest of the deepest level; None for no pass.

    All are of the boot and the hardware of the newest one. Signatures are not looked at: the gate does that.
    """
    found: list[Pass] = []
    of: tuple[str, str, bool] | None = None
    for run in newest_first:
        try:
            statement = evidence.parse_statement(read_bytes(run.path / EVIDENCE, follow=False))
        except (OSError, GpuBurninError):
            break
        what = statement.boot_id, statement.hardware_sha256, statement.simulated
        if statement.verdict is not Verdict.PASS or statement.level not in LEVEL_NAMES or what != (of or what):
            break
        of = what
        found.append(Pass(run, statement.level))
    return max(found, key=lambda one: one.rank, default=None)
