"""The first run of site.yml in the lab: killed in the middle on purpose, twice, then run to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.lab.fleet import LAB_INVENTORY, PlaybookResult
from tests.lab.paths import REPOSITORY

from .fleet import Fleet, wait_until

# Killed when this play begins: etcd runs, the API servers are half-way.
KILL_AT = "Build the control plane"
# And in the middle of the driver's packages, when apt and dpkg have been killed at this one.
DRIVER_TASK = "Install the driver that was asked for"
CUT_AT = "nvidia-kernel-open-dkms"
CUT_HOST = "gpu-2"
results: dict[str, PlaybookResult] = {}
# What dpkg said of the host's packages after the second kill.
left_behind: dict[str, str] = {}


def kill_in_the_middle(fleet: Fleet) -> None:
    """Run site.yml on bare hosts and kill Ansible, all of it, a few tasks into the play named above."""
    in_play = 0

    def reached(line: str) -> bool:
        nonlocal in_play
        in_play += line.startswith(f"PLAY [{KILL_AT}]") or (in_play > 0 and line.startswith("TASK ["))
        return in_play == 4

    with _killed(fleet, "killed", reached):
        pass


def kill_at_the_driver(fleet: Fleet) -> None:
    """Run it for one GPU node, whose power is lost while its driver is installed, and kill Ansible then."""
    fleet.must(CUT_HOST, f"lab-nvidia set 'interrupt=[\"{CUT_AT}\"]'")
    with _killed(fleet, "killed-driver", lambda line: DRIVER_TASK in line, "-l", CUT_HOST):
        scenario = "cat /etc/muster-lab/nvidia.json"
        wait_until(
            f"apt and dpkg on {CUT_HOST} to be killed",
            lambda: (
                json.loads(fleet.must(CUT_HOST, scenario))["interrupt"] == []
                and fleet.ssh(CUT_HOST, "pgrep -x 'apt-get|dpkg'").rc == 1
            ),
            timeout_s=120,
        )
    left_behind[CUT_HOST] = fleet.must(CUT_HOST, "dpkg --audit")


@contextmanager
def _killed(fleet: Fleet, name: str, reached: Callable[[str], bool], *options: str) -> Iterator[None]:
    """site.yml, which has come to the line of its output that `reached` knows; all of it is killed after the block."""
    folder = fleet.lab.state / "logs"
    folder.mkdir(exist_ok=True)
    with (folder / f"{name}.log").open("w") as log, _site(options) as process:
        try:
            found = any(reached(_copied(line, log)) for line in process.stdout or ())
            assert found, f"the run ended before it could be killed: see {log.name}"
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _site(options: Sequence[str]) -> subprocess.Popen[str]:
    words: list[str | Path] = [
        Path(sys.executable).parent / "ansible-playbook",
        "-i",
        LAB_INVENTORY,
        REPOSITORY / "site.yml",
        *options,
    ]
    return subprocess.Popen(
        words, env={**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def _copied(line: str, log: TextIO) -> str:
    log.write(line)
    return line
