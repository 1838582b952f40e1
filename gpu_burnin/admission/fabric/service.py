"""Tests between nodes at work: begins, carries on and ends them, and tells what they show.

The testing taint is decide()'s: it follows the request on the Node, and goes with it.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gpu_burnin.admission.client import ApiError
from gpu_burnin.admission.decide.between import requested_test, test_ends
from gpu_burnin.admission.decide.times import stamp
from gpu_burnin.admission.fabric import course, proofs
from gpu_burnin.admission.fabric.candidates import Candidates
from gpu_burnin.admission.fabric.course import Step
from gpu_burnin.admission.fabric.pick import Choice, Turns, pick, waited_for
from gpu_burnin.admission.fabric.writes import Writes, each
from gpu_burnin.admission.fabric_config import FabricRules
from gpu_burnin.admission.service.journal import EventRecorder, Journal, lease_reference, node_reference
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.trouble import Trouble
from gpu_burnin.admission.sshsig import signature_holds
from gpu_burnin.api.fabric_note import FabricRequest
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.names import SYSTEM_NAMESPACE, Names
from gpu_burnin.api.rendezvous import FabricTest
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import Found, Kind, Result
from gpu_burnin.system.prose import listed

TICK_S, PICK_S = 1.0, 5.0
# A write whose answer was lost may have begun a test that nobody here knows: all Nodes are looked through so often.
ADOPT_S = 60.0
# So long it is tried to write what a test has found, and to take its requests away.
_WRITE_FOR_S = 600.0
# What is told once of all tests that could not begin.
_BEGIN = "begin"
# So many nodes at most are in tests since somebody waits for these: after a power cut all do.
_MOST_WAITING = 256


@dataclass
class _Ended:
    """A test that has an end: what is to be written yet of its members, and told once that is done.

    At `until_s` of the monotonic clock nobody tries any more.
    """

    left: dict[str, FabricProof]
    message: str
    result: str
    until_s: float
    alarms: tuple[str, ...] = ()
    of_group: bool = False
    counted: bool = False


@dataclass
class FabricTests:
    """`rules` may change nothing while it works; `again_s`: after a test that came to nothing its members rest."""

    rules: FabricRules
    names: Names
    settle_s: float
    again_s: float
    candidates: Candidates
    writes: Writes
    paused: Callable[[], str]
    journal: Journal
    recorder: EventRecorder
    metrics: Metrics
    rng: random.Random = field(default_factory=random.Random)
    # The members of each test that is under way; None before the Nodes were looked through.
    _running: dict[str, tuple[str, ...]] | None = None
    # Those of them that have an end: what they have shown is computed once, whatever can be written of it at a time.
    _ended: dict[str, _Ended] = field(default_factory=dict)
    _leaves_due_s: dict[str, float] = field(default_factory=dict)
    _pick_s: float = 0.0
    _adopt_s: float = 0.0
    # What was told of the trouble of each test.
    _told: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Work on the same stores, by the same clocks."""
        one = self.candidates
        self._nodes, self._records, self._budgets = one.nodes, one.records, one.budgets
        self._now, self._monotonic_s = one.now, one.monotonic_s

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
        """One step of each test, and new ones in their time. What goes wrong with one is no matter of the others."""
        known = self._running
        if known is None or self._monotonic_s() >= self._adopt_s:
            self._running = self._under_way(adopt=known is not None) | (known or {})
            self._adopt_s = self._monotonic_s() + ADOPT_S
        assert self._running is not None
        try:
            for test_id in list(self._running):
                self._try_step(test_id)
        finally:
            self._budgets.between = {name for members in self._running.values() for name in members}
        if self._monotonic_s() >= self._pick_s:
            self._pick_s = self._monotonic_s() + PICK_S
            if not self.paused():
                self._begin()

    def outcomes(self) -> Counter[str]:
        """How many nodes there are of each outcome, whatever their boot."""
        counts = Counter({str(one): 0 for one in FabricOutcome})
        counts.update(str(one.fabric.outcome) for _, one in self._records.all_summaries() if one.fabric is not None)
        return counts

    # A test that is under way.

    def _under_way(self, *, adopt: bool = False) -> dict[str, tuple[str, ...]]:
        """What a leader before this one has begun, or to `adopt` this one: it stands on the Nodes.

        To adopt nothing that is over: decide() takes it away, and what it showed was counted or given up.
        """
        found: dict[str, tuple[str, ...]] = {}
        for name in self._nodes.known():
            node = self._nodes.get(name)
            request = requested_test(node, self.names) if node is not None else None
            if request is not None and request.id not in found and not (adopt and self._is_over(request)):
                found[request.id] = course.members_of(request, name)
        return found

    def _is_over(self, request: FabricRequest) -> bool:
        return self._now() >= test_ends(request, self._now())

    def _try_step(self, test_id: str) -> None:
        """One step. A test with which muster itself cannot go on has an end, else its members were in it for ever."""
        assert self._running is not None
        members = self._running[test_id]
        error = self._attempt(test_id, lambda: self._step(test_id))
        if error is not None and not isinstance(error, ApiError) and test_id not in self._ended:
            self._ended[test_id] = self._lost(members, f"a fault of muster itself, {error!r}")

    def _attempt(self, about: str, work: Callable[[], None]) -> Exception | None:
        """What went wrong, which is told once; None where nothing did. Raises NotLeader."""
        try:
            work()
        except NotLeader:
            raise
        except Exception as error:
            kind = error.status if isinstance(error, ApiError) else repr(error)
            if self._told.get(about) != kind:
                self._told[about] = kind
                if isinstance(error, ApiError):
                    self.journal.say(f"a test between nodes: {error}; it is tried again", test=about)
                else:
                    words = f"a test between nodes: a fault of muster itself ({error!r})"
                    self.journal.say(words, test=about, traceback=traceback.format_exc())
            return error
        self._told.pop(about, None)
        return None

    def _step(self, test_id: str) -> None:
        assert self._running is not None
        if test_id in self._ended:
            self._finish(test_id)
            return
        members = self._running[test_id]
        nodes = {name: self._nodes.get(name) for name in members}
        requests = self._requests(test_id)
        # With the offer, where a member has it already: each is brought to the same.
        request = max(requests.values(), key=lambda one: bool(one.offer), default=None)
        test = course.test_of(request) if request is not None else None
        if request is None or test is None:
            self.writes.read(members)
            if self._requests(test_id) != requests:
                return
            self._ended[test_id] = self._lost(members)
            self._finish(test_id)
            return
        look = self.candidates.look_at
        seen = {name: look(name, nodes.get(name), requests.get(name)) for name in test.names}
        step = course.step(request, test, seen, self._now(), settle_s=self.settle_s, holds=signature_holds)
        if step.give is not None:
            there = {name: node for name, node in nodes.items() if node is not None and requests.get(name) != step.give}
            self.writes.give(step.give, there)
        elif step.result is not None:
            self._ended[test_id] = self._end_of(request, test, step, step.result)
            self._finish(test_id)

    def _requests(self, test_id: str) -> dict[str, FabricRequest]:
        """The request of this test by the members that have it."""
        assert self._running is not None
        found = {}
        for name in self._running[test_id]:
            node = self._nodes.get(name)
            request = requested_test(node, self.names) if node is not None else None
            if request is not None and request.id == test_id:
                found[name] = request
        return found

    def _lost(
        self, members: Sequence[str], why: str = "its requests were gone from its Nodes before it had a result"
    ) -> _Ended:
        """The end of a test that nobody can say anything of: its requests are gone, or are none that can be read."""
        self.candidates.rest(members, self.again_s)
        words = f"test between {listed(list(members), 4)}: {Found.SPOILED} ({why})"
        return _Ended({}, words, "inconclusive", self._monotonic_s() + _WRITE_FOR_S)

    def _end_of(self, request: FabricRequest, test: FabricTest, step: Step, result: Result) -> _Ended:
        """What a test has shown; its members rest where it came to nothing for them."""
        boots = {one.name: one.boot_id for one in test.members}
        before = {name: self.candidates.proof(name, boot) for name, boot in boots.items()}
        judged, silent = proofs.judged(test, result, before)
        rails = {one.name: tuple(nic.rail for nic in one.nics) for one in test.members}
        at = stamp(self._now())
        left = proofs.after(judged, before, boots, request.id, at, rails, silent)
        for name, why in step.faults.items():
            left[name] = proofs.with_fault(before[name], boots[name], request.id, at, why)
        # A leader before this one may have written some of it, and died before it told anybody.
        known = {name: proof for name, proof in before.items() if proof is not None and proof.run == request.id} | left
        passed, spoiled = judged.found is Found.PASS, judged.found is Found.SPOILED
        if spoiled:
            # Who did its part may be in the next test.
            hindered = {*result.absent, *result.refused, *result.rebooted} or silent or test.names
            self.candidates.rest(hindered, self.again_s)
        details = "; ".join(f"{name}: {words}" for name, words in {**result.refused, **step.found}.items())
        why = step.why or judged.why or details
        return _Ended(
            left,
            f"test between {listed(list(test.names), 4)}: {judged.found}" + (f" ({why})" if why and not passed else ""),
            "passed" if passed else "inconclusive" if spoiled else "failed",
            self._monotonic_s() + _WRITE_FOR_S,
            () if passed else tuple(name for name, proof in known.items() if proof.outcome is not FabricOutcome.PASSED),
            of_group=not (passed or spoiled) and test.kind is not Kind.PAIR,
        )

    def _finish(self, test_id: str) -> None:
        """Write what is missing of its end, tell it once, and take the requests away: then it is over."""
        assert self._running is not None
        ended = self._ended[test_id]
        if self._monotonic_s() >= ended.until_s:
            self._give_up(test_id, ended)
            return

        def keep(name: str) -> bool:
            if self.writes.keep(name, ended.left[name]):
                del ended.left[name]
            return name not in ended.left

        if not each(ended.left, keep):
            return
        if not ended.counted:
            ended.counted = True
            self._tell(test_id, ended)
        mine = {name: node for name in self._requests(test_id) if (node := self._nodes.get(name)) is not None}
        if self.writes.take_away(mine):
            self._forget(test_id)

    def _give_up(self, test_id: str, ended: _Ended) -> None:
        """What somebody refuses for good keeps no node for ever. The requests go at their own end: decide() does it."""
        assert self._running is not None
        members = self._running[test_id]
        self.candidates.rest(members, self.again_s)
        self._forget(test_id)
        what = f"what it found of {listed(list(ended.left), 4)} was not written" if ended.left else "it was not ended"
        if not ended.counted:
            self._tell(test_id, ended)
        self.journal.say(
            f"test between {listed(list(members), 4)}: given up, {what} in {_WRITE_FOR_S:.0f} s; look at what the API "
            "server has answered, in the lines before",
            test=test_id,
        )

    def _forget(self, test_id: str) -> None:
        assert self._running is not None
        del self._running[test_id], self._ended[test_id]
        self._told.pop(test_id, None)

    def _tell(self, test_id: str, ended: _Ended) -> None:
        self.metrics.add("fabric_tests", {"result": ended.result})
        # First, since it is not told again where the journal takes nothing.
        for name in ended.alarms:
            self.recorder.alarm("default", node_reference(name), "MusterFabricTest", ended.message)
        if ended.of_group:
            message = f"{ended.message}; its nodes pass in pairs: `muster fabric run` with this leaf narrows it"
            self.recorder.alarm(SYSTEM_NAMESPACE, lease_reference(), "MusterFabricTest", message)
        self.journal.say(ended.message, test=test_id)

    # New ones.

    def _begin(self) -> None:
        rows, sound = self.candidates.rows()
        every_s, now_s = self.rules.every_s, self._now().timestamp()
        sizes = Counter(leaf for _, summary in self._records.all_summaries() if (leaf := summary.place[1]))
        due = {leaf: size for leaf, size in sizes.items() if every_s and self._leaf_due_s(leaf) <= self._monotonic_s()}
        turns = Turns(every_s, now_s, self.again_s, lone=sound < 2)
        chosen = pick(rows, self._places(), turns, self.rng, due)
        # Who is waited for takes no work meanwhile, so that two of these take no place of those that may.
        taken = {name for choice in chosen for name in choice.members}
        waiting = [row for row in waited_for(rows) if row.name not in taken]
        room = _MOST_WAITING - len(self._budgets.between) - len(taken)
        for choice in (*chosen, *pick(waiting, room, replace(turns, every_s=0.0, lone=False), self.rng)):
            self._attempt(_BEGIN, partial(self._begin_test, choice))
            if len(choice.members) > 2:
                leaf = self._records.summaries[choice.members[0]].place[1]
                self._leaves_due_s[leaf] = self._monotonic_s() + every_s

    def _leaf_due_s(self, leaf: str) -> float:
        """When a leaf is to be tested as a whole. Who has just begun to lead does not know when one was: at random."""
        first_s = self._monotonic_s() + self.rng.random() * self.rules.every_s
        return self._leaves_due_s.setdefault(leaf, first_s)

    def _places(self) -> int:
        """How many nodes more may be tested: of a small fleet one pair, where nothing else is tested."""
        left, busy = self._budgets.tests_left(), self._budgets.between or self._records.under_test()
        return max(left, 0 if busy or not left else 2)

    def _begin_test(self, choice: Choice) -> None:
        """Begin a test, unless something of its members is not as it should be: then that one rests."""
        assert self._running is not None
        members, keys, nodes = [], {}, {}
        for name in choice.members:
            # For whatever is not as it should be: the others find another partner.
            self.candidates.rest([name], self.again_s)
            try:
                record = self._records.get(name)
            except GpuBurninError:
                return
            node = self._nodes.get(name)
            if record is None or node is None:
                return
            if (request := requested_test(node, self.names)) is not None:
                if not self._is_over(request):
                    self._running.setdefault(request.id, course.members_of(request, name))
                return
            seen = self.candidates.look_at(name, node, None)
            if not record.spec.identity.host_key or len(set(seen.boots)) != 1 or not seen.boots[0]:
                return
            self.candidates.rest([name], 0.0)
            members.append((name, seen.boots[0], record.spec.fabric))
            keys[name], nodes[name] = record.spec.identity.host_key, node
        request = course.planned(
            members,
            keys,
            self._now(),
            seconds=self.rules.seconds,
            size_bytes=self.rules.size_mib << 20,
            settle_s=self.settle_s,
        )
        if course.test_of(request) is None:
            # An address or a rail of theirs is none that a test can have.
            self.candidates.rest(keys, self.again_s)
            self.journal.say(
                f"{listed(list(choice.members), 4)} cannot be tested with each other: they have no rail in common, or "
                "the same address; correct fleet_fabric_nics"
            )
            return
        # First: an API server that fails leaves a test, which the next step goes on with, or finds that it is none.
        self._running[request.id] = choice.members
        refused: ApiError | None = None
        try:
            self.writes.give(request, nodes)
        except ApiError as error:
            refused = error
            self.writes.read(choice.members)
        if self._requests(request.id):
            self._budgets.between = self._budgets.between | set(keys)
            words = f"{listed(list(choice.members), 4)} are tested with each other: {choice.why}"
            self.journal.say(words, test=request.id)
        else:
            del self._running[request.id]
            if refused is not None and not refused.passing:
                self.candidates.rest(choice.members, self.again_s)
        if refused is not None:
            raise refused
