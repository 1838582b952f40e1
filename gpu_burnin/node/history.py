"""What earlier runs on this node say: a host that died under one, a pass of this boot, the last reasons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_burnin.engine.journal import died_during
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import evidence, reports
from gpu_burnin.node.store import EVIDENCE, RunDirectory, Store
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.system.codec import from_json
from gpu_burnin.system.files import read_bytes
from gpu_burnin.types import Reason, Verdict


@dataclass(frozen=True)
class History:
    """`died`: what the run before was doing when the host went down under it, None when it did not.

    `passed_this_boot`: an earlier run of this boot passed. `last_reasons` are those of the newest report, and
    `restarted` says that it is of another boot.
    """

    died: str | None = None
    passed_this_boot: bool = False
    last_reasons: tuple[Reason, ...] = ()
    restarted: bool = False


def read_history(store: Store, boot_id: str) -> History:
    """The history before a new run of the boot `boot_id`; files that cannot be read say nothing."""
    runs = store.runs()
    reasons, last_boot = next(filter(None, map(_reported, reversed(runs))), ((), boot_id))
    return History(_died(runs, boot_id), _passed(runs, boot_id), reasons, restarted=last_boot != boot_id)


def _died(runs: Iterable[RunDirectory], boot_id: str) -> str | None:
    """By the runs that no report followed: one with a report has ended, and has reported those before it."""
    for run in reversed(list(runs)):
        if (run.path / REPORT).exists():
            return None
        try:
            died = died_during(run.journal, boot_id)
        except ValueError:
            died = f"an unknown check (the journal of run {run.sequence} is damaged)"
        if died is not None:
            return died
    return None


def _passed(runs: Iterable[RunDirectory], boot_id: str) -> bool:
    for run in runs:
        with contextlib.suppress(OSError, GpuBurninError):  # a run without evidence passed nothing
            statement = evidence.parse_statement(read_bytes(run.path / EVIDENCE, follow=False))
            if statement.boot_id == boot_id and statement.verdict is Verdict.PASS:
                return True
    return False


def _reported(run: RunDirectory) -> tuple[tuple[Reason, ...], str] | None:
    """Reasons and boot id of a report; None when it cannot be read, or faults were injected: it says nothing then."""
    try:
        report = reports.load(run.path)
        reasons = tuple(from_json(Reason, reason, tolerant=True) for reason in report["reasons"])
        boot_id = str(report["host"]["boot_id"])
    except (GpuBurninError, KeyError, TypeError, ValueError):
        return None
    return None if report["coverage"]["injected"] else (reasons, boot_id)
