"""What the controller's reports say of a node that the cluster never heard of: its burn-in did not pass."""

from __future__ import annotations

from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import reports
from gpu_burnin.node.report_head import read_parts
from gpu_burnin.types import Verdict


def newest_of(folder: Path, node: str) -> tuple[str, str, str] | None:
    """Verdict, code and message of a host's newest report, None for a PASS and where there is none to be read."""
    try:
        path = reports.newest_of_host(folder / node)
        found = read_parts(path, ("reasons",)) if path is not None else None
    except (OSError, GpuBurninError):
        return None
    if found is None or found.verdict is Verdict.PASS:
        return None
    first = next(iter(found.reasons), None)
    return str(found.verdict), first.code if first else "", first.message if first else ""
