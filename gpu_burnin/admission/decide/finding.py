"""What a condition of a node is, and the ways to make one: an ask, a doubt, a note, a restore of etcd. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from gpu_burnin.admission.decide.facts import Facts
from gpu_burnin.admission.decide.words import active, ask_sentence, brief, sentence
from gpu_burnin.api.record import State

AGENT_SILENT, AGENT_BOOT = "AGENT_SILENT", "AGENT_BOOT"
LEDGER_RESTORED = "LEDGER_RESTORED"
# Of nodes that nothing but a person keeps from work.
ASKED_CODES = frozenset({"HELD_BY_PERSON", "QUARANTINED_BY_PERSON"})
# What ends by itself in a burn-in that the node starts at its boot.
_AWAITED = frozenset({"EVIDENCE_MISSING", "EVIDENCE_BOOT", "REBOOTED"})


class VerdictLabel(StrEnum):
    """Values of the verdict label."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Finding:
    """A condition that holds: the state that it asks for, its code, a sentence; who asked for it, and until when.

    `fit`: the node may take work. `note`: it is told of a node at work, and changes nothing else. `fault` is the code
    of a FAIL that is acted on. `due`: the proof is old or of a lower level than asked for; `expires`: when it ends.
    `retest`: a test may clear it, `by_schedule` one that can wait; `awaited`: what clears it comes by itself.
    """

    state: State
    code: str
    message: str
    verdict: VerdictLabel = VerdictLabel.INCONCLUSIVE
    fit: bool = False
    note: bool = False
    fault: str = ""
    due: bool = False
    expires: datetime | None = None
    retest: bool = False
    by_schedule: bool = False
    awaited: bool = False
    who: str = ""
    until: str = ""


Rule: TypeAlias = Callable[[Facts], Finding | None]
StateOf: TypeAlias = Callable[[Facts], State]
When: TypeAlias = Callable[[Facts], str | bool]


def requested(what: str, state: State, code: str, words: str) -> Rule:
    """The condition that a person, or the repair ladder, asks for it."""

    def rule(facts: Facts) -> Finding | None:
        ask = active(getattr(facts.spec, what), facts.now)
        return Finding(state, code, ask_sentence(words, ask), who=ask.who, until=ask.until) if ask is not None else None

    return rule


def doubt(code: str, state: State | StateOf, when: When, words: str = "", *, test: bool = False) -> Rule:
    """The condition that new work is kept away where `when` holds, for these words or those that `when` says itself.

    `test`: a test of ours may clear it.
    """

    def rule(facts: Facts) -> Finding | None:
        if not (why := when(facts)):
            return None
        place = state if isinstance(state, State) else state(facts)
        return doubtful(place, code, f"{facts.view.name}: {words or why}", test=test)

    return rule


def note(code: str, says: Callable[[Facts], str], *, test: bool = False, by_schedule: bool = False) -> Rule:
    """The condition that something is told of a node at work."""

    def rule(facts: Facts) -> Finding | None:
        why = says(facts)
        message = f"{facts.view.name}: {why}"
        found = Finding(State.READY, code, message, fit=True, note=True, retest=test, by_schedule=by_schedule)
        return found if why else None

    return rule


def after_restore(*rules: Rule) -> Rule:
    """The condition that etcd was restored, and one of these would hold: what speaks for a node is of the snapshot.

    The node waits until its agent or a test has spoken; where it is a grant that it waits for, the finding comes first.
    """

    def rule(facts: Facts) -> Finding | None:
        restored, agent, name = facts.restored, facts.view.agent, facts.view.name
        found = next((found for one in rules if (found := one(facts)) is not None), None) if restored else None
        if restored is None or found is None:
            return None
        etcd = f"etcd was restored to an older state ({restored.why})"
        named = agent is not None and agent.restored == restored.since
        if found.verdict is VerdictLabel.FAIL or (named and found.code != AGENT_BOOT):
            message = f"{brief(found.message)}; {etcd}"
        elif named:
            message = f"{name}: {etcd}, no heartbeat of its agent has come since"
        elif agent is not None and not agent.heartbeat:
            message = f"{name}: {etcd}, and its agent is too old to confirm the node: a test has to"
        else:
            message = f"{name}: {etcd}, its agent has not spoken since"
        late = f"; {facts.test.unanswered}" if facts.test.unanswered else ""
        return Finding(State.SUSPECT, LEDGER_RESTORED, sentence(f"{message}{late}"), retest=True, awaited=True)

    return rule


def doubtful(state: State, code: str, message: str, *, test: bool = False) -> Finding:
    """A condition that keeps new work away; `test`: a test of ours may clear it."""
    awaited = code in _AWAITED
    return Finding(state, code, message, retest=test or awaited, awaited=awaited)
