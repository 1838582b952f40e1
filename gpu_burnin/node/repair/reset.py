"""Reset GPUs with nvidia-smi, by the rules of its manual page (nvidia-smi(1), -r/--gpu-reset).

Nothing may have the GPUs open; persistence mode counts as a client (NVIDIA/NVSentinel#1690). GPUs before Ampere, and
all of an NVSwitch system whose fabric manager does not run, are reset with all others in one command. No reset of a
real GPU has been seen by this project.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.repair.holders import SERVICES, Holder, holders, listed

SMI = "nvidia-smi"
FABRIC_MANAGER = "nvidia-fabricmanager.service"
# Of the first architecture whose GPUs are reset one by one (Ampere).
_SINGLE_FROM = 8
# A reset takes seconds; a driver that hangs takes for ever.
_TIMEOUT_S = 180.0
_QUERY = ("--query-gpu=uuid,compute_cap,persistence_mode", "--format=csv,noheader")


class ResetError(GpuBurninError):
    """Why GPUs cannot be reset here; nothing was done to them."""


@dataclass(frozen=True)
class Done:
    """One command: exit code and what it wrote."""

    code: int
    text: str

    @property
    def line(self) -> str:
        """What it wrote, in one line."""
        return " ".join(self.text.split()) or "no word"


Run = Callable[[Sequence[str]], Done]


@dataclass(frozen=True)
class Reset:
    """What became of a reset. `gpus` are the UUIDs that were reset, or tried; `message` is why it failed."""

    done: bool
    gpus: tuple[str, ...]
    whole: bool = False
    stopped: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True)
class _Gpu:
    uuid: str
    generation: int
    persistent: bool


def run_command(command: Sequence[str]) -> Done:
    """Run it. Raises ResetError where it is not installed."""
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise ResetError(f"{command[0]} is not installed; it comes with the driver") from error
    except subprocess.TimeoutExpired:
        return Done(-1, f"no answer within {_TIMEOUT_S:.0f} s")
    return Done(ended.returncode, ended.stdout + ended.stderr)


def reset(uuids: Sequence[str], run: Run = run_command, root: Path = Path("/")) -> Reset:
    """Reset these GPUs; all of the node where none is named, or where they cannot be reset one by one.

    Services that only watch the GPUs are stopped for it, and persistence mode is off meanwhile. Raises ResetError where
    a process works on a GPU.
    """
    if working := [holder for holder in holders(root) if holder.works]:
        raise ResetError(f"work is on the GPUs: {listed(working)}; end it, then try again")
    known, problem = _gpus(run)
    whole = not uuids or _together(known, run, root) or not {*uuids} <= {gpu.uuid for gpu in known}
    targets = tuple(gpu.uuid for gpu in known) if whole else tuple(uuids)
    if not known:
        return Reset(False, targets, whole, message=f"no GPU can be asked for: {problem}")
    with _stopped(holders(root), run) as stopped, _not_persistent(known, run):
        if left := holders(root):
            message = f"the GPUs are still open in {listed(left)}"
            return Reset(False, targets, whole, stopped, message)
        ended = run([SMI, "--gpu-reset", *([] if whole else ["-i", ",".join(targets)])])
        if ended.code:
            return Reset(False, targets, whole, stopped, f"nvidia-smi ended with {ended.code}: {ended.line}")
        missing = {*targets, *uuids} - {gpu.uuid for gpu in _gpus(run)[0]}
    if missing:
        return Reset(False, targets, whole, stopped, f"gone after the reset: {', '.join(sorted(missing))}")
    return Reset(True, targets, whole, stopped)


def _gpus(run: Run) -> tuple[list[_Gpu], str]:
    """The GPUs that the driver shows, and what was said where it shows none."""
    ended = run([SMI, *_QUERY])
    # A lost GPU makes a line of its own, and the exit code another than 0, while the others are told.
    rows = [[part.strip() for part in line.split(",")] for line in ended.text.splitlines()]
    found = [
        _Gpu(row[0], int(row[1].partition(".")[0]), row[2].startswith("Enabled"))
        for row in rows
        if len(row) == 3 and row[0].startswith("GPU-") and row[1].partition(".")[0].isdigit()
    ]
    return found, f"nvidia-smi ended with {ended.code}: {ended.line}"


def _together(known: Sequence[_Gpu], run: Run, root: Path) -> bool:
    """Whether the manual page wants them reset in one command."""
    if any(gpu.generation < _SINGLE_FROM for gpu in known):
        return True
    switches = any((root / "dev").glob("nvidia-nvswitch[0-9]*"))
    return switches and run(["systemctl", "is-active", "--quiet", FABRIC_MANAGER]).code != 0


@contextmanager
def _stopped(found: Sequence[Holder], run: Run) -> Iterator[tuple[str, ...]]:
    """Without the services that have GPUs open; started again at the end, whatever comes."""
    units = tuple(sorted({holder.unit for holder in found} & SERVICES))
    try:
        if units:
            run(["systemctl", "stop", *units])
        yield units
    finally:
        if units:
            run(["systemctl", "start", *units])


@contextmanager
def _not_persistent(known: Sequence[_Gpu], run: Run) -> Iterator[None]:
    """With persistence mode off where it is on, and on again at the end."""
    uuids = ",".join(gpu.uuid for gpu in known if gpu.persistent)
    try:
        if uuids:
            run([SMI, "-pm", "0", "-i", uuids])
        yield
    finally:
        if uuids:
            run([SMI, "-pm", "1", "-i", uuids])
