"""A fleet that comes back at once, each node of which has to pass with another one before it is let in.

FabricTests, its choice and course, the stores, the budget of joins and all signatures are real; the clock is not.
Agents answer after a second, and members work for `seconds` and start for `START_S`. decide() is a stand-in by its
rules: a pass is let in at the pace of joins, and what waited for `wait_s` without a test as `alone` says.
"""

from __future__ import annotations

import io
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.decide.fabric import FABRIC_WAITS
from gpu_burnin.admission.fabric.candidates import Candidates
from gpu_burnin.admission.fabric.service import PICK_S, TICK_S, FabricTests
from gpu_burnin.admission.fabric.writes import Writes
from gpu_burnin.admission.fabric_config import Admission, Alone, FabricRules
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.admission.service.budgets import Budgets
from gpu_burnin.admission.service.cache import Pods
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.admission.view import Budget, Rules
from gpu_burnin.api.fabric_note import read_fabric_request
from gpu_burnin.api.record import State, Status
from gpu_burnin.system.clock import rfc3339_s
from tests.support.fabric_cluster import NAMES, FabricCluster
from tests.support.rendezvous_hosts import Host

HEAD = """| nodes | rounds | most at once | last tested | last let in | untested | CPU s: round | other tick | all |
|---|---|---|---|---|---|---|---|---|"""
OF_A_LEAF = 32
# From the offer to the first byte, and from the last one to the view on the Node: systemd-run, Python, two patches.
START_S = 3.0
_CUT = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
_LONG_S = 7200


class _Silent:
    """Events are for people."""

    def alarm(self, *_: object) -> None:
        """Nothing."""


@dataclass
class Cut:
    """The fleet as it comes back, and what is measured: seconds of the clock, and of the processor (`*_cpu_s`)."""

    cluster: FabricCluster
    rules: FabricRules
    rng: random.Random
    now_s: float = 0.0
    tested_s: dict[str, float] = field(default_factory=dict)
    open_s: dict[str, float] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    rounds: int = 0
    most_under_way: int = 0
    pick_cpu_s: list[float] = field(default_factory=list)
    tick_cpu_s: list[float] = field(default_factory=list)
    _at_work_s: dict[str, float] = field(default_factory=dict)
    _joins_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """The admitter leads, and has decided on all nodes."""
        tests, one = TestRules(), self.cluster
        clock, now = lambda: self.now_s, lambda: _CUT + timedelta(seconds=self.now_s)
        self.budgets = Budgets(one.records, AdmitterConfig.joins_per_s, 1.0, 1.0, tests.places, clock)
        self.service = FabricTests(
            self.rules,
            NAMES,
            Rules(names=NAMES).settle_s,
            tests.ask_again_s,
            Candidates(
                NAMES, one.nodes, one.records, Pods(NAMES.hold_until), self.budgets, {}, now=now, monotonic_s=clock
            ),
            Writes(NAMES, cast(KubeApi, one), one.nodes, one.records, lambda _: None),
            lambda: "",
            Journal(io.StringIO()),
            cast(EventRecorder, _Silent()),
            Metrics(),
            rng=self.rng,
        )

    def run(self) -> None:
        """Until all are let in."""
        while len(self.open_s) < len(self.cluster.hosts) and self.now_s < _LONG_S:
            if len(self.tested_s) < len(self.cluster.hosts):
                self._tick()
            self._let_in()
            self.now_s += TICK_S

    def _tick(self) -> None:
        picks, before = self.now_s % PICK_S == 0, set(self.budgets.between)
        began_s = time.process_time()
        self.service.tick()
        (self.pick_cpu_s if picks else self.tick_cpu_s).append(time.process_time() - began_s)
        under_way = self.budgets.between
        self.rounds += bool(under_way - before)
        self.most_under_way = max(self.most_under_way, len(under_way))
        for name in before | under_way:
            self._react(name)

    def _react(self, name: str) -> None:
        """decide() has its taint follow the request, and its agent answers."""
        one = self.cluster
        one.taint(name)
        text = one.notes(name).get(NAMES.fabric_test)
        answer = None
        if not text:
            self._at_work_s.pop(name, None)
        elif read_fabric_request(text).offer:
            over_s = self.now_s + START_S + self.rules.seconds
            if self.now_s < self._at_work_s.setdefault(name, over_s):
                return
        if text:
            answer = one.hosts[name].answer(text, _CUT + timedelta(seconds=self.now_s))
        one.annotate(name, NAMES.fabric, answer)
        if one.proof(name).get("bootID") == one.hosts[name].boot_id and name not in self.tested_s:
            self.tested_s[name] = self.now_s
            self._joins_s.setdefault(name, self.now_s)

    def _let_in(self) -> None:
        if self.now_s >= self.rules.wait_s and self.rules.alone is Alone.ADMIT:
            for name in self.cluster.hosts.keys() - self.open_s.keys() - self._joins_s.keys() - self.budgets.between:
                self._joins_s[name] = self.now_s
        for name in [name for name, at_s in self._joins_s.items() if at_s <= self.now_s]:
            grant = self.budgets.ask(Budget.JOIN, name)
            if grant.why:
                self._joins_s[name] = self.now_s + grant.after_s
                continue
            self.budgets.settled(name)
            del self._joins_s[name]
            self.open_s[name] = self.now_s
            if name not in self.tested_s:
                self.alone.add(name)
            self.cluster.status(name, state="ready", code="PASS")


def back(count: int, rules: FabricRules, seed: int) -> Cut:
    """A fleet that lost power in the middle of its work: each node had passed with two others in the boot before."""
    one = FabricCluster({host.name: host for host in map(Host, range(1, count + 1))})
    for number, host in enumerate(one.hosts.values()):
        address = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
        one.add(host, address, f"leaf-{number // OF_A_LEAF}", Status(State.TESTING, code=FABRIC_WAITS))
        before = {"bootID": f"{host.boot_id[:-1]}f", "testedAt": rfc3339_s(_CUT - timedelta(hours=9))}
        one.status(host.name, fabric={**before, "outcome": "passed", "run": "r", "passes": 2})
    return Cut(one, rules, random.Random(seed))


def row(count: int, seed: int) -> str:
    """What comes of a fleet of so many, by the default settings but for `admission: required`."""
    cut = back(count, FabricRules(admission=Admission.REQUIRED), seed)
    cut.run()
    picks, ticks = cut.pick_cpu_s, cut.tick_cpu_s
    return (
        f"| {count:,} | {cut.rounds} | {cut.most_under_way} | {max(cut.tested_s.values()):,.0f} s | "
        f"{max(cut.open_s.values()):,.0f} s | {len(cut.alone):,} | {_mean(picks):.2f} ({max(picks):.2f}) | "
        f"{_mean(ticks):.2f} ({max(ticks):.2f}) | {sum(picks) + sum(ticks):,.0f} |"
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
