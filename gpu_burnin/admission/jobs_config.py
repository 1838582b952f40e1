"""What the admitter is told of teams and their jobs: the key `jobs` of its configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.api.levels import LEVEL_NAMES

_MOST_S = 366 * 86_400
# A team is the name of a Namespace, a model the value of a label.
_TEAM = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MODEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class QueueConfig:
    """What the nodes of a job of this queue have to show: the least level of proof, and a pass with another node.

    `gang_test`: each of its nodes, where it has several, has passed a test with another one not long ago.
    """

    level: str = "standard"
    gang_test: bool = False


@dataclass(frozen=True)
class JobsConfig:
    """Teams and their jobs. `queues` by the name of the ClusterQueue, which is the team's.

    `dedicated` are GPUs by team and model (a key of hardware/skus.yaml): so many GPUs, in whole nodes, are the team's
    alone. No maintenance window may begin within `window_s` of a job's start (or within the time that the job says it
    needs). A check waits `wait_s` for the nodes that were chosen; then they are chosen again. With `gang_test` a pass
    with another node counts for `gang_age_s`.
    """

    queues: Mapping[str, QueueConfig] = field(default_factory=dict)
    dedicated: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    window_s: float = 3600.0
    wait_s: float = 600.0
    gang_age_s: float = 3600.0

    @property
    def gang_test(self) -> bool:
        """Whether a queue asks for tests between the nodes of its jobs."""
        return any(queue.gang_test for queue in self.queues.values())

    @property
    def teams(self) -> frozenset[str]:
        """All that have a queue."""
        return frozenset(self.queues)


def problem(jobs: JobsConfig) -> str:
    """What is wrong with a value of these, "" for nothing."""
    for team in (*jobs.queues, *jobs.dedicated):
        if not _TEAM.fullmatch(team):
            return f"jobs names the team {team!r}; give the name of a Namespace: small letters, digits and -"
    for team, queue in jobs.queues.items():
        if queue.level not in LEVEL_NAMES:
            return f"jobs.queues.{team}.level is {queue.level!r}; give one of {', '.join(LEVEL_NAMES)}"
    for team, models in jobs.dedicated.items():
        if team not in jobs.queues:
            return f"jobs.dedicated names the team {team}, which jobs.queues does not have; add it there"
        for model, gpus in models.items():
            if not _MODEL.fullmatch(model):
                return f"jobs.dedicated.{team} names the model {model!r}; give a key of hardware/skus.yaml"
            if gpus < 0:
                return f"jobs.dedicated.{team}.{model} is {gpus}; give a number of GPUs, 0 or more"
    if not 0 <= jobs.window_s <= _MOST_S:
        return f"jobs.window_s is {jobs.window_s:g}; give seconds, 0 or more"
    if not 10 <= jobs.wait_s <= _MOST_S:
        return f"jobs.wait_s is {jobs.wait_s:g}; give 10 seconds or more"
    if not 60 <= jobs.gang_age_s <= _MOST_S:
        return f"jobs.gang_age_s is {jobs.gang_age_s:g}; give 60 seconds or more"
    return ""
