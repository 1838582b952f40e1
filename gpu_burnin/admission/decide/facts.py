"""One look at a node: its evidence and its maintenance windows, each judged once for all that is decided of them. Pure.

What the look adds to the record is written even where a budget withholds the decision: evidence once seen is never
forgotten for an older one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from gpu_burnin.admission.decide.maintenance import Windows, windows, with_transition
from gpu_burnin.admission.decide.nodes import boot_id, condition, gated, machine_id, taint_value
from gpu_burnin.admission.decide.offered import missing_gpus
from gpu_burnin.admission.decide.owed import owed, settled
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import active, fault
from gpu_burnin.admission.view import Budget, Evidence, Node, Pod, Rules, View
from gpu_burnin.api.evidence import MAX_SKEW_S, TTL_JITTER, Statement
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.api.record import Ask, NodeAdmission, Request, Spec, State, Status, Tested, Use
from gpu_burnin.api.run_files import MAX_SEQUENCE
from gpu_burnin.types import JSON, Verdict

_MOST_CHARS = 64
_RANKS = {level: number for number, level in enumerate(LEVELS)}
_NO_NODE: Node = {"metadata": {}}
EVIDENCE_REPLAYED = "EVIDENCE_REPLAYED"


@dataclass(frozen=True)
class TestRequest:
    """The record's request as it is now: None where it is over. `gave_up` is why it ended without an answer.

    `unanswered` is why it is overdue. `sent`: it is on the Node, or goes there now. `wake_at` is when time changes it.
    """

    request: Request | None = None
    sent: bool = False
    answered: bool = False
    gave_up: str = ""
    unanswered: str = ""
    wake_at: datetime | None = None


@dataclass(frozen=True)
class Facts:
    """All that a decision rests on. `evidence` and `windows` are judged, and `status` already knows of both.

    `denied` is the budget that gives no leave, if the decision is about what is done without it; `test` what has become
    of the record's request.
    """

    view: View
    spec: Spec
    status: Status
    evidence: Evidence
    windows: Windows
    rules: Rules
    now: datetime
    denied: Budget | None = None
    test: TestRequest = TestRequest()

    @property
    def before(self) -> Status:
        """What the record says, without what this look has seen."""
        assert self.view.record is not None
        return self.view.record.status

    @property
    def node(self) -> Node:
        """The Node, an empty one where kubelet has not registered it."""
        return self.view.node if self.view.node is not None else _NO_NODE

    @property
    def there(self) -> bool:
        """Whether kubelet has registered it."""
        return self.view.node is not None

    @cached_property
    def gated(self) -> bool:
        """Whether the preflight taint keeps new pods away."""
        return gated(self.node, self.rules.names)

    @property
    def boot(self) -> str:
        """The boot that kubelet reports."""
        return boot_id(self.node)

    @property
    def kubelet(self) -> str:
        """What its Ready condition says: True, False or Unknown, "" where kubelet has not reported it."""
        ready = condition(self.node, "Ready")
        return str(ready.get("status")) if ready is not None else ""

    @property
    def statement(self) -> Statement | None:
        """What the node proved to have said, or None."""
        return self.evidence.statement if self.evidence.code is None else None

    @property
    def signed(self) -> Statement:
        """The same, where there is one for sure."""
        assert self.statement is not None
        return self.statement

    @property
    def repaired_at(self) -> datetime | None:
        """When it last went into repair, as far as the record goes back."""
        return _repaired_at(self.status)

    @property
    def before_repair(self) -> bool:
        """Whether its evidence is of the time before the newest repair, one that begins now included."""
        repaired = _repair_of(self.spec, self.status, self.now)
        return repaired is not None and repaired > self.signed.finished

    @property
    def fail(self) -> Statement | None:
        """A FAIL that counts: of a boot that there is, and not set aside while something is done about it.

        A repair that ended without a newer test has cleared nothing.
        """
        statement, boots = self.statement, {self.boot, self.agent_boot} - {""}
        if statement is None or statement.verdict is not Verdict.FAIL or (boots and statement.boot_id not in boots):
            return None
        return statement if self.repair is None or not self.before_repair else None

    @property
    def agent_boot(self) -> str:
        """The boot that the agent names, "" where it says nothing."""
        return self.view.agent.boot_id if self.view.agent is not None else ""

    @property
    def rebooted(self) -> bool:
        """Whether one of the voices is of another boot than kubelet's.

        The gate keeps a new boot's status out until the node is tainted, so evidence or agent may know of it first.
        """
        voices = (self.agent_boot, *(one.boot_id for one in (self.statement, self.status.accepted) if one is not None))
        return bool(self.boot) and any(voice and voice != self.boot for voice in voices)

    @property
    def undecided_boot(self) -> bool:
        """Whether the burn-in of a boot that kubelet has not reported was inconclusive: its gate keeps kubelet down."""
        statement = self.statement
        return (
            statement is not None
            and statement.verdict is Verdict.INCONCLUSIVE
            and statement.boot_id == self.agent_boot != self.boot
        )

    @property
    def boot_tests(self) -> int:
        """How often this undecided boot was tested, as the admitter asked."""
        tests = self.status.boot_tests
        return tests.asked if tests is not None and tests.boot_id == self.agent_boot else 0

    @property
    def under_test(self) -> bool:
        """Whether a request of ours is on the Node, and may be answered yet; one that begins with this look is not."""
        return self.test.sent and not self.test.unanswered and self.test.request == self.before.request

    @property
    def busy(self) -> bool:
        """Whether pods with GPUs are at work. Those of a boot that is over are not, though nobody has ended them."""
        return _busy(self.view.pods) and not self.undecided_boot

    @property
    def admitted_in_this_boot(self) -> bool:
        """Whether its evidence was accepted in the boot that kubelet reports."""
        return self.status.accepted is not None and self.status.accepted.boot_id == self.boot

    @property
    def tested(self) -> Mapping[str, JSON]:
        """The identity of the hardware that its evidence is of; while that is withdrawn, of what it was let in with."""
        accepted = self.status.accepted
        return self.evidence.hardware or (accepted.hardware if accepted is not None else {})

    @cached_property
    def missing_gpus(self) -> str:
        """Which GPUs kubelet does not offer, in words; "" for none."""
        return missing_gpus(self.node, self.spec.hardware, self.tested)

    @property
    def repair(self) -> Ask | None:
        """The repair ladder's work on it."""
        return active(self.spec.repair, self.now)

    @property
    def retest(self) -> Ask | None:
        """A person's ask for a test that was not done yet."""
        ask = active(self.spec.retest, self.now)
        return ask if ask is not None and ask.since != self.status.retested else None

    @cached_property
    def proof(self) -> datetime | None:
        """When the newest PASS of the level that is asked for, or of a higher one, was finished."""
        least = max(rank(self.spec.evidence.level), 0)
        times = (when(text) for level, text in self.status.proofs.items() if rank(level) >= least)
        newest = max((time for time in times if time is not None), default=None)
        # A newer run that says it was finished before an older one has a clock that was set: the earlier time counts.
        return min(newest, self.signed.finished) if newest is not None else None

    @property
    def expires(self) -> datetime | None:
        """When that is too old."""
        ttl_s = node_ttl_s(self.view.name, self.spec.evidence.max_age_s)
        return later(self.proof, ttl_s) if self.proof is not None else None

    @property
    def restored(self) -> Ask | None:
        """The restore of etcd after which nothing has confirmed the node yet."""
        return doubted(self.spec, self.status)

    @property
    def tested_at(self) -> datetime | None:
        """When its last test was finished."""
        return when(self.status.last_test.finished_at) if self.status.last_test is not None else None


def look(view: View, record: NodeAdmission, rules: Rules, now: datetime) -> Facts:
    """The one look that a decision is made of, whoever asks for it and whatever is granted."""
    evidence, calendar = _examined(view, record.spec, record.status), windows(view, record.status, rules, now)
    status = with_transition(_remembered(view, record, evidence, now, rules), calendar, now)
    # An admitter of before there were teams forgets it when it writes the record, and leaves the taint.
    status = replace(status, team=status.team or taint_value(view.node or _NO_NODE, rules.names.team))
    return Facts(view, record.spec, status, evidence, calendar, rules, now)


def doubted(spec: Spec, status: Status) -> Ask | None:
    """The restore after which nothing has confirmed the node yet, None where there is none."""
    restored = spec.restored
    return restored if restored is not None and restored.since != status.confirmed else None


def node_ttl_s(name: str, ttl_s: float) -> float:
    """The node's own time to live: up to 10 % shorter than `ttl_s`, the same at every call."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
    return ttl_s * (1 - TTL_JITTER * share)


def is_shut(restored_since: str, confirmed: str, state: State) -> bool:
    """Whether a restore keeps a node closed, and no grant, which is given for a fault alone; "" for what there is not.

    Of the three values that decide it, for who has no whole record.
    """
    return bool(restored_since) and restored_since != confirmed and state is not State.QUARANTINED


def rank(level: str) -> int:
    """How much a level looks at; -1 for one that is none."""
    return _RANKS.get(level, -1)


def _examined(view: View, spec: Spec, status: Status) -> Evidence:
    """The evidence after what the record alone can tell: its form, another machine, an older one than was seen.

    A signed statement may still be none that can be judged.
    """
    evidence, name = view.evidence, view.name
    statement = evidence.statement
    if evidence.code is not None or statement is None:
        return evidence
    texts = [(name, getattr(statement, name)) for name in ("machine_id", "boot_id", "level", "finished_at")]
    unfit = [name for name, text in texts if len(text) > _MOST_CHARS or not text.isprintable()]
    why = ""
    if not 1 <= statement.sequence <= MAX_SEQUENCE:
        why = "its sequence is not between 1 and 2^53"
    elif unfit:
        why = f"its {unfit[0]} is not a line of at most {_MOST_CHARS} characters"
    elif statement.verdict is Verdict.PASS and rank(statement.level) < 0:
        why = "its level is none that a run can pass"
    elif when(statement.finished_at) is None:
        why = "its finished_at is not a time"
    if why:
        return Evidence(None, {}, "EVIDENCE_MALFORMED", f"{name}: the evidence statement cannot be read: {why}")
    for machine in (spec.identity.machine_id, machine_id(view.node or _NO_NODE)):
        if statement.node != name or (machine and statement.machine_id != machine):
            message = (
                f"{name}: the evidence is of node {statement.node}, machine {statement.machine_id}, not of this "
                f"node's machine {machine or machine_id(view.node or _NO_NODE)}"
            )
            return replace(evidence, code="EVIDENCE_NODE", message=message)
    seen, report = _highest(spec, status)
    if statement.sequence < seen or (statement.sequence == seen and statement.report_sha256 != report):
        message = (
            f"{name}: the evidence has sequence {statement.sequence}, but {seen} of this node has been seen "
            f"with another report; ask for a test, whose number begins above {seen}: muster node retest {name} "
            "--reason REASON"
        )
        return replace(evidence, code=EVIDENCE_REPLAYED, message=message)
    return evidence


def _remembered(view: View, record: NodeAdmission, evidence: Evidence, now: datetime, rules: Rules) -> Status:
    """The status with what was seen."""
    spec, status = record.spec, record.status
    if status.host_key != spec.identity.host_key:
        status = Status(
            state=status.state,
            since=status.since,
            code=status.code,
            message=status.message,
            host_key=spec.identity.host_key,
            use=status.use,
            retested=status.retested,
            retest_began=status.retest_began,
            power_cycle=status.power_cycle,
            confirmed=status.confirmed,
            team=status.team,
            transitions=status.transitions,
        )
    sequence, report = _highest(spec, status)
    status = replace(status, highest_sequence=sequence, highest_report_sha256=report)
    statement = evidence.statement
    if statement is not None and evidence.code is None:
        if statement.sequence > sequence:
            status = replace(
                status,
                highest_sequence=statement.sequence,
                highest_report_sha256=statement.report_sha256,
                last_test=_last_test(status, statement),
                power_cycle=owed(status.power_cycle, evidence, now),
            )
        status = replace(status, proofs=_proofs(spec, status, statement, now))
    debt = status.power_cycle
    if debt is not None and (not rules.confirm_power_cycle or settled(debt, spec, evidence)):
        status = replace(status, power_cycle=None)
    return replace(status, use=_use(status.use, view.pods, now)) if view.node is not None else status


def _highest(spec: Spec, status: Status) -> tuple[int, str]:
    """The highest sequence that was ever seen of the pinned key, by this record or before it, and its report."""
    carried = spec.identity.carried_sequence, spec.identity.carried_report_sha256
    if status.host_key != spec.identity.host_key or carried[0] > status.highest_sequence:
        return carried
    return status.highest_sequence, status.highest_report_sha256


def _last_test(status: Status, statement: Statement) -> Tested | None:
    """A revocation by the agent is no test."""
    if rank(statement.level) < 0:
        return status.last_test
    verdict, level, finished = str(statement.verdict), statement.level, statement.finished_at
    return Tested(statement.sequence, level, verdict, finished, fault(statement))


def _repaired_at(status: Status) -> datetime | None:
    found = next((t for t in reversed(status.transitions) if t.after == State.REPAIRING), None)
    return when(found.at) if found is not None else None


def _repair_of(spec: Spec, status: Status, now: datetime) -> datetime | None:
    """When its newest repair began, one that begins now included."""
    begins = active(spec.repair, now) is not None and status.state is not State.REPAIRING
    return now if begins else _repaired_at(status)


def _proofs(spec: Spec, status: Status, statement: Statement, now: datetime) -> dict[str, str]:
    """A FAIL ends all proofs, and so do other hardware and a repair: none is made good by a lower level's PASS."""
    other = status.accepted is not None and status.accepted.hardware_sha256 != statement.hardware_sha256
    proofs = {} if statement.verdict is Verdict.FAIL or other else dict(status.proofs)
    allowed = spec.identity.allow_simulated or not statement.simulated
    timely = statement.finished <= later(now, MAX_SKEW_S)
    if allowed and timely and statement.verdict is Verdict.PASS and rank(statement.level) >= 0:
        old = when(proofs.get(statement.level, ""))
        if old is None or statement.finished > old:
            proofs[statement.level] = statement.finished_at
    repaired = _repair_of(spec, status, now)
    if repaired is None:
        return proofs
    return {level: text for level, text in proofs.items() if (at := when(text)) is not None and at >= repaired}


def _busy(pods: tuple[Pod, ...]) -> bool:
    return any(pod.gpus > 0 and not pod.ended for pod in pods)


def _use(use: Use | None, pods: tuple[Pod, ...], now: datetime) -> Use:
    is_busy = _busy(pods)
    since = when(use.since) if use is not None else None
    if use is None or since is None:
        return Use(stamp(now), stamp(now), is_busy)
    if use.busy == is_busy:
        return use
    lasted_s = max(0.0, (now - since).total_seconds())
    idle_s, busy_s = (0.0, lasted_s) if use.busy else (lasted_s, 0.0)
    return Use(use.observed_since, stamp(now), is_busy, use.idle_s + idle_s, use.busy_s + busy_s)
