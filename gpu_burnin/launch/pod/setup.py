"""What the pod says of its job, and what the processes are told. Standard library alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TERMINATION_LOG = "/dev/termination-log"


class Refused(Exception):
    """The processes cannot be started; one sentence."""


class Setup:
    """What the pod's environment and its launch.json say."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises Refused where something is missing or no number."""
        try:
            self.launch = Path(environment["MUSTER_LAUNCH_DIR"])
            self.work = Path(environment["MUSTER_WORK_DIR"])
            self.leave = Path(environment["MUSTER_LEAVE_FILE"])
            self.node_leave = Path(environment["MUSTER_NODE_LEAVE_FILE"])
            self.node = int(environment["JOB_COMPLETION_INDEX"])
            self.nodes = int(environment["MUSTER_NODES"])
            self.processes = int(environment["MUSTER_PROCESSES"])
            self.grace_s = float(environment["MUSTER_GRACE_S"])
            self.least_run_s = float(environment["MUSTER_LEAST_RUN_S"])
            self.master = environment["MASTER_ADDR"]
            document: dict[str, Any] = json.loads((self.launch / "launch.json").read_text(encoding="utf-8"))
            self.entry = str(document["entry"])
            self.argv: list[str] = [str(one) for one in document["argv"]]
            self.url: str | None = document.get("url")
            self.sha256: str | None = document.get("sha256")
        except (KeyError, ValueError, TypeError, OSError) as error:
            raise Refused(f"the job's settings cannot be read ({error!r}); launch it with muster run") from error
        self.source = self.work / "source"
        self.termination_log = Path(environment.get("MUSTER_TERMINATION_LOG", _TERMINATION_LOG))

    def of_rank(self, local: int, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment of a process: torchrun's names."""
        rank = self.node * self.processes + local
        home, temporary = self.work / "home", self.work / "tmp"
        path = [str(self.source), environment.get("PYTHONPATH", ""), str(self.launch / "lib")]
        found = dict(environment)
        found.update(
            RANK=str(rank),
            LOCAL_RANK=str(local),
            WORLD_SIZE=str(self.nodes * self.processes),
            LOCAL_WORLD_SIZE=str(self.processes),
            NODE_RANK=str(self.node),
            GROUP_RANK=str(self.node),
            GROUP_WORLD_SIZE=str(self.nodes),
            ROLE_RANK=str(rank),
            ROLE_WORLD_SIZE=str(self.nodes * self.processes),
            HOME=str(home),
            TMPDIR=str(temporary),
            PYTHONPATH=os.pathsep.join(one for one in path if one),
            PYTHONUNBUFFERED="1",
        )
        if self.processes > 1:
            # As torchrun: else each of them starts a thread for each core.
            found.setdefault("OMP_NUM_THREADS", "1")
        return found
