"""The table of GPUs: which columns it has, and what each says of a GPU, so that a GPU that failed shows where."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_burnin.report.model import Report
from gpu_burnin.types import Verdict

# What is watched all the time has a column like a check: counters, samples and events, and the kernel log's XIDs.
WATCHED = "telemetry"
REASONS_OF_WATCHED = frozenset({"telemetry", "kernel_log"})
_WORST_FIRST = (Verdict.FAIL, Verdict.INCONCLUSIVE, Verdict.PASS)


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """The worst of these verdicts; None of none."""
    found = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in found), None)


def columns(report: Report) -> list[str]:
    """The checks of the node that judge single GPUs, the checks on GPUs, and what was watched meanwhile."""
    of_node = [check.name for check in report.checks if check.gpu is None]
    on_gpus = [check.name for check in report.checks if check.gpu is not None]
    missing = [gap.check for gap in report.coverage.not_run if gap.gpu is not None]
    return [*dict.fromkeys(of_node), *dict.fromkeys([*on_gpus, *missing]), WATCHED]


def verdict_on(report: Report, column: str, uuid: str) -> Verdict | None:
    """The verdict of a column on a GPU (UUID), by the results on it and on its MIG instances, and by what was found
    against them; None where it gave none.

    A check of the node passes a GPU against which it found nothing, unless it could not look at the node at all.
    """
    names = REASONS_OF_WATCHED if column == WATCHED else {column}
    against = [reason for reason in report.reasons if reason.check in names]
    gpu = report.gpu_of.get(uuid)
    own = gpu.uuids if gpu and gpu.uuid == uuid else (uuid,)
    held = [reason.severity for reason in against if reason.gpu in own]
    if column == WATCHED:
        answered = any(source.gpu == uuid and source.alive for source in report.telemetry.sources)
        return worst([*held, *([Verdict.PASS] if answered else [])])
    results = [check for check in report.checks if check.name == column]
    if any(check.gpu is None for check in results):
        of_all = [reason.severity for reason in against if reason.gpu is None]
        return worst([*held, *(of_all or [Verdict.PASS])])
    return worst([*held, *(check.verdict for check in results if check.gpu in own)])
