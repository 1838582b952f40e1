"""Runs the steps one after the other, each in a process group of its own and under a deadline of its own.

After each step everything so far is written: a cut at any moment loses the step that is under way. Standard library
alone, so that nothing that is missing on the machine keeps it from telling so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.system.files import write_atomic
from tests.bench.gpu.plan import KILL_S, STOP_S, TERM_S, TOTAL_S, Step, allowance
from tests.bench.gpu.table import markdown

ROOT = Path(__file__).resolve().parents[3]
RESULT, TABLE, LOG = "bench.json", "bench.md", "bench.log"
# Of a step's output: its beginning and its end.
_LOG_PART_BYTES = 200_000
_RESULT_BYTES = 8 << 20
_LOOK_EVERY_S = 0.05

Command = Callable[[Step, Path], Sequence[str]]


def own_command(out: Path) -> Command:
    """The command line of a step, which writes its figures to the given file and may leave files in `out`."""

    def command(step: Step, result: Path) -> Sequence[str]:
        return (sys.executable, "-m", "tests.bench.gpu.step", step.name, str(result), str(out))

    return command


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit status (negative: signal; None: it could not be killed) and whether it was stopped."""

    status: int | None
    stopped: bool


class Runner:
    """The steps of one session, and what came of them so far."""

    def __init__(
        self,
        out: Path,
        steps: Sequence[Step],
        command: Command,
        date: str,
        total_s: float = TOTAL_S,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out, self._steps, self._command, self._total_s = out, tuple(steps), command, total_s
        self._say, self._clock = say, clock
        self._started_s = clock()
        planned = {step.name: {"title": step.title, "state": "not reached"} for step in steps}
        self.result: dict[str, Any] = {"date": date, "total_s": total_s, "steps": planned}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started_s

    @property
    def complete(self) -> bool:
        """Every step was done, or has nothing to do on this machine, or was optional and found no time."""
        found = self.result["steps"]
        return all(
            found[step.name]["state"] in ("done", "nothing to do")
            or (step.optional and found[step.name]["state"] == "left out")
            for step in self._steps
        )

    def run(self) -> None:
        """All steps that there is time for."""
        self._write()
        with tempfile.TemporaryDirectory(prefix="gpu-bench-") as scratch:
            for place, step in enumerate(self._steps):
                allowed_s = allowance(self._steps[place:], self.elapsed_s, self._total_s)
                if allowed_s is None:
                    why = f"no time was left: {self._total_s - self.elapsed_s:.0f} s, kept for what matters more"
                    found: dict[str, Any] = {"state": "left out", "why": why}
                else:
                    found = self._one(step, allowed_s, Path(scratch))
                self.result["steps"][step.name] = {"title": step.title, **found}
                self.result["elapsed_s"] = round(self.elapsed_s, 1)
                self._write()
                self._say(_line(step, found))

    def _one(self, step: Step, allowed_s: float, scratch: Path) -> dict[str, Any]:
        """Do one step; what came of it."""
        result, output = scratch / f"{step.name}.json", scratch / f"{step.name}.log"
        started_s = self._clock()
        try:
            with output.open("wb") as log:
                ended = run_group(self._command(step, result), log.fileno(), allowed_s)
        except OSError as error:
            return {"state": "failed", "why": f"it could not be started: {error}", "seconds": 0.0}
        seconds = round(self._clock() - started_s, 1)
        self._log(step, ended, seconds, output)
        told = _read(result)
        state, why = judge(ended, told, allowed_s)
        return {"state": state, **({"why": why} if why else {}), "seconds": seconds, "figures": told.get("figures", {})}

    def _log(self, step: Step, ended: Ended, seconds: float, output: Path) -> None:
        """Keep a step's output, of a long one its beginning and end."""
        data = output.read_bytes()
        if len(data) > 2 * _LOG_PART_BYTES:
            data = data[:_LOG_PART_BYTES] + b"\n... cut ...\n" + data[-_LOG_PART_BYTES:]
        with (self._out / LOG).open("ab") as log:
            log.write(f"\n=== {step.name}: exit status {ended.status}, {seconds} s\n".encode() + data)

    def _write(self) -> None:
        write_atomic(self._out / RESULT, json.dumps(self.result, indent=1).encode() + b"\n", 0o644)
        write_atomic(self._out / TABLE, markdown(self.result).encode(), 0o644)


def run_group(command: Sequence[str], output: int, allowed_s: float) -> Ended:
    """Run a command in a session of its own, with its output to a file. Nothing of its group is left afterwards.

    It is asked to end (SIGTERM) so early that it is gone by `allowed_s`, and killed when it does not. A process that
    hangs in the driver is left behind: nothing can end it.
    """
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        stopped = not _ends(process.pid, allowed_s - STOP_S)
        if stopped:
            os.killpg(process.pid, signal.SIGTERM)
            _ends(process.pid, TERM_S)
    finally:
        # Not waited for yet: so the number is still this group's. What it started ends with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        gone = _ends(process.pid, KILL_S)
    return Ended(process.wait() if gone else None, stopped)


def _ends(pid: int, timeout_s: float) -> bool:
    """Whether this child ends within the time; it is not waited for, so that its number stays its own.

    By looking again and again: sandboxes that GPUs are lent in have no pidfd_open.
    """
    until_s = time.monotonic() + timeout_s
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until_s:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True


def judge(ended: Ended, told: Mapping[str, Any], allowed_s: float) -> tuple[str, str]:
    """State of a step that has ended, and why it is not "done"."""
    why = str(told.get("why", ""))
    if ended.status is None:
        return "cut", f"it hangs in the driver and could not be killed after {allowed_s:.0f} s; see {LOG}"
    if ended.stopped:
        return "cut", f"it was not over after {allowed_s - STOP_S:.0f} s; see {LOG}"
    if ended.status < 0:
        return "died", f"its process died by {_signal_name(-ended.status)}; see {LOG}"
    if ended.status != 0:
        return "failed", why or f"it ended with status {ended.status}; see {LOG}"
    if told.get("nothing_to_do"):
        return "nothing to do", str(told["nothing_to_do"])
    return ("done", "") if "figures" in told else ("failed", f"it left no result; see {LOG}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _read(path: Path) -> dict[str, Any]:
    """What a step has written, {} when that is nothing or no JSON."""
    try:
        with path.open("rb") as file:
            told = json.loads(file.read(_RESULT_BYTES))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _line(step: Step, found: Mapping[str, Any]) -> str:
    seconds = f" in {found['seconds']:.0f} s" if "seconds" in found else ""
    return f"{step.name}: {found['state']}{seconds}" + (f": {found['why']}" if "why" in found else "")
