"""What a burn-in says of itself in the systemd journal, where a unit of systemd runs it: its beginning and its end."""

from __future__ import annotations

from collections.abc import Callable

from gpu_burnin.report.model import Report
from gpu_burnin.system import journald
from gpu_burnin.system.journald import Entry, Priority
from gpu_burnin.types import Verdict

_PROGRAM = "gpu-burnin"


def _native(entry: Entry) -> bool:
    return journald.is_unit() and journald.send(entry)


def began(node: str, run: str, level: str, give: Callable[[Entry], bool] = _native) -> None:
    """A run has begun."""
    give(Entry(f"burn-in {run} ({level}) began", _PROGRAM, kind="run_began", node=node, run=run, level=level))


def ended(report: Report, give: Callable[[Entry], bool] = _native) -> None:
    """A run has its verdict."""
    codes = [*dict.fromkeys(reason.code for reason in report.reasons)]
    simulated = " on simulated hardware" if report.simulated else ""
    why = f": {', '.join(codes)}" if codes else ""
    message = f"burn-in {report.run_id} ({report.level}) ended: {report.verdict}{simulated}{why}"
    priority = {Verdict.PASS: Priority.INFO, Verdict.FAIL: Priority.ERROR}.get(report.verdict, Priority.WARNING)
    give(
        Entry(
            message, _PROGRAM, priority, "run_ended", report.node, report.run_id,
            " ".join(codes), report.verdict, report.level,
        )
    )  # fmt: skip
