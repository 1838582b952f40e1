"""What earlier runs on this node say: a host that died under one, a pass of this boot, the last reasons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from gpu_burnin.api import evidence
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.engine.journal import died_during, read_journal
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import reports
from gpu_burnin.node.store import RunDirectory, Store
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.system.files import read_bytes
from gpu_burnin.types import Notice, Reason, Verdict


@dataclass(frozen=True)
class History:
    """`died`: what the run before was doing when the host went down under it, None when it did not.

    `passed_this_boot`: an earlier run of this boot passed. `last_reasons` are those of the newest report, and
    `restarted` says that it is of another boot. `unfinished`: the newest run of this boot that has begun since and left
    no verdict, such as one that was killed.
    """

    died: str | None = None
    passed_this_boot: bool = False
    last_reasons: tuple[Reason, ...] = ()
    restarted: bool = False
    unfinished: RunDirectory | None = None


def unfinished_notice(run: RunDirectory) -> Notice:
    """One sentence on a run that began and left no verdict."""
    began = run.began_at
    message = f"run {run.sequence}, which began at {began}, left no verdict: it was stopped before its end"
    return Notice("RUN_UNFINISHED", "run", message, details={"run_id": run.run_id, "began_at": began})


def read_history(store: Store, boot_id: str) -> History:
    """The history before a new run of the boot `boot_id`; files that cannot be read say nothing."""
    runs = store.runs()
    reasons, last_boot = next(filter(None, map(_reported, reversed(runs))), ((), boot_id))
    return History(
        _died(runs, boot_id),
        _passed(runs, boot_id),
        reasons,
        restarted=last_boot != boot_id,
        unfinished=_unfinished(runs, boot_id),
    )


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


def _unfinished(runs: Iterable[RunDirectory], boot_id: str) -> RunDirectory | None:
    """Of the runs that no report followed, the newest whose journal is of this boot."""
    for run in reversed(list(runs)):
        if (run.path / REPORT).exists():
            return None
        with contextlib.suppress(FileNotFoundError, ValueError):  # damaged ones are a matter of _died
            events = read_journal(run.journal)
            if events and events[-1].get("boot_id") == boot_id:
                return run
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
    except GpuBurninError:
        return None
    return None if report.coverage.injected else (report.reasons, report.host.boot_id)
