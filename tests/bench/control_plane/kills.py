"""The slowest scenarios: ansible-playbook is killed at random points, and run again to its end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.integration.fleet import Fleet, run
from tests.lab.paths import REPOSITORY

from .clients import Clients
from .health import follower, wait_for_health
from .operations import ansible_playbook, play, rotation, wipe

# A point lies up to so far into the task that was drawn.
INTO_TASK_S = 2.0
Words = Callable[[Fleet], list[str]]


def site(fleet: Fleet) -> list[str]:
    """site.yml with a lot to do: certificates of another lifetime, and all that restarts because of them."""
    return rotation(fleet)[1:2] + rotation(fleet)[4:]


def replacement(fleet: Fleet) -> list[str]:
    """The replacement of a member whose disk was just wiped."""
    host = follower(fleet)
    wipe(fleet, host)
    return ["playbooks/etcd_replace_member.yml", "-e", f"member={host}"]


def killed(clients: Clients, words_of: Words, name: str, times: int, drawn: random.Random) -> str:
    """Kill it so many times, each followed by a run of the same words to its end, and health."""
    points: list[str] = []
    while len(points) < times:
        words = words_of(clients.fleet)
        number = drawn.randrange(1, _tasks(words) + 1)
        log = clients.fleet.lab.state / f"logs/bench-kill-{name}-{len(points)}.log"
        task = kill_when(words, _task(number), drawn.uniform(0, INTO_TASK_S), log)
        play(words, f"after-kill-{name}-{len(points)}")
        wait_for_health(clients.fleet)
        # One that came to its end before the point was no kill.
        if task:
            points.append(task)
            # All kills take hours: who ends them before has counts.
            counts = f"until now {len(clients.acknowledged())} writes acknowledged, {clients.lost()} lost"
            print(f"  {len(points)} of {times}: killed in '{task}', run again to its end; {counts}", flush=True)
    return f"{times} kills"


def _tasks(words: Sequence[str]) -> int:
    listed = run([*ansible_playbook(), *words, "--list-tasks"], cwd=REPOSITORY)
    assert listed.rc == 0, listed.err
    return sum("TAGS:" in line and not line.lstrip().startswith("play #") for line in listed.out.splitlines())


def _task(number: int) -> Callable[[str], bool]:
    """Whether a line is where the task of this number begins."""
    started = 0

    def begins(line: str) -> bool:
        nonlocal started
        started += line.startswith("TASK [")
        return started == number

    return begins


def kill_when(words: Sequence[str], reached: Callable[[str], bool], after_s: float, log: Path) -> str:
    """Start it, kill all of it so long after the first line that `reached` takes; the task or play of that line, or
    nothing when it had ended."""
    with (
        log.open("w") as file,
        subprocess.Popen(
            [*ansible_playbook(), *words], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        ) as process,
    ):  # fmt: skip
        try:
            for line in process.stdout or ():
                file.write(line)
                if reached(line):
                    time.sleep(after_s)
                    return line.partition("[")[2].rpartition("]")[0] if process.poll() is None else ""
            return ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
