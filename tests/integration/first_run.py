"""The first run of site.yml in the lab: killed in the middle on purpose, then run to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.fleet import LAB_INVENTORY, PlaybookResult
from tests.lab.paths import REPOSITORY

from .fleet import Fleet

# Killed when this play begins: etcd runs, the API servers are half-way.
KILL_AT = "Build the control plane"
results: dict[str, PlaybookResult] = {}


def kill_in_the_middle(fleet: Fleet) -> None:
    """Run site.yml on bare hosts and kill Ansible, all of it, a few tasks into the play named above."""
    log_dir = fleet.lab.state / "logs"
    log_dir.mkdir(exist_ok=True)
    playbook = Path(sys.executable).parent / "ansible-playbook"
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg")}
    with (
        (log_dir / "killed.log").open("w") as log,
        subprocess.Popen(
            [playbook, "-i", str(LAB_INVENTORY), str(REPOSITORY / "site.yml")],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        tasks_seen = 0
        in_play = False
        for line in process.stdout or ():
            log.write(line)
            in_play = in_play or line.startswith(f"PLAY [{KILL_AT}]")
            tasks_seen += in_play and line.startswith("TASK [")
            if tasks_seen == 3:
                os.killpg(process.pid, signal.SIGKILL)
                break
    assert tasks_seen == 3, f"the first run ended before it could be killed: see {log_dir / 'killed.log'}"
