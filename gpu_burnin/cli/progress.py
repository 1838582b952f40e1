"""Showing a run while it goes on: plain lines for logs, a live table for a person at a terminal.

Events come from the supervisor and, those named "sample", from a thread of the telemetry: both displays lock.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text

from gpu_burnin.cli.terminal import COLOURS
from gpu_burnin.types import Gpu

OnEvent = Callable[[Mapping[str, Any]], None]
Clock = Callable[[], float]
# Events that a reader of a log wants to see, and how they are put; the others come too often for a log.
_LINES: Mapping[str, str] = {
    "check_started": "{check} started",
    "check_finished": "{check} {verdict} after {seconds:.1f} s {codes}",
    "selftest_finished": "{check} self-test: {detected} of {injected} injected faults detected",
    "deadline_missed": "{check} did not finish in its time, ending it",
    "worker_killed": "worker {pid} did not end, killing it",
    "worker_wedged": "worker {pid} cannot be killed, leaving it behind",
    "worker_died": "worker died during {check}",
    "interrupted": "interrupted, ending the workers",
}
# Those that say how long it still takes.
_WITH_TIME_LEFT = frozenset({"check_started", "check_finished"})
# Those of which a brief display tells the first alone.
_BEGINS = frozenset({"check_started", "selftest_started"})
# A check that is past its time is not done before its result is there.
_MOST_DONE = 0.99
# A log gets a line on the state of all GPUs this often while checks are busy.
_STATUS_EVERY_S = 30.0
# Columns of the live view; the first two are words, the others numbers. The results follow them.
_HEADINGS = ("", "doing", "time", "done", "rate", "temp", "power", "errors")
_LEFT_COLUMNS, _DOING, _ERRORS = 2, 1, 7
# A narrow terminal loses these columns first, one after the other: errors and results have to be seen.
_LEAST_WANTED = (6, 2, 3, 5, 4)


def line_of(event: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    """One line for an event, None for one that is not shown. `names` maps GPU UUIDs to what people call them."""
    form = _LINES.get(str(event["event"]))
    if form is None:
        return None
    codes = ", ".join(event.get("codes", ()))
    text = form.format_map({**event, "codes": f"({codes})" if codes else ""}).strip()
    gpu = event.get("gpu")
    return f"{names.get(gpu, gpu) if gpu else 'node'}: {text}"


def names_of(gpus: Sequence[Gpu]) -> dict[str, str]:
    """What people call the GPUs, by UUID."""
    return {gpu.uuid: gpu.short for gpu in gpus}


def time_text(seconds: float) -> str:
    """A time that is still to go: 41 s, 3:05 min, 1:41 h."""
    whole = max(0, round(seconds))
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02} h"


@dataclass
class Row:
    """What one GPU (or the node) is doing, what it measures, and what it has done."""

    doing: str = "waiting"
    phase: str = ""
    since: float = 0.0
    rate: float | None = None
    rate_unit: str = ""
    errors: int = 0
    selftest: bool = False
    share_done: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    done: list[tuple[str, str]] = field(default_factory=list)
    _earlier_errors: int = 0

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Bring the row up to an event; what an event does not say stays, what is of another kind is no number."""
        kind = event["event"]
        if kind in ("check_started", "selftest_started"):
            self.selftest = kind == "selftest_started"
            self._begin(f"{event['check']}{' self-test' if self.selftest else ''}", now)
        elif kind == "progress":
            self.phase = str(event.get("phase", self.phase)).removeprefix(f"{event.get('check')} ")
            self.rate = _number(event.get("rate"), self.rate)
            self.rate_unit = str(event.get("rate_unit", self.rate_unit))
            if not self.selftest:  # those are ours
                self.errors = self._earlier_errors + int(_number(event.get("errors"), 0.0) or 0)
            done = _number(event.get("done"), self.share_done)
            self.share_done = None if done is None else min(done, _MOST_DONE)
        elif kind == "sample":
            self.temperature_c = _number(event.get("temperature_c"), None)
            self.power_w = _number(event.get("power_w"), None)
        elif kind == "check_finished":
            self.done.append((str(event["check"]), str(event["verdict"])))
            self._begin("", now)
        elif kind == "selftest_finished":
            self.phase = f"{event['detected']}/{event['injected']}"
        elif kind in _LINES:
            if kind == "interrupted":
                self.since = now
            self.doing = _LINES[kind].format_map({**event, "codes": ""})

    def _begin(self, doing: str, now: float) -> None:
        self.doing, self.since, self.phase = doing, now, ""
        self.rate, self.rate_unit, self.share_done = None, "", None
        self._earlier_errors = self.errors

    @property
    def rate_text(self) -> str:
        """The rate with its unit, empty where there is none."""
        return "" if self.rate is None else f"{self.rate:,.4g} {self.rate_unit}".rstrip()


def _number(value: object, other: float | None) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else other


class Board:
    """The state of a run for its display. Not locked: the displays do that around each use."""

    def __init__(self, gpus: Sequence[Gpu], clock: Clock = time.monotonic) -> None:
        self.names = names_of(gpus)
        self.rows: dict[str | None, Row] = {None: Row(), **{gpu.uuid: Row() for gpu in gpus}}
        self.level = ""
        self._clock = clock
        self._began = clock()
        self._total_s: float | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Bring the state up to an event."""
        if event["event"] == "run_started":
            self.level = str(event.get("level", ""))
            # The run's time counts from before its workers.
            self._began = self._clock() - (_number(event.get("spent_s"), 0.0) or 0.0)
            self._total_s = _number(event.get("total_s"), None)
        row = self.rows.get(event.get("gpu"))
        if row is not None and event["event"] != "run_started":
            row.take(event, self._clock())
        if event["event"] == "check_finished" and event.get("gpu") is None:
            for blamed in event.get("gpus", ()):
                if blamed in self.rows:
                    self.rows[blamed].done.append((str(event["check"]), str(event["verdict"])))

    @property
    def left(self) -> str:
        """How long the level still takes, or by how much it is late; empty where its time is not known."""
        if self._total_s is None:
            return ""
        left_s = self._total_s - self.elapsed_s
        if left_s <= 0:
            return f"{time_text(max(math.ceil(-left_s), 1))} over the planned {time_text(self._total_s)}"
        return f"{time_text(math.ceil(left_s))} left"

    @property
    def elapsed_s(self) -> float:
        """How long the run has been going on."""
        return self._clock() - self._began

    @property
    def head(self) -> str:
        """One line on the run: level, time elapsed, left and in all."""
        whole = f" of {time_text(self._total_s)}" if self._total_s is not None and self.left.endswith("left") else ""
        level = f"level {self.level}" if self.level else "starting"
        return "   ".join(filter(None, [level, f"{time_text(int(self.elapsed_s))} elapsed", f"{self.left}{whole}"]))

    def busy_s(self, row: Row) -> float:
        """For how long a row has been doing what it does."""
        return self._clock() - row.since

    @property
    def status(self) -> str:
        """One line on all GPUs: what they do, the slowest, the hottest, errors. Empty when none is busy."""
        rows = {name: self.rows[uuid] for uuid, name in self.names.items()}
        busy = {name: row for name, row in rows.items() if row.doing and row.doing != "waiting"}
        if not busy:
            return ""
        doing = ", ".join(dict.fromkeys(f"{row.doing} {row.phase}".strip() for row in list(busy.values())[:3]))
        parts = [f"{len(busy)} of {len(rows)} GPUs busy ({doing})"]
        rated = {name: row for name, row in busy.items() if row.rate is not None}
        if rated:
            slowest = min(rated, key=lambda name: rated[name].rate or 0.0)
            parts.append(f"slowest {slowest} {rated[slowest].rate_text}")
        warm = {name: row.temperature_c for name, row in rows.items() if row.temperature_c is not None}
        if warm:
            hottest = max(warm, key=lambda name: warm[name])
            parts.append(f"hottest {hottest} {warm[hottest]:.0f} °C")
        wrong = [f"{name} {row.errors} errors" for name, row in rows.items() if row.errors]
        return ", ".join([*parts, *(wrong or ["no errors"]), *filter(None, [self.left])])


def plain(stream: IO[str], gpus: Sequence[Gpu], clock: Clock = time.monotonic) -> OnEvent:
    """A line on `stream` for each event worth one, and now and then one on the state of all GPUs."""
    board, lock = Board(gpus, clock), threading.Lock()
    last = clock()

    def show(event: Mapping[str, Any]) -> None:
        nonlocal last
        with lock:
            board.take(event)
            line = line_of(event, board.names)
            if line is not None and event["event"] in _WITH_TIME_LEFT and board.left:
                line = f"{line}, {board.left}"
            if line is None and clock() - last >= _STATUS_EVERY_S:
                line = board.status or None
            if line is not None:
                last = clock()
                print(f"{time.strftime('%H:%M:%S')} {line}", file=stream, flush=True)

    return show


def brief(stream: IO[str], gpus: Sequence[Gpu]) -> OnEvent:
    """A line on `stream` for each check as it starts anywhere, one for the self-tests, and all that is not well."""
    names, lock, begun = names_of(gpus), threading.Lock(), set[str]()

    def show(event: Mapping[str, Any]) -> None:
        kind = str(event["event"])
        with lock:
            if kind in _BEGINS:
                what = "self-tests" if kind == "selftest_started" else str(event["check"])
                line = None if what in begun else f"{what} started"
                begun.add(what)
            else:
                well = event.get("verdict") == "PASS" or (
                    kind == "selftest_finished" and event["detected"] == event["injected"]
                )
                line = None if well else line_of(event, names)
            if line is not None:
                print(f"{time.strftime('%H:%M:%S')} {line}", file=stream, flush=True)

    return show


def _results(row: Row) -> list[tuple[str, str]]:
    """The checks of each verdict, the worst verdict first: ("FAIL", "FAIL gemm"), ("PASS", "PASS sm hbm")."""
    found = {verdict: [check for check, outcome in row.done if outcome == verdict] for verdict in COLOURS}
    return [(verdict, f"{verdict} {' '.join(checks)}") for verdict, checks in found.items() if checks]


def _results_width(row: Row) -> int:
    return sum(len(text) + 2 for _, text in _results(row)) or len("results")


class LiveTable:
    """A rich table with a row for the node and one for each GPU; use as a context manager around the run."""

    def __init__(self, stream: IO[str], gpus: Sequence[Gpu], clock: Clock = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        self._board, self._lock = Board(gpus, clock), threading.Lock()
        self._console = Console(file=stream)
        # Columns only grow, so that the table does not jump at each phase.
        self._widths = [len(heading) for heading in _HEADINGS]
        # Once a second: the supervisor is to stay under 2 % of a core, and drawing is most of what it does.
        self._live = Live(
            get_renderable=self._view,
            console=self._console,
            refresh_per_second=2,
            redirect_stdout=False,  # --json owns it
        )

    def __enter__(self) -> OnEvent:
        self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._board.take(event)

    def _view(self) -> Text:
        """The table as one text: a table of rich costs five times as much to draw, and the supervisor has to idle."""
        from rich.text import Text

        with self._lock:
            board = self._board
            table = [(_HEADINGS, Row()), *((self._cells(uuid, row), row) for uuid, row in board.rows.items())]
            self._widths = [
                max(width, *(len(cells[at]) for cells, _ in table)) for at, width in enumerate(self._widths)
            ]
            results_width = max(_results_width(row) for _, row in table)
            # Before a column goes, what is done now takes the room that it needs now.
            widths, needed = [*self._widths], max(len(cells[_DOING]) for cells, _ in table)
            columns = self._fitting(results_width, needed)
            over = results_width + sum(widths[at] + 2 for at in columns) - self._console.width
            widths[_DOING] = max(widths[_DOING] - max(over, 0), needed)
            # Text, not markup: a phase is what a worker says.
            view = Text("", no_wrap=True, overflow="ellipsis").append(f"{board.head}\n", "bold")
            for place, (cells, row) in enumerate(table):
                for column in columns:
                    cell, width = cells[column], widths[column]
                    text = f"{cell:<{width}}  " if column < _LEFT_COLUMNS else f"{cell:>{width}}  "
                    wrong = column == _ERRORS and row.errors
                    view.append(text, "dim" if place == 0 else "bold red" if wrong else "bold" if column == 0 else "")
                for verdict, text in _results(row):
                    view.append(f"{text}  ", COLOURS[verdict])
                view.append("results\n" if place == 0 else "\n", "dim")
            view.rstrip()
            return view

    def _fitting(self, results_width: int, doing_width: int) -> list[int]:
        """The columns that the terminal has room for beside the results."""
        columns, room = list(range(len(_HEADINGS))), self._console.width - results_width
        room += self._widths[_DOING] - doing_width
        for column in _LEAST_WANTED:
            if sum(self._widths[at] + 2 for at in columns) <= room:
                break
            columns.remove(column)
        return columns

    def _cells(self, uuid: str | None, row: Row) -> tuple[str, ...]:
        active = row.doing not in ("", "waiting")
        return (
            self._board.names.get(uuid, uuid) if uuid else "node",
            f"{row.doing} {row.phase}".strip(),
            time_text(self._board.busy_s(row)) if active else "",
            "" if row.share_done is None else f"{row.share_done:.0%}",
            row.rate_text,
            "" if row.temperature_c is None else f"{row.temperature_c:.0f} °C",
            "" if row.power_w is None else f"{row.power_w:.0f} W",
            str(row.errors) if uuid else "",
        )


def display(
    gpus: Sequence[Gpu], stream: IO[str] | None = None, lines: Callable[[IO[str], Sequence[Gpu]], OnEvent] = plain
) -> AbstractContextManager[OnEvent]:
    """The display that fits `stream` (standard error unless given): live on a terminal, else `lines`."""
    chosen = stream or sys.stderr
    return LiveTable(chosen, gpus) if chosen.isatty() else nullcontext(lines(chosen, gpus))
