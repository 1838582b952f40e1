"""Tests between nodes as the service has them: agents, kubelet and decide() are stand-ins, the rest is real."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.fabric.candidates import Candidates
from gpu_burnin.admission.fabric.service import FabricTests
from gpu_burnin.admission.fabric.writes import Writes
from gpu_burnin.admission.fabric_config import FabricRules
from gpu_burnin.admission.service.budgets import Budgets
from gpu_burnin.admission.service.cache import Pods
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.fabric_note import read_fabric_request
from gpu_burnin.api.fabric_view import Outcome
from gpu_burnin.api.record import Accepted, State, Status
from gpu_burnin.api.rendezvous import parse_test
from tests.support.fabric_cluster import NAMES, RECORD, FabricCluster
from tests.support.rendezvous_hosts import Host

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
RULES = FabricRules(every_s=86400.0)


@dataclass
class Alarms:
    """The recorder: whom an event was told of."""

    names: list[str] = field(default_factory=list)

    def alarm(self, namespace: str, reference: dict[str, str], reason: str, message: str) -> None:
        self.names.append(reference["name"])


@dataclass
class Fleet(FabricCluster):
    """Hosts in one leaf. `bad` send wrong bytes, `dead` have no agent, `hung` ones begin and give no view.

    `braked`: the gate's budget keeps at work what tests have found.
    """

    bad: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    hung: set[str] = field(default_factory=set)
    paused: str = ""
    now_s: float = 0.0
    rules: FabricRules = RULES
    braked: bool = False
    alarms: Alarms = field(default_factory=Alarms)
    chosen: dict[str, object] = field(default_factory=dict)
    places: int = 8
    said: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.pods, self.metrics = Pods(NAMES.hold_until), Metrics()
        for host in self.hosts.values():
            accepted = Accepted(1, host.boot_id, "", "", "quick", "", "", "")
            self.add(host, f"198.51.100.{host.number}", "a", Status(State.READY, accepted=accepted))
        self.lead()

    def lead(self, wanted: str = "") -> None:
        """Another process leads."""
        self.service = FabricTests(
            self.rules,
            NAMES,
            1.0,
            600.0,
            Candidates(
                NAMES,
                self.nodes,
                self.records,
                self.pods,
                Budgets(self.records, 5.0, 1.0, 1.0, lambda _: self.places),
                self.chosen,
                now=lambda: NOW + timedelta(seconds=self.now_s),
                monotonic_s=lambda: self.now_s,
            ),
            Writes(NAMES, cast(KubeApi, self), self.nodes, self.records, lambda _: None),
            lambda: self.paused,
            Journal(self.said),
            cast(EventRecorder, self.alarms),
            self.metrics,
            rng=random.Random(1),
        )

    # What nodes and decide() do.

    def boot(self, name: str, boot_id: str) -> None:
        self.annotate(name, NAMES.agent, note_text(AgentNote(boot_id)))

    def outcomes(self) -> dict[str, str]:
        return {name: str(self.proof(name).get("outcome", "")) for name in self.hosts}

    def under_test(self) -> set[str]:
        return {name for name in self.hosts if NAMES.fabric_test in self.notes(name)}

    def react(self) -> None:
        """decide() sets and takes the taint, and the state; agents answer."""
        for name, host in self.hosts.items():
            text = self.notes(name).get(NAMES.fabric_test)
            self.taint(name)
            code = {"suspect": "FABRIC_SUSPECT", "named": "FABRIC_NODE"}.get(self.outcomes()[name], "")
            state = {"suspect": "suspect", "named": "quarantined"}.get(self.outcomes()[name], "ready")
            state = "ready" if self.braked else state
            if code != self.objects[RECORD + name]["status"]["code"]:
                self.status(name, code=code, state=state)
            if name not in self.dead:
                self.annotate(name, NAMES.fabric, self.answer(name, host, text) if text else None)

    def answer(self, name: str, host: Host, text: str) -> str:
        members = parse_test(read_fabric_request(text).test.encode()).names
        outcome = Outcome.WRONG if set(members) & self.bad else Outcome.OK
        return host.answer(text, NOW + timedelta(seconds=self.now_s), None if name in self.hung else outcome)

    def go_on(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.service.tick()
            self.react()

    def count(self, result: str) -> float:
        return self.metrics.value("fabric_tests", result=result)


def fleet(number: int, **changes: Any) -> Fleet:
    """So many hosts, gpu-1 and so on."""
    hosts = [Host(one) for one in range(1, number + 1)]
    return Fleet({host.name: host for host in hosts}, **changes)


def named(made: Fleet, name: str) -> dict[str, Any]:
    """The proof of one that was named an hour ago."""
    found = {"outcome": "named", "failures": 3, "passes": 0, "run": "r", "claim": f"node {name}: wrong data"}
    return {"bootID": made.hosts[name].boot_id, "testedAt": "2026-11-28T11:00:00Z", **found}
