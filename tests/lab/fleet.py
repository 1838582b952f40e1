"""`make lab`: start the hosts, run site.yml on them through ansible-runner, print one screen of results.

`run_playbook` is also what the tests use: a progress line with stage, hosts and time left; the full log in a file.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import ansible_runner

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.fleet.mirror.progress import Progress, expected_s

from . import hosts
from .image import image_stages
from .model import read_groups, read_lab
from .paths import REPOSITORY, state_dir
from .prepare import prepare
from .preparing import DURATIONS, preparing

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


def run_playbook(
    playbook: Path,
    inventory: Path = LAB_INVENTORY,
    *,
    name: str,
    arguments: Sequence[str] = (),
    variables: Mapping[str, Any] | None = None,
    out: TextIO | None = None,
) -> PlaybookResult:
    """Run a playbook through ansible-runner; the full output goes to a log file named in the result."""
    log = state_dir("lab") / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    result = PlaybookResult(rc=0, seconds=0.0, log=log)
    groups = read_groups([inventory])
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="muster-runner-") as private,
        log.open("w") as log_file,
        Progress(name, out, also=DURATIONS) as progress,
    ):

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
        if result.rc == 0:
            progress.remember()
    result.seconds = time.monotonic() - started
    return result


def _digest(
    event: dict[str, Any], progress: Progress, result: PlaybookResult, groups: Mapping[str, Collection[str]]
) -> None:
    data = event.get("event_data", {})
    match event["event"]:
        case "playbook_on_play_start":
            pattern = str(data.get("pattern", ""))
            hosts_count = _count(pattern, groups)
            progress.stage(str(data.get("name", pattern)), f"{hosts_count} {'host' if hosts_count == 1 else 'hosts'}")
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
        with preparing() as progress:
            progress.plan([*image_stages(), hosts.START], after_s=expected_s("site", DURATIONS))
            prepare(progress)
            hosts.up(lab, progress)
    except GpuBurninError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("lab: stopped; what is finished is kept, and `make lab` goes on from there", file=sys.stderr)
        return 130
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
