"""Whose turn it is to be tested: what the schedule chooses from all nodes, and whom it has chosen lately."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_burnin.admission.schedule.pick import Choice, Row, overdue, pick
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.admission.service.cache import Nodes, Pods, Records


@dataclass
class Turns:
    """Chooses the nodes to test now into `choices`: by the schedule, and those that jobs wait for (`of_jobs`).

    `overdue` of them were never idle since their test was due.
    """

    rules: TestRules
    records: Records
    nodes: Nodes
    pods: Pods
    choices: dict[str, Choice]
    enqueue: Callable[[str], None]
    paused: Callable[[], str]
    of_jobs: Callable[[], Iterable[Choice]]
    overdue: int = 0
    _asked_at: dict[str, str] = field(default_factory=dict)

    def schedule(self, now: datetime, rng: random.Random | None = None) -> None:
        """Choose the nodes to test now."""
        # They have begun (the record says so), or something stood in their way: they are chosen again later.
        self.choices.clear()
        forgotten = (now - timedelta(seconds=10 * self.rules.ask_again_s)).isoformat()
        self._asked_at = {name: at for name, at in self._asked_at.items() if at > forgotten}
        rows = [
            Row(
                name,
                summary.state,
                name in self.nodes and self.pods.idle(name),
                summary.proofs,
                summary.use,
                self._asked_at.get(name, ""),
                summary.repaired_at,
                summary.under_test(now),
            )
            for name, summary in self.records.all_summaries()
        ]
        self.overdue = len(overdue(rows, self.rules, now))
        if self.paused():
            return
        for choice in (*pick(rows, self.rules, now, rng or random.Random()), *self.of_jobs()):
            self.choose(choice, now)

    def choose(self, choice: Choice, now: datetime) -> None:
        """Have this one tested."""
        self.choices[choice.name] = choice
        self._asked_at[choice.name] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        self.enqueue(choice.name)
