"""Callback for tests.bench.ansible_cost: what each task of a playbook took of the controller, as JSON.

The file is named by MUSTER_TASK_COST. At the end of a task all its workers are waited for, so that the processor time
of ansible-playbook and of its children since the task began is that task's. SSH's master connections outlive the
playbook and are not in it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: task_cost
type: aggregate
short_description: What each task took of the controller
description: Written for the benchmark of the controller's cost.
"""


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Keeps the tasks in the order in which they ran."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "task_cost"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tasks: list[dict[str, Any]] = []
        self._play = ""
        self._cpu_s, self._clock_s = _cpu_s(), time.monotonic()

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Note the play's name."""
        self._close()
        self._play = play.get_name()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Begin a task: what was used since the one before is that one's."""
        self._close()
        role = task._role.get_name().rpartition(".")[2] if task._role else ""
        begun = {"play": self._play, "role": role, "name": task.get_name(), "action": task.action, "hosts": 0}
        self._tasks.append(begun)

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Count a host-task: Ansible has started a worker for it, though it may find that there is nothing to do."""
        self._tasks[-1]["hosts"] += 1

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write everything."""
        self._close()
        hosts = {host: stats.summarize(host) for host in stats.processed}
        Path(os.environ["MUSTER_TASK_COST"]).write_text(json.dumps({"tasks": self._tasks, "hosts": hosts}))

    def _close(self) -> None:
        for worker in multiprocessing.active_children():
            worker.join()
        cpu_s, clock_s = _cpu_s(), time.monotonic()
        if self._tasks and "cpu_s" not in self._tasks[-1]:
            self._tasks[-1] |= {"cpu_s": cpu_s - self._cpu_s, "wall_s": clock_s - self._clock_s}
        self._cpu_s, self._clock_s = cpu_s, clock_s


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)
