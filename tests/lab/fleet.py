"""`make lab`: start the hosts, run site.yml on them through ansible-runner, print one screen of results.

`run_playbook` is also what the tests use: a progress line with stage, hosts and time left; the full log in a file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import ansible_runner

from . import hosts
from .binaries import ensure_binaries
from .model import read_groups, read_lab
from .paths import REPOSITORY, cache_dir, state_dir
from .shell import LabError

SUMMARY_TASK = "Show the fleet"
LAB_INVENTORY = REPOSITORY / "inventory/lab"


@dataclass
class PlaybookResult:
    """What a playbook run did: exit code, changed tasks per host, seconds, log, the fleet summary if it made one."""

    rc: int
    seconds: float
    log: Path
    changed: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    summary: str = ""


class Progress:
    """The progress line: on a terminal it is rewritten in place, elsewhere there is one line for each stage."""

    def __init__(self, name: str, out: TextIO) -> None:
        self._history_file = cache_dir() / "durations" / f"{name}.json"
        self._out = out
        self._started = time.monotonic()
        self._plays: dict[str, float] = {}
        self._play = "starting"
        self._play_started = self._started
        self._history: dict[str, float] = {}
        if self._history_file.exists():
            self._history = json.loads(self._history_file.read_text())

    def play(self, name: str, host_count: int) -> None:
        """A new stage begins."""
        self._close_play()
        self._play, self._play_started = name, time.monotonic()
        if not self._out.isatty():
            print(
                f"{self._clock()}  {name} ({host_count} {'host' if host_count == 1 else 'hosts'}){self._left()}",
                file=self._out,
                flush=True,
            )

    def task(self, name: str) -> None:
        """A task of the stage begins."""
        if self._out.isatty():
            line = f"{self._clock()}  {self._play}: {name}{self._left()}"
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{line[:width]}", end="", file=self._out, flush=True)

    def finish(self, *, remember: bool) -> None:
        """The run is over; a successful one becomes the estimate of the next."""
        self._close_play()
        if self._out.isatty():
            print("\r\x1b[K", end="", file=self._out, flush=True)
        if remember:
            self._history_file.parent.mkdir(parents=True, exist_ok=True)
            self._history_file.write_text(json.dumps(self._plays, indent=1))

    def _close_play(self) -> None:
        self._plays[self._play] = self._plays.get(self._play, 0.0) + time.monotonic() - self._play_started

    def _clock(self) -> str:
        seconds = int(time.monotonic() - self._started)
        return f"{seconds // 60:2d}:{seconds % 60:02d}"

    def _left(self) -> str:
        """Time left as the last successful run took it; nothing is invented for a first run."""
        if self._play not in self._history:
            return ""
        ahead = sum(seconds for play, seconds in self._history.items() if play not in self._plays)
        here = max(0.0, self._history[self._play] - (time.monotonic() - self._play_started))
        seconds = int(ahead - (0 if self._play in self._plays else self._history[self._play]) + here)
        return f", about {max(0, seconds)} s left"


def run_playbook(
    playbook: Path,
    inventory: Path = LAB_INVENTORY,
    *,
    name: str,
    arguments: Sequence[str] = (),
    variables: Mapping[str, Any] | None = None,
    out: TextIO = sys.stderr,
) -> PlaybookResult:
    """Run a playbook through ansible-runner; the full output goes to a log file named in the result."""
    log = state_dir("lab") / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(name, out)
    result = PlaybookResult(rc=0, seconds=0.0, log=log)
    groups = read_groups([inventory])
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-runner-") as private, log.open("w") as log_file:

        def on_event(event: dict[str, Any]) -> bool:
            text = event.get("stdout", "")
            if text:
                print(text, file=log_file, flush=True)
            _digest(event, progress, result, groups)
            return False

        run = ansible_runner.run(
            private_data_dir=private,
            playbook=str(playbook),
            inventory=str(inventory),
            cmdline=" ".join(arguments) or None,
            extravars=dict(variables or {}) or None,
            envvars={
                "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"),
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            },
            event_handler=on_event,
            quiet=True,
        )
        log_file.write(run.stderr.read() if run.stderr else "")
    result.rc = int(run.rc)
    result.seconds = time.monotonic() - started
    progress.finish(remember=result.rc == 0)
    return result


def _digest(
    event: dict[str, Any], progress: Progress, result: PlaybookResult, groups: Mapping[str, Collection[str]]
) -> None:
    data = event.get("event_data", {})
    match event["event"]:
        case "playbook_on_play_start":
            pattern = str(data.get("pattern", ""))
            progress.play(str(data.get("name", pattern)), _count(pattern, groups))
        case "playbook_on_task_start":
            progress.task(data.get("task", ""))
        case "runner_on_failed" | "runner_on_unreachable" if not data.get("ignore_errors"):
            message = data.get("res", {}).get("msg", "no message")
            result.failures.append(f"{data.get('host')}: {data.get('task')}: {message}")
        case "runner_on_ok":
            if data.get("task") == SUMMARY_TASK:
                result.summary = str(data["res"]["msg"])
        case "playbook_on_stats":
            result.changed = {host: int(count) for host, count in data.get("changed", {}).items() if count}


def _count(pattern: str, groups: Mapping[str, Collection[str]]) -> int:
    """How many hosts the groups of a play's pattern have; a name that is no group is one host."""
    return len({host for name in pattern.split(":") for host in groups.get(name, (name,))})


def main() -> int:
    """Start the lab and run site.yml; 0 when it ran to its end (a held node is a result), else 2 with the failures."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.fleet", description=__doc__)
    parser.add_argument("--check", action="store_true", help="run with --check --diff")
    arguments = parser.parse_args()
    try:
        hosts.require_root()
        lab = read_lab([LAB_INVENTORY])
        ensure_binaries()
        hosts.up(lab)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    extra = ["--check", "--diff"] if arguments.check else []
    result = run_playbook(REPOSITORY / "site.yml", name="site-check" if arguments.check else "site", arguments=extra)
    for failure in result.failures:
        print(f"failed: {failure}", file=sys.stderr)
    if result.rc != 0:
        print(f"site.yml stopped after {result.seconds:.0f} s; the full log is {result.log}", file=sys.stderr)
        return 2
    print(result.summary)
    print(f"  export PATH={cache_dir() / 'bin/current'}:{Path(sys.executable).parent}:$PATH    (brings these commands)")
    changed = ", ".join(f"{host} {count}" for host, count in sorted(result.changed.items())) or "nothing"
    print(f"\nsite.yml ran {result.seconds:.0f} s and changed: {changed}. Full log: {result.log}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
