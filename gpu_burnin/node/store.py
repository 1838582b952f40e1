"""The state directory on a node: lock, sequence, runs, latest, revoked. Standard library only.

The file `sequence` holds the number of the newest run that has begun. Only that run counts for the node: where it left
no evidence (it is under way, it was killed, the disk failed), nothing older counts instead. A run with injected
faults never counts for the node, and does not begin in this sense. The file `sequence-floor` holds the highest number
that the cluster knows of this node, where that is more: numbers go on above it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.api.run_files import BEGUN, EVIDENCE, JOURNAL, MAX_SEQUENCE
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.files import fsync_directory, read_text, replace_symlink, write_atomic
from gpu_burnin.system.locks import lock
from gpu_burnin.system.own_name import host_name

KEEP_RUNS = 50
# Where the workers of a run share compiled kernels while it lasts.
KERNEL_DIR = "kernels"
# Where a run asks for a grant of its power waves.
POWER_GRANT_DIR = "power_grant"
# The agent holds the lock for a moment, to sign a revocation.
_LOCK_WAIT_S = 2.0
# A name made by Store.new_run: UTC time, then the sequence. Sorting is by sequence, since clocks step back.
_RUN_ID = re.compile(r"\d{8}T\d{6}Z-(\d{6,})")
_FLOOR = "sequence-floor"


def is_run_id(name: str) -> bool:
    """Whether Store.new_run makes such names."""
    return bool(_RUN_ID.fullmatch(name))


class NoResult(GpuBurninError):
    """The run that counts for the node has left no evidence, or none has begun; one clause that says which.

    `run` is its number, 0 where none has begun. Exit code 1 then, else 3: its result is not known.
    """

    def __init__(self, message: str, run: int) -> None:
        super().__init__(message, EXIT_INCONCLUSIVE if run else EXIT_FAIL)
        self.run = run


@dataclass(frozen=True)
class RunDirectory:
    """One run's directory under runs/."""

    run_id: str
    sequence: int
    path: Path

    @property
    def journal(self) -> Path:
        """Where this run writes its journal."""
        return self.path / JOURNAL

    @property
    def began_at(self) -> str:
        """When it began by the host's clock, as its name has it: RFC 3339 UTC."""
        return rfc3339(datetime.strptime(self.run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC))


class Store:
    """The state directory. Only `locked()` may be used by a run; reading needs no lock."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def runs_dir(self) -> Path:
        """Where the runs are."""
        return self.root / "runs"

    @property
    def latest(self) -> Path:
        """The symbolic link to the newest finished run."""
        return self.root / "latest"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the one lock of this node for a run.

        Makes the directory (0700) when missing, and leaves the mode of one that is there (it may be /tmp).
        Raises GpuBurninError (exit 2) when another run holds the lock, also after a moment, or the directory cannot be
        made.
        The kernel drops the lock when the process ends, however it ends.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.runs_dir.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise GpuBurninError(
                f"{host_name()}: cannot use the state directory {self.root} ({error.strerror}); "
                "give --state-dir a directory that can be written, such as /tmp/gpu-burnin, or run as root"
            ) from error
        try:
            try:
                lock(fd, _LOCK_WAIT_S)
            except BlockingIOError as error:
                holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                raise GpuBurninError(
                    f"{host_name()}: another gpu-burnin run (pid {holder}) holds {self.root}/lock; wait for it to end"
                ) from error
            # The holder's process id is written where there is room for it; the lock itself needs none.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode("ascii"), 0)
            yield
        finally:
            os.close(fd)

    def held(self) -> bool:
        """Whether a run holds the lock now."""
        try:
            fd = os.open(self.root / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def counter(self) -> int:
        """The number of the newest run that has begun, 0 before the first. Raises GpuBurninError for a damaged file."""
        path = self.root / "sequence"
        try:
            text = read_text(path, follow=False, errors="replace").strip()
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise GpuBurninError(
                f"{host_name()}: {path} cannot be read ({error.strerror}); run as root, or repair it"
            ) from error
        if not (text.isascii() and text.isdecimal()) or len(text) > 16 or int(text) >= MAX_SEQUENCE:
            raise GpuBurninError(
                f"{host_name()}: {path} does not hold a number; write one into it, at least the highest "
                "sequence that the cluster has seen of this node"
            )
        return int(text)

    def floor(self) -> int:
        """The highest number that the cluster has told of, 0 for none: what cannot be read is told again."""
        try:
            text = read_text(self.root / _FLOOR, follow=False, errors="replace").strip()
        except OSError:
            return 0
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 16 else 0
        return number if number < MAX_SEQUENCE - 1 else 0

    def raise_floor(self, sequence: int) -> None:
        """New runs get numbers above this one, never below those they would have had. Raises GpuBurninError."""
        if not 0 <= sequence < MAX_SEQUENCE - 1:
            raise GpuBurninError(f"{host_name()}: {sequence} is no number of a run")
        if sequence <= max(self.floor(), self.counter()):
            return
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.root / _FLOOR, f"{sequence}\n".encode("ascii"))
        except OSError as error:
            raise GpuBurninError(
                f"{host_name()}: cannot write {self.root / _FLOOR} ({error.strerror}); look at the disk"
            ) from error

    def new_run(self, now: datetime) -> RunDirectory:
        """Make the directory of a new run, and nothing else; call with the lock held.

        Its number is above that of each run that has begun or is still here, and above all that the cluster has told
        of, so that a lost counter repeats none.
        """
        sequence = 1 + max([self.counter(), self.floor(), *(run.sequence for run in self.runs())])
        run_id = f"{now:%Y%m%dT%H%M%SZ}-{sequence:06d}"
        path = self.runs_dir / run_id
        path.mkdir(mode=0o700)
        fsync_directory(self.runs_dir)
        return RunDirectory(run_id, sequence, path)

    def begin(self, run: RunDirectory) -> None:
        """From here on this run counts for the node, on the disk before this returns; call with the lock held.

        The gate is closed with it, until the run's own PASS is there.
        """
        write_atomic(run.path / BEGUN, f"{os.getpid()} {self.counter()}\n".encode("ascii"))
        write_atomic(self.root / "sequence", f"{run.sequence}\n".encode("ascii"))

    def runs(self) -> list[RunDirectory]:
        """All runs, oldest first (by sequence); other names in runs/ are left alone."""
        if not self.runs_dir.is_dir():
            return []
        found = [(entry, _RUN_ID.fullmatch(entry.name)) for entry in self.runs_dir.iterdir() if entry.is_dir()]
        return sorted(
            (RunDirectory(entry.name, int(match[1]), entry) for entry, match in found if match),
            key=lambda run: run.sequence,
        )

    def forget_power_request(self) -> None:
        """Remove what a run before left of its request for power waves; call with the lock held."""
        shutil.rmtree(self.root / POWER_GRANT_DIR, ignore_errors=True)

    def finish(self, run: RunDirectory, keep: int = KEEP_RUNS, spared: RunDirectory | None = None) -> None:
        """Point `latest` at a finished run and remove all but the newest `keep` runs, as far as that can be done.

        The run that counts for the node stays, however many with injected faults came after it, and so does `spared`.
        """
        replace_symlink(self.latest, f"runs/{run.run_id}")
        stay = {self.counter()} | ({spared.sequence} if spared is not None else set())
        for old in self.runs()[:-keep]:
            if old.sequence not in stay:
                shutil.rmtree(old.path, ignore_errors=True)

    def result(self) -> RunDirectory:
        """The run that counts for the node, with its evidence. Raises NoResult; GpuBurninError as counter()."""
        number, runs = self.counter(), self.runs()
        if not number:
            lost = f"{self.root}/sequence, the number of the newest run, is lost"
            raise NoResult(lost if runs else "no burn-in has been completed here", 0)
        found = next((run for run in runs if run.sequence == number), None)
        if found is None or not os.path.lexists(found.path / EVIDENCE):
            unsigned = _unsigned(found.path) if found else ""
            left = "has begun and left no evidence (yet, if it is under way)"
            raise NoResult(f"run {number} {unsigned or left}", number)
        return found

    def before_test(self) -> RunDirectory | None:
        """The run that counted until the one that is under way began, with its evidence; None where there is none.

        Under way is what holds the lock itself: before one that was killed there is nothing. Raises GpuBurninError as
        counter().
        """
        number, runs = self.counter(), {run.sequence: run for run in self.runs()}
        if number not in runs or not self.held():
            return None
        try:
            pid, before = read_text(runs[number].path / BEGUN, follow=False).split()
            holder = read_text(self.root / "lock", follow=False).strip()
        except (OSError, ValueError):
            return None
        found = runs.get(int(before)) if pid == holder and before.isdecimal() else None
        return found if found is not None and os.path.lexists(found.path / EVIDENCE) else None

    def begun_after(self, report: Path) -> int | None:
        """The number of a run that has begun since `report` was `latest` and has left none; None when there is none.

        Only of a report that was reached as the newest one of this directory. Raises GpuBurninError as counter().
        """
        if report.parent != self.latest:
            return None
        name = _RUN_ID.fullmatch(report.resolve().parent.name)
        begun = self.counter()
        return begun if name and begun > int(name[1]) else None

    def revoked(self) -> str | None:
        """Why the gate was closed by hand or by the cluster, or None when it was not; what cannot be read closes it."""
        try:
            return read_text(self.root / "revoked", follow=False, errors="replace").strip() or "no reason given"
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"it cannot be read ({error.strerror})"

    def revoke(self, reason: str) -> None:
        """Close the gate, whatever has passed. Raises OSError."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self.root / "revoked", f"{reason}\n".encode())

    def clear_revocation(self, reason: str) -> None:
        """Open what `reason` closed; a revocation made meanwhile for another reason stays."""
        if self.revoked() == reason:
            (self.root / "revoked").unlink()


def _unsigned(run: Path) -> str:
    """How a run (its directory) ended that said why it could not sign; "" where no report says so."""
    # A gate that opens loads nothing of reports.
    from gpu_burnin.node.report_head import read_parts
    from gpu_burnin.report.file_names import REPORT

    try:
        head = read_parts(run / REPORT, ("warnings",))
        told = [warning.message for warning in head.warnings if warning.code == "NO_EVIDENCE"]
        return f"ended {head.verdict}, but {told[0]}" if told else ""
    except (GpuBurninError, OSError):
        return ""
