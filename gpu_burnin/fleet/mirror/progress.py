"""How far a run of minutes is: the time so far, the time left, the stage.

On a terminal one line is rewritten in place; elsewhere there is a line for each stage, and one a minute within a long
one. What goes on beside the stage stands behind it. The time left adds up what is expected of the stages to come: what
each took on this machine the last time, else what durations.json says (a cold run on two cores, modules fetched;
downloads at 10 MB/s). Both are scaled by this run's pace.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.system.files import write_atomic

SHIPPED = Path(__file__).with_name("durations.json")
# A run's pace counts as much as the expectation once so much of it was measured.
TRUST_S = 60.0
REDRAW_S = 1.0
REPEAT_S = 60.0
# From here on the time left is said in minutes.
MINUTES_FROM_S = 120.0


def left_s(current_s: float, elapsed_s: float, ahead_s: float, finished: Sequence[tuple[float, float]]) -> float:
    """Seconds left of a run, 0 when it takes longer than anybody expected.

    `current_s` is expected of the stage that has been going on for `elapsed_s`, `ahead_s` of those after it; `finished`
    has what was expected of each finished stage and what it took. A stage over its time shows the pace as well.
    """
    expected = TRUST_S + sum(pair[0] for pair in finished)
    took = TRUST_S + sum(pair[1] for pair in finished)
    pace = took / expected
    if elapsed_s <= current_s * pace:
        return current_s * pace - elapsed_s + ahead_s * pace
    return ahead_s * max(pace, (took + elapsed_s) / (expected + current_s))


def expected_s(name: str, also: Path | None = None) -> float:
    """Seconds that the whole run of this name is expected to take; 0 when nobody knows."""
    return sum((_kept(name) or _shipped(name, also)).values())


@dataclass(frozen=True)
class _Beside:
    """A stage beside the others. `rc`: None while it goes on, then 0, or another number when it failed."""

    rc: Callable[[], int | None]
    started: float
    expected_s: float


class Progress:
    """The progress of one run; a context manager.

    With `each` the duration of each stage is kept when it ends, since the run may be cut and go on later from there;
    else `remember` keeps those of a whole run. `also` is a file as durations.json, of
    stages that others add.
    """

    def __init__(
        self,
        name: str,
        out: TextIO | None = None,
        *,
        each: bool = False,
        clock: Callable[[], float] = time.monotonic,
        also: Path | None = None,
    ) -> None:
        self._name, self._out, self._each, self._clock = name, out or sys.stderr, each, clock
        self._before, self._shipped = _kept(name), _shipped(name, also)
        self._known = {**self._shipped, **self._before} if each else (self._before or self._shipped)
        self._pending: dict[str, float] = {} if each else dict(self._known)
        self._after_s = 0.0
        self._took: dict[str, float] = {}
        self._stage, self._task, self._whole = "starting", "", True
        self._beside: dict[str, _Beside] = {}
        self._started = self._stage_started = self._shown = clock()
        self._over = threading.Event()
        self._lock = threading.RLock()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._ticker.join()
        if kind is None:
            self._close_stage()
        self._wipe()

    def plan(self, stages: Iterable[str], after_s: float = 0.0, share: float = 1.0) -> None:
        """Stages that will come, so much of each as `share` says, and the seconds expected of what follows this run."""
        with self._lock:
            self._pending.update({stage: share * self._known.get(stage, 0.0) for stage in stages})
            self._after_s += after_s

    def stage(self, name: str, detail: str = "", *, whole: bool = True) -> None:
        """A new stage begins. One that goes on where an earlier run was cut is not `whole`: no measure of the pace."""
        with self._lock:
            self._close_stage()
            self._stage, self._task, self._stage_started, self._whole = name, "", self._clock(), whole
            if name in self._beside:
                begun = self._beside.pop(name)
                self._stage_started, self._pending[name] = begun.started, begun.expected_s
            self._show(f"{name} ({detail})" if detail else name)

    def beside(self, name: str, rc: Callable[[], int | None]) -> None:
        """A stage begins that goes on beside those to come, as long as `rc` gives None; 0 says that it is done.

        It stands behind each `stage`, and becomes it when nothing else is to be done.
        """
        with self._lock:
            expected_s = self._pending.pop(name, self._known.get(name, 0.0))
            self._beside[name] = _Beside(rc, self._clock(), expected_s)

    def task(self, text: str) -> None:
        """Within the stage, this is done now."""
        with self._lock:
            self._task = text
            if self._out.isatty():
                self._show(f"{self._stage}: {text}")

    def say(self, line: str) -> None:
        """A line that stays."""
        with self._lock:
            self._wipe()
            print(line, file=self._out, flush=True)

    def remember(self) -> None:
        """The whole run was good: what its stages took is what the next one expects."""
        self._close_stage()
        self._keep(self._took)

    def tick(self) -> None:
        """Say again how far it is, where that is due: called every second."""
        with self._lock:
            self._close_beside()
            if self._out.isatty():
                self._show(f"{self._stage}: {self._task}" if self._task else self._stage)
            elif self._clock() - self._shown >= REPEAT_S:
                self._show(f"still: {self._stage}")

    def _tick(self) -> None:
        while not self._over.wait(REDRAW_S):
            self.tick()

    def _close_stage(self) -> None:
        now = self._clock()
        self._close_beside()
        if self._whole:
            self._took[self._stage] = self._took.get(self._stage, 0.0) + now - self._stage_started
        self._stage_started = now
        self._pending.pop(self._stage, None)
        if self._stage in self._shipped:
            self._keep_each()

    def _close_beside(self) -> None:
        """Whatever is over of what goes on beside the stages is no longer shown."""
        over = {name: rc for name, one in self._beside.items() if (rc := one.rc()) is not None}
        for name, rc in over.items():
            begun = self._beside.pop(name)
            if rc == 0:
                self._took[name] = self._clock() - begun.started
                self._keep_each()
            else:
                self.say(f"failed: {name}")

    def _keep_each(self) -> None:
        """Keep the stages that have ended; others may be kept there by what runs beside us."""
        if self._each:
            known = {stage: s for stage, s in self._took.items() if stage in self._shipped}
            self._keep({**_kept(self._name), **known})

    def _keep(self, durations: dict[str, float]) -> None:
        path = _kept_in(self._name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(durations, indent=1).encode(), 0o644)

    def _show(self, text: str) -> None:
        self._shown = self._clock()
        seconds = int(self._shown - self._started)
        text = "; beside it: ".join([text, *self._beside])
        line = f"{seconds // 60:2d}:{seconds % 60:02d}{self._left()}  {text}"
        if self._out.isatty():
            print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=self._out, flush=True)
        else:
            print(line, file=self._out, flush=True)

    def _wipe(self) -> None:
        if self._out.isatty():
            print("\r\x1b[K", end="", file=self._out, flush=True)

    def _left(self) -> str:
        """Time left in words; nothing when nobody has measured this run before."""
        if not self._pending and not self._beside and not self._after_s:
            return ""
        now = self._pending.get(self._stage, 0.0)
        ahead = sum(self._pending.values()) - now + self._after_s
        finished = [(self._known[stage], s) for stage, s in self._took.items() if stage in self._known]
        # Finished in an earlier run that was cut.
        finished += [
            (self._shipped[stage], s)
            for stage, s in (self._before.items() if self._each else ())
            if stage in self._shipped and stage not in self._pending and stage not in self._took
        ]
        clock = self._clock()
        seconds = left_s(now, clock - self._stage_started, ahead, finished)
        seconds = max([seconds, *(one.started + one.expected_s - clock for one in self._beside.values())])
        if seconds >= MINUTES_FROM_S:
            return f", about {math.ceil(seconds / 60)} min left"
        return f", about {math.ceil(seconds)} s left" if seconds else ", longer than expected"


def _kept_in(name: str) -> Path:
    return cache_dir() / "durations" / f"{name}.json"


def _kept(name: str) -> dict[str, float]:
    """What the stages took the last time; nothing when that cannot be read."""
    try:
        return {str(stage): float(s) for stage, s in json.loads(_kept_in(name).read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _shipped(name: str, also: Path | None) -> dict[str, float]:
    """What is expected of the stages the first time."""
    files = [SHIPPED, *([] if also is None else [also])]
    return {stage: float(s) for file in files for stage, s in json.loads(file.read_text()).get(name, {}).items()}
