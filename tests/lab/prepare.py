"""What a lab needs before its hosts can start: the binaries and, made beside them, the hosts' root file system."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_burnin.fleet.mirror.commands import end, start
from gpu_burnin.fleet.mirror.progress import Progress

from .binaries import ensure_binaries
from .error import LabError
from .image import STAGE, image_stages
from .paths import REPOSITORY
from .preparing import preparing


def prepare(progress: Progress | None = None) -> None:
    """Have both in the cache. Raises GpuBurninError when one of them cannot be made; the other is ended then."""
    with preparing(progress) as shown, _image_beside(shown):
        ensure_binaries(shown)


@contextmanager
def _image_beside(progress: Progress) -> Iterator[None]:
    """Make the root file system, if there is none, while the block runs: of its time more than a half is waiting.

    It is a process of its own, which holds the lock of what it makes no longer than it makes it.
    """
    if not image_stages():
        yield
        return
    with tempfile.TemporaryFile("w+") as said:
        process = start([sys.executable, "-m", "tests.lab", "image"], cwd=REPOSITORY, said=said)
        try:
            progress.beside(STAGE, process.poll)
            yield
            if process.poll() is None:
                progress.stage(STAGE)
            if process.wait() != 0:
                said.seek(0)
                raise LabError(_reason(said.read(), process.returncode))
        finally:
            end(process)


def _reason(said: str, rc: int) -> str:
    """Why it failed: its own sentence, where it came to say one."""
    last = said.strip().rpartition("\n")[2]
    if last.startswith("lab: "):
        return last.removeprefix("lab: ")
    return f"could not {STAGE}: it ended with exit code {rc}: {last or 'it said nothing'}"
