"""Showing a run while it goes on: plain lines for logs, a live table for a person at a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

from gpu_burnin.types import Gpu

OnEvent = Callable[[Mapping[str, Any]], None]
# Events that a reader of a log wants to see, and how they are put; "progress" comes too often for a log.
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
    return {gpu.uuid: f"GPU {gpu.index}" for gpu in gpus}


def plain(stream: IO[str], gpus: Sequence[Gpu]) -> OnEvent:
    """A line on `stream` for each event worth one."""
    names = names_of(gpus)

    def show(event: Mapping[str, Any]) -> None:
        line = line_of(event, names)
        if line is not None:
            print(f"{time.strftime('%H:%M:%S')} {line}", file=stream, flush=True)

    return show


@dataclass
class _Row:
    """What one GPU (or the node) is doing, and what it has done."""

    now: str = "waiting"
    since: float = field(default_factory=time.monotonic)
    numbers: str = ""
    done: list[str] = field(default_factory=list)

    def take(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind in ("check_started", "selftest_started"):
            self.now = f"{event['check']}{' self-test' if kind == 'selftest_started' else ''}"
            self.since, self.numbers = time.monotonic(), ""
        elif kind == "progress":
            hidden = ("event", "gpu", "check")
            self.numbers = "  ".join(f"{key} {value}" for key, value in event.items() if key not in hidden)
        elif kind == "check_finished":
            colour = {"PASS": "green", "FAIL": "red"}.get(str(event["verdict"]), "yellow")
            self.done.append(f"[{colour}]{event['check']} {event['verdict']}[/]")
            self.now, self.numbers = "", ""
        elif kind in _LINES:
            self.now = _LINES[kind].format_map({**event, "codes": ""})


class LiveTable:
    """A rich table with a row for the node and one for each GPU; use as a context manager around the run."""

    def __init__(self, stream: IO[str], gpus: Sequence[Gpu]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._names = names_of(gpus)
        self._rows: dict[str | None, _Row] = {None: _Row(), **{gpu.uuid: _Row() for gpu in gpus}}
        self._live = Live(get_renderable=self._table, console=Console(file=stream), refresh_per_second=4)

    def __enter__(self) -> OnEvent:
        self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _show(self, event: Mapping[str, Any]) -> None:
        row = self._rows.get(event.get("gpu"))
        if row is not None:
            row.take(event)

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for heading in ("", "doing", "s", "", "done"):
            table.add_column(heading)
        for uuid, row in self._rows.items():
            seconds = f"{time.monotonic() - row.since:.0f}" if row.now not in ("", "waiting") else ""
            name = self._names.get(uuid, uuid) if uuid else "node"
            table.add_row(name, row.now, seconds, row.numbers, "  ".join(row.done))
        return table


def display(gpus: Sequence[Gpu], stream: IO[str] | None = None) -> AbstractContextManager[OnEvent]:
    """The display that fits `stream` (standard error unless given): live on a terminal, else plain lines."""
    chosen = stream or sys.stderr
    return LiveTable(chosen, gpus) if chosen.isatty() else nullcontext(plain(chosen, gpus))
