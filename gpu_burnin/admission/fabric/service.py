"""Tests between nodes at work: begins, carries on and ends them by writes to Nodes, and keeps what they show.

The testing taint is decide()'s: it follows the request on the Node, and goes with it.
"""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound, admissions_path, node_path
from gpu_burnin.admission.decide.between import FABRIC_SUSPECT, requested_test
from gpu_burnin.admission.decide.desired import map_patch, version_test
from gpu_burnin.admission.decide.fabric import wanted
from gpu_burnin.admission.decide.maintenance import BEGUN
from gpu_burnin.admission.decide.nodes import annotation, boot_id, effects, gated
from gpu_burnin.admission.decide.times import stamp, when
from gpu_burnin.admission.fabric import course, proofs
from gpu_burnin.admission.fabric.course import Seen, Step
from gpu_burnin.admission.fabric.pick import Choice, Row, pick
from gpu_burnin.admission.fabric_config import FabricRules
from gpu_burnin.admission.service.budgets import Budgets
from gpu_burnin.admission.service.cache import Nodes, Pods, Records, Summary
from gpu_burnin.admission.service.journal import EventRecorder, Journal, lease_reference, node_reference
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.trouble import Trouble
from gpu_burnin.admission.sshsig import signature_holds
from gpu_burnin.admission.view import Node, Patch
from gpu_burnin.api.agent_note import NoteError, read_note
from gpu_burnin.api.fabric_note import FabricAnswer, FabricRequest, fabric_text, read_fabric_answer
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.names import SYSTEM_NAMESPACE, Names
from gpu_burnin.api.record import State
from gpu_burnin.api.rendezvous import FabricTest, parse_test
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import Found, Kind, Purpose, Result, Test
from gpu_burnin.fabric.verdict import verdict_of
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.prose import listed

TICK_S, PICK_S = 1.0, 5.0
# A record that tells of a failure is looked at within this time: until then its state is none that counts.
_SETTLES_S = 30.0
# So many nodes at most are in tests since somebody waits for these: after a power cut all do.
_MOST_WAITING = 128
# Why a node's test with another one is waited for, "" where nobody waits.
Wanted = Callable[[str, Summary], str]


@dataclass
class FabricTests:
    """`rules` may change nothing while it works; `again_s`: after a test that came to nothing its members rest."""

    rules: FabricRules
    names: Names
    settle_s: float
    again_s: float
    api: KubeApi
    nodes: Nodes
    records: Records
    pods: Pods
    budgets: Budgets
    chosen: Mapping[str, object]
    enqueue: Callable[[str], None]
    paused: Callable[[], str]
    journal: Journal
    recorder: EventRecorder
    metrics: Metrics
    wanted: Wanted = lambda name, summary: wanted(summary.code)
    # Whether a job is about to start on the node: then it is in no test but one that the job waits for.
    spoken_for: Callable[[str], object] = lambda name: False
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    # The members of each test that is under way; None before the Nodes were looked through.
    _running: dict[str, tuple[str, ...]] | None = None
    # Those of them whose result is kept and told: their requests alone are left to be taken away.
    _kept: set[str] = field(default_factory=set)
    _rests_until_s: dict[str, float] = field(default_factory=dict)
    _leaves_due_s: dict[str, float] = field(default_factory=dict)
    _pick_s: float = 0.0

    def run(self, wait: Callable[[float], object]) -> None:
        """Work until `wait`, which waits so many seconds, says that it is over."""
        for result in ("passed", "failed", "inconclusive"):
            self.metrics.add("fabric_tests", {"result": result}, by=0)
        trouble = Trouble(self.journal.say)
        while not wait(TICK_S):
            try:
                self.tick()
            except NotLeader:
                continue
            except ApiError as error:
                trouble.begin(error.status, f"tests between nodes: {error}")
            except Exception as error:
                words = f"tests between nodes: a fault of muster itself ({error!r})"
                trouble.begin(repr(error), f"{words}: {traceback.format_exc()}")
            else:
                trouble.end("tests between nodes go on")

    def tick(self) -> None:
        """One step of each test, and new ones in their time."""
        if self._running is None:
            self._running = self._found()
        for test_id in list(self._running):
            self._step(test_id)
        self.budgets.between = {name for members in self._running.values() for name in members}
        if self.monotonic_s() >= self._pick_s:
            self._pick_s = self.monotonic_s() + PICK_S
            if not self.paused():
                self._begin()

    def outcomes(self) -> Counter[str]:
        """How many nodes there are of each outcome, whatever their boot."""
        counts = Counter({str(one): 0 for one in FabricOutcome})
        counts.update(str(one.fabric.outcome) for _, one in self.records.all_summaries() if one.fabric is not None)
        return counts

    # A test that is under way.

    def _found(self) -> dict[str, tuple[str, ...]]:
        """What a leader before this one has begun: it stands on the Nodes."""
        found: dict[str, tuple[str, ...]] = {}
        for name in self.nodes.known():
            node = self.nodes.get(name)
            request = requested_test(node, self.names) if node is not None else None
            if request is not None and request.id not in found:
                test = _test_of(request)
                found[request.id] = test.names if test is not None else (name,)
        return found

    def _step(self, test_id: str) -> None:
        assert self._running is not None
        members = self._running[test_id]
        nodes = {name: self.nodes.get(name) for name in members}
        there = {name: node for name, node in nodes.items() if node is not None}
        requests = {name: one for name, node in there.items() if (one := self._request(node, test_id)) is not None}
        # With the offer, where a member has it already: each is brought to the same.
        request = max(requests.values(), key=lambda one: bool(one.offer), default=None)
        test = _test_of(request) if request is not None else None
        if request is None or test is None or test_id in self._kept:
            self._over(test_id, there)
            return
        seen = {name: self._look_at(name, nodes.get(name), requests.get(name)) for name in test.names}
        step = course.step(request, test, seen, self.now(), settle_s=self.settle_s, holds=signature_holds)
        if step.give is not None:
            self._give(step.give, {name: there[name] for name in there if requests.get(name) != step.give})
        elif step.result is not None and self._keep(request, test, step, step.result):
            self._kept.add(test_id)
            self._over(test_id, there)

    def _request(self, node: Node, test_id: str) -> FabricRequest | None:
        request = requested_test(node, self.names)
        return request if request is not None and request.id == test_id else None

    def _look_at(self, name: str, node: Node | None, request: FabricRequest | None) -> Seen:
        if node is None:
            return Seen(hindrance="its Node is gone")
        text = annotation(node, self.names.agent)
        try:
            agent_boot = read_note(text).boot_id if text is not None else ""
        except NoteError:
            agent_boot = ""
        closed = gated(node, self.names) or bool(effects(node, self.names.testing))
        boots = (boot_id(node), agent_boot)
        return Seen(request, _answer(node, self.names), boots, closed, self._hindrance(name))

    def _hindrance(self, name: str) -> str:
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
        if summary.under_test(now) or name in self.chosen:
            return "it is asked for a test of its own"
        return ""

    def _keep(self, request: FabricRequest, test: FabricTest, step: Step, result: Result) -> bool:
        """Write what a test has shown into the ledger; whether all of it is written."""
        before = {name: self._proof(name, test) for name in test.names}
        suspects = [name for name in test.names if proofs.is_suspect(before[name])]
        suspect = suspects[0] if len(suspects) == 1 and test.kind is Kind.PAIR else ""
        purpose = Purpose.LEAF if test.kind is not Kind.PAIR else Purpose.PROBE if suspect else Purpose.PAIRS
        judged, _ = verdict_of(Test(test.test, test.kind, purpose, test.names, test.names, suspect), result)
        rails = {one.name: tuple(nic.rail for nic in one.nics) for one in test.members}
        boots = {one.name: one.boot_id for one in test.members}
        found = proofs.after(judged, before, boots, request.id, stamp(self.now()), rails)
        done = [self._write_proof(name, proof) for name, proof in found.items() if not _counted(before[name], request)]
        if not all(done):
            return False
        passed, spoiled = judged.found is Found.PASS, judged.found is Found.SPOILED
        self.metrics.add("fabric_tests", {"result": "passed" if passed else "inconclusive" if spoiled else "failed"})
        why = step.why or judged.why
        if spoiled:
            until_s = self.monotonic_s() + self.again_s
            # Who did its part may be in the next test.
            self._rests_until_s.update(dict.fromkeys(_hindered(result) or test.names, until_s))
        details = "; ".join(f"{name}: {words}" for name, words in {**result.refused, **step.found}.items())
        more = f" ({why or details})" if (why or details) and not passed else ""
        message = f"test between {listed(list(test.names), 4)}: {judged.found}{more}"
        self.journal.say(message, test=request.id)
        if passed or spoiled:
            return True
        for name in found:
            self.recorder.alarm("default", node_reference(name), "MusterFabricTest", message)
        if test.kind is not Kind.PAIR:
            message += "; its nodes pass in pairs: `muster fabric run` with this leaf narrows it"
            self.recorder.alarm(SYSTEM_NAMESPACE, lease_reference(), "MusterFabricTest", message)
        return True

    def _proof(self, name: str, test: FabricTest) -> FabricProof | None:
        """What counts of the tests before, in the boot of this test."""
        summary = self.records.summaries.get(name)
        boot = next(one.boot_id for one in test.members if one.name == name)
        proof = summary.fabric if summary is not None else None
        return None if proof is None or proof.boot_id != boot or self._is_over(summary, proof) else proof

    def _is_over(self, summary: Summary | None, proof: FabricProof) -> bool:
        """Whether a repair, or a test that a person asked for, has ended what a failure has left."""
        if proof.outcome is FabricOutcome.PASSED or summary is None or not _is_clear(summary):
            return False
        return not self._is_fresh(proof)

    def _is_fresh(self, proof: FabricProof) -> bool:
        tested = when(proof.tested_at)
        return tested is not None and (self.now() - tested).total_seconds() < _SETTLES_S

    # New ones.

    def _begin(self) -> None:
        known = self.records.all_summaries()
        rows = [row for name, summary in known if (row := self._row(name, summary)) is not None]
        every_s, now_s = self.rules.every_s, self.now().timestamp()
        sizes = Counter(leaf for _, summary in known if (leaf := summary.place[1]))
        due = {leaf: size for leaf, size in sizes.items() if every_s and self._leaf_due_s(leaf) <= self.monotonic_s()}
        chosen = pick(rows, self._places(), every_s, now_s, self.rng, due)
        # Who is waited for takes no work meanwhile, so that two of them take no place of those that may.
        taken = {name for choice in chosen for name in choice.members}
        waiting = [row for row in rows if row.wanted and row.name not in taken]
        room = _MOST_WAITING - len(self.budgets.between) - len(taken)
        for choice in (*chosen, *pick(waiting, room, 0.0, now_s, self.rng)):
            self._begin_test(choice)
            if len(choice.members) > 2:
                leaf = self.records.summaries[choice.members[0]].place[1]
                self._leaves_due_s[leaf] = self.monotonic_s() + every_s

    def _leaf_due_s(self, leaf: str) -> float:
        """When a leaf is to be tested as a whole. Who has just begun to lead does not know when one was: at random."""
        first_s = self.monotonic_s() + self.rng.random() * self.rules.every_s
        return self._leaves_due_s.setdefault(leaf, first_s)

    def _places(self) -> int:
        """How many nodes more may be tested: of a small fleet one pair, where nothing else is tested."""
        left, busy = self.budgets.tests_left(), self.budgets.between or self.records.under_test()
        return max(left, 0 if busy or not left else 2)

    def _row(self, name: str, summary: Summary) -> Row | None:
        wanted = self.wanted(name, summary)
        fit = summary.state is State.READY or summary.code == FABRIC_SUSPECT or bool(wanted)
        if not (fit and summary.has_nics and name in self.nodes) or name in self.budgets.between:
            return None
        if not wanted and self.spoken_for(name):
            return None
        if self._rests_until_s.get(name, 0.0) > self.monotonic_s() or self._hindrance(name):
            return None
        proof = summary.fabric
        if proof is not None and proof.outcome is not FabricOutcome.PASSED and _is_clear(summary):
            if self._is_fresh(proof):
                return None
            proof = None
        # A suspect that was never let in has this code for a test of its boot alone.
        of_boot = proof is not None and (proof.boot_id == summary.boot_id or summary.code == FABRIC_SUSPECT)
        return Row(name, summary.place[1], proof if of_boot else None, wanted)

    def _begin_test(self, choice: Choice) -> None:
        """Begin a test, unless something of its members is not as it should be."""
        assert self._running is not None
        members, keys, nodes = [], {}, {}
        for name in choice.members:
            try:
                record = self.records.get(name)
            except GpuBurninError:
                return
            node = self.nodes.get(name)
            if record is None or node is None or requested_test(node, self.names) is not None:
                return
            seen = self._look_at(name, node, None)
            if not record.spec.identity.host_key or len(set(seen.boots)) != 1 or not seen.boots[0]:
                self._rests_until_s[name] = self.monotonic_s() + self.again_s
                return
            members.append((name, seen.boots[0], record.spec.fabric))
            keys[name], nodes[name] = record.spec.identity.host_key, node
        request = course.planned(
            members,
            keys,
            self.now(),
            seconds=self.rules.seconds,
            size_bytes=self.rules.size_mib << 20,
            settle_s=self.settle_s,
        )
        if _test_of(request) is None:
            # An address or a rail of theirs is none that a test can have.
            self._rests_until_s.update(dict.fromkeys(keys, self.monotonic_s() + self.again_s))
            self.journal.say(
                f"{listed(list(choice.members), 4)} cannot be tested with each other: they have no rail in common, or "
                "the same address; correct fleet_fabric_nics"
            )
            return
        if not self._give(request, nodes):
            return
        self._running[request.id] = choice.members
        self.budgets.between = self.budgets.between | set(keys)
        self.journal.say(f"{listed(list(choice.members), 4)} are tested with each other: {choice.why}", test=request.id)

    # Writes.

    def _give(self, request: FabricRequest, nodes: Mapping[str, Node]) -> bool:
        """Whether one of them has it now; the next step brings it to the others."""
        given = [self._annotate(name, node, fabric_text(request)) for name, node in nodes.items()]
        return any(given)

    def _over(self, test_id: str, nodes: Mapping[str, Node]) -> None:
        """Take the requests away; the test is over where none is left."""
        assert self._running is not None
        mine = {name: node for name, node in nodes.items() if self._request(node, test_id) is not None}
        if all(self._annotate(name, node, None) for name, node in mine.items()):
            del self._running[test_id]
            self._kept.discard(test_id)

    def _annotate(self, name: str, node: Node, text: str | None) -> bool:
        """Whether it is written; where it is not, the Node is read anew and the next step tries again."""
        change = map_patch("/metadata/annotations", node["metadata"].get("annotations"), {self.names.fabric_test: text})
        if not self._patch(node_path(name), [version_test(node), *change], f"patch node {name}", self.nodes):
            return False
        self.enqueue(name)
        return True

    def _write_proof(self, name: str, proof: FabricProof) -> bool:
        version = self.records.version_of(name)
        patch: Patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/status/fabric", "value": to_json(proof)},
        ]
        path = admissions_path(self.names, name)
        if not self._patch(path, patch, f"write what tests between nodes found of {name}", self.records, "/status"):
            return False
        self.enqueue(name)
        return True

    def _patch(self, path: str, patch: Patch, what: str, store: Nodes | Records, part: str = "") -> bool:
        try:
            store.put(self.api.patch(path + part, patch, what))
        except Conflict:
            if (item := self.api.find(path)) is not None:
                store.put(item)
            return False
        except NotFound:
            return True
        return True


def _is_clear(summary: Summary) -> bool:
    """Whether the admitter has looked at what tests found of the node, and holds nothing against it."""
    return summary.state is State.READY or bool(wanted(summary.code))


def _hindered(result: Result) -> set[str]:
    """The members for whom a test came to nothing, as far as that is known."""
    return {*result.absent, *result.refused, *result.rebooted}


def _counted(before: FabricProof | None, request: FabricRequest) -> bool:
    """Whether a leader before this one has written it."""
    return before is not None and before.run == request.id


def _test_of(request: FabricRequest) -> FabricTest | None:
    try:
        return parse_test(request.test.encode())
    except ValueError:
        return None


def _answer(node: Node, names: Names) -> FabricAnswer | None:
    text = annotation(node, names.fabric)
    try:
        return None if text is None else read_fabric_answer(text)
    except NoteError:
        return None
