"""The progress of preparing a lab, and how long its runs are expected to take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpu_burnin.fleet.mirror.progress import Progress

DURATIONS = Path(__file__).with_name("durations.json")


@contextmanager
def preparing(progress: Progress | None = None) -> Iterator[Progress]:
    """The progress of preparing a lab: the one that is shown already, or a new one."""
    if progress is not None:
        yield progress
        return
    with Progress("prepare", each=True, also=DURATIONS) as fresh:
        yield fresh
