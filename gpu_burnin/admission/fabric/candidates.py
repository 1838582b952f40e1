"""Which nodes can be tested with others now, what their Nodes say of it, and what tests have found of them so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpu_burnin.admission.decide.between import FABRIC_SUSPECT, done_since
from gpu_burnin.admission.decide.fabric import wanted
from gpu_burnin.admission.decide.maintenance import BEGUN
from gpu_burnin.admission.decide.nodes import annotation, boot_id, effects, gated
from gpu_burnin.admission.decide.times import when
from gpu_burnin.admission.fabric import proofs
from gpu_burnin.admission.fabric.course import Seen
from gpu_burnin.admission.fabric.pick import Row
from gpu_burnin.admission.service.budgets import Budgets
from gpu_burnin.admission.service.cache import Nodes, Pods, Records, Summary
from gpu_burnin.admission.view import Node
from gpu_burnin.api.agent_note import NoteError, read_note
from gpu_burnin.api.fabric_note import FabricAnswer, FabricRequest, read_fabric_answer
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import State

# Why a node's test with another one is waited for, "" where nobody waits.
Wanted = Callable[[str, Summary], str]


@dataclass
class Candidates:
    """Reads the stores alone. `spoken_for` are the jobs that are about to start on a node: then it is in no test but
    one that the job waits for, or one with its suspect.
    """

    names: Names
    nodes: Nodes
    records: Records
    pods: Pods
    budgets: Budgets
    chosen: Mapping[str, object]
    wanted: Wanted = lambda name, summary: wanted(name, summary.code)
    spoken_for: Callable[[str], Collection[str]] = lambda name: ()
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    _rests_until_s: dict[str, float] = field(default_factory=dict)

    def rest(self, names: Iterable[str], for_s: float) -> None:
        """Leave these out for so long."""
        self._rests_until_s.update(dict.fromkeys(names, self.monotonic_s() + for_s))

    def rows(self) -> tuple[list[Row], int]:
        """Those that can be tested now; and how many of the fleet, busy ones too, are neither suspect nor named."""
        rows, sound = [], 0
        for name, summary in self.records.all_summaries():
            why = self.wanted(name, summary)
            fit = summary.state is State.READY or summary.code == FABRIC_SUSPECT or bool(why)
            boot = self.nodes.boot_of(name)
            if not (fit and summary.has_nics) or boot is None:
                continue
            proof = self._proof(summary, boot)
            # It waits for a repair, though a budget may keep it at work.
            if proofs.is_named(proof):
                continue
            sound += not proofs.is_suspect(proof)
            if name in self.budgets.between or self._rests_until_s.get(name, 0.0) > self.monotonic_s():
                continue
            if not self.hindrance(name):
                rows.append(Row(name, summary.place[1], proof, why, tuple(self.spoken_for(name))))
        return rows, sound

    def proof(self, name: str, boot: str) -> FabricProof | None:
        """What counts of the tests before, in this boot."""
        summary = self.records.summaries.get(name)
        return self._proof(summary, boot) if summary is not None else None

    def look_at(self, name: str, node: Node | None, request: FabricRequest | None) -> Seen:
        """What a member's Node says."""
        if node is None:
            return Seen(hindrance="its Node is gone")
        text = annotation(node, self.names.agent)
        try:
            agent_boot = read_note(text).boot_id if text is not None else ""
        except NoteError:
            agent_boot = ""
        closed = gated(node, self.names) or bool(effects(node, self.names.testing))
        boots = (boot_id(node), agent_boot)
        return Seen(request, _answer(node, self.names), boots, closed, self.hindrance(name))

    def hindrance(self, name: str) -> str:
        """Why it cannot be tested now, "" where it can."""
        summary, now = self.records.summaries.get(name), self.now()
        if summary is None:
            return "it has no NodeAdmission"
        if not self.pods.idle(name):
            return "a pod with GPUs is on it"
        if summary.code == BEGUN:
            return "a maintenance window is near or open"
        if summary.asked_until is not None and now < summary.asked_until:
            return "a person asks for it"
        waits = summary.retest_until is not None and now < summary.retest_until
        if waits or summary.under_test(now) or name in self.chosen:
            return "it is asked for a test of its own"
        return ""

    def _proof(self, summary: Summary, boot: str) -> FabricProof | None:
        """Of what a failure has left a repair, or a test that a person asked for, is the end; of a suspicion a boot."""
        proof = summary.fabric
        if proof is None:
            return None
        failed = proof.outcome is not FabricOutcome.PASSED
        if failed and done_since(proof, when(summary.retested), when(summary.repaired_at)):
            return None
        return proof if proof.boot_id == boot or proofs.is_named(proof) else None


def _answer(node: Node, names: Names) -> FabricAnswer | None:
    text = annotation(node, names.fabric)
    try:
        return None if text is None else read_fabric_answer(text)
    except NoteError:
        return None
