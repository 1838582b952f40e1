"""The one way to a test by the admitter: whether one is wanted, asked for, sent, answered or given up. Pure.

A request is written into the record first (its node gets a taint), and onto the Node after `settle_s`, if the node is
idle then. Its answer is evidence with a higher sequence than it names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.decide.judge import LEDGER_RESTORED, Facts, Judged
from gpu_burnin.admission.decide.maintenance import OVER, Windows, ended_at
from gpu_burnin.admission.decide.nodes import annotation, gated
from gpu_burnin.admission.decide.remember import rank
from gpu_burnin.admission.decide.times import later, stamp, when
from gpu_burnin.admission.decide.words import PAUSED, active, sentence
from gpu_burnin.admission.view import Rules
from gpu_burnin.api.agent_note import Asked, note_text
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.api.record import Ask, Request, State
from gpu_burnin.types import Verdict

# The `what` of status.next after a test that could not be had: `at` is when it is asked for again.
AGAIN = "asked for a test again"


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
class TestTrigger:
    """A test that is wanted: `mine` are the admitter's own, which a person's hold, the budgets and doubts put off."""

    level: str
    code: str
    why: str
    mine: bool = True
    by_schedule: bool = False


def test_request_of(facts: Facts, maintenance: Windows) -> TestRequest:
    """What has become of the record's request."""
    request, statement = facts.status.request, facts.statement
    if request is None:
        return TestRequest()
    if statement is not None and _answers(statement, request):
        return TestRequest(answered=True)
    # The burn-in of the new boot comes by itself.
    of_this_boot = facts.agent_boot in ("", facts.boot) or facts.undecided_boot
    if not of_this_boot or active(facts.spec.repair, facts.now) is not None:
        return TestRequest()
    answer = facts.view.agent.request if facts.view.agent is not None else None
    if answer is not None and answer.id == request.id and answer.state == "refused":
        return TestRequest(gave_up=sentence(f"its agent refused the test: {answer.why}"))
    since = when(request.since) or facts.now
    settled = later(since, facts.rules.settle_s)
    if not is_sent(facts, request):
        if facts.view.paused:
            return TestRequest(request)
        if facts.busy:
            return TestRequest(gave_up="a pod with GPUs came before the test began")
        if maintenance.why:
            return TestRequest(gave_up=f"no test begins in a maintenance window ({maintenance.why})")
        ask = retest_asked(facts)
        if _person_has(facts) and (ask is None or request.why != why_asked(ask)):
            return TestRequest()
        if facts.now < settled:
            return TestRequest(request, wake_at=settled)
    overdue = overdue_at(since, request.level, facts.rules)
    if facts.now <= overdue:
        return TestRequest(request, sent=True, wake_at=overdue)
    if not is_sent(facts, request):
        return TestRequest(gave_up="the test could not be asked for in time")
    unanswered = f"the test of level {request.level} asked for at {request.since} has no result"
    return TestRequest(request, sent=True, unanswered=unanswered)


def test_trigger(facts: Facts, judged: Judged, maintenance: Windows, test_request: TestRequest) -> TestTrigger | None:
    """The test that is wanted of the node, or None. An answer that has just come serves the schedule's choice too."""
    spec, status, view = facts.spec, facts.status, facts.view
    level = spec.evidence.level
    ask = retest_asked(facts)
    if ask is not None:
        return TestTrigger(ask.level if rank(ask.level) >= 0 else level, "RETEST_ASKED", why_asked(ask), mine=False)
    if not judged.fit and not judged.retest:
        return None
    if not judged.fit or judged.due:
        why = judged.message.removeprefix(f"{view.name}: ")
        return TestTrigger(level, judged.code, why, by_schedule=judged.fit)
    if warned := warning(facts):
        return TestTrigger(level, "AGENT_WARNED", warned)
    if after_maintenance(facts) and not maintenance.why:
        return TestTrigger(level, OVER, "it was not tested since its maintenance", by_schedule=True)
    if (
        rank(view.test) >= 0
        and not test_request.answered
        and (status.state is State.TESTING or not gated(facts.node, facts.rules.names))
    ):
        return TestTrigger(view.test, "TEST_DUE", sentence(view.test_why) or "it is its turn", by_schedule=True)
    return None


def needless(facts: Facts, judged: Judged) -> bool:
    """Whether the request was for a doubt that is over, and is not on the Node yet."""
    request, is_gated = facts.status.request, gated(facts.node, facts.rules.names)
    return request is not None and judged.fit and is_gated and not is_sent(facts, request)


def kept(facts: Facts, wanted: TestTrigger) -> bool:
    """Whether a person has the node, so that nothing is tested: in repair no test at all, else none of ours."""
    return active(facts.spec.repair, facts.now) is not None or (wanted.mine and _person_has(facts))


def obstacle(facts: Facts, judged: Judged, wanted: TestTrigger, maintenance: Windows) -> tuple[str, datetime | None]:
    """Why the wanted test cannot be asked for now, "" when it can; and when that ends, None where something must."""
    now, status = facts.now, facts.status
    if facts.view.paused:
        return f"{PAUSED}: {facts.view.paused}", None
    planned = status.next
    again = when(planned.at) if planned is not None and planned.what == AGAIN else None
    if planned is not None and again is not None and now < again:
        return planned.why, again
    if (facts.agent_boot != facts.boot or not facts.boot) and not facts.undecided_boot:
        return "its agent does not answer in this boot", None
    if maintenance.why:
        return f"no test begins in a maintenance window ({maintenance.why})", maintenance.changes_at
    if maintenance.unknown and wanted.by_schedule:
        return f"it is unknown whether maintenance is near ({maintenance.unknown})", maintenance.changes_at
    if facts.busy:
        return "it has pods with GPUs; it is tested when it is idle", None
    if wanted.mine and not judged.fit:
        patience = _patience(facts, judged)
        if patience is not None and now < patience:
            awaited = "its agent has not spoken" if judged.code == LEDGER_RESTORED else "its own burn-in has not come"
            return f"if {awaited} by then" if judged.awaited else "the last test has cleared nothing", patience
    return "", None


def request_of(facts: Facts, wanted: TestTrigger) -> Request:
    """A new request for what is wanted."""
    since, after = stamp(facts.now), facts.status.highest_sequence
    identity = f"{facts.view.name}/{wanted.level}/{since}/{after}"
    return Request(hashlib.sha256(identity.encode()).hexdigest()[:16], wanted.level, since, wanted.why, after)


def request_annotation(request: Request) -> str:
    """What the agent reads on its Node."""
    return note_text(Asked(request.id, request.level, request.after_sequence))


def is_sent(facts: Facts, request: Request) -> bool:
    """Whether it is on the Node already."""
    return annotation(facts.node, facts.rules.names.request) == request_annotation(request)


def retest_asked(facts: Facts) -> Ask | None:
    """A person's ask for a test that was not done yet."""
    ask = active(facts.spec.retest, facts.now)
    return ask if ask is not None and ask.since != facts.status.retested else None


def why_asked(ask: Ask) -> str:
    """The request's reason, by which its answer is known to be that of the ask."""
    return sentence(f"{ask.who} asked for it at {ask.since}: {ask.why}")


def warning(facts: Facts) -> str:
    """What the agent warned of since the last test."""
    agent, tested = facts.view.agent, _tested(facts)
    for one in agent.warnings if agent is not None else ():
        at = when(one.at)
        if at is not None and at <= facts.now and (tested is None or at > tested):
            return sentence(f"{one.code}: {one.message}")
    return ""


def after_maintenance(facts: Facts) -> bool:
    """Whether a window was over after the last test."""
    ended, tested = ended_at(facts.status), _tested(facts)
    return ended is not None and (tested is None or ended > tested)


def overdue_at(since: datetime, level: str, rules: Rules) -> datetime:
    """When a test that was asked for at `since` should have an answer."""
    return later(since, rules.settle_s + level_s(level) + rules.request_timeout_s)


def level_s(level: str) -> float:
    """How long a run of this level takes."""
    return LEVELS[level].total_s if level in LEVELS else 0.0


def _person_has(facts: Facts) -> bool:
    return any(active(ask, facts.now) is not None for ask in (facts.spec.quarantine, facts.spec.hold))


def _answers(statement: Statement, request: Request) -> bool:
    """A pass of a lower level is no answer."""
    enough = statement.verdict is not Verdict.PASS or rank(statement.level) >= rank(request.level)
    return enough and statement.sequence > request.after_sequence


def _tested(facts: Facts) -> datetime | None:
    test = facts.status.last_test
    return when(test.finished_at) if test is not None else None


def _patience(facts: Facts, judged: Judged) -> datetime | None:
    """Until when a test of ours waits: for one that comes by itself, or since the last has changed nothing."""
    status, rules = facts.status, facts.rules
    transitions = status.transitions
    since = when(status.since) if status.state is judged.state else facts.now
    for one in reversed(transitions):
        if one.after != judged.state:
            break
        since = when(one.at) or since
    if judged.awaited:
        return later(since or facts.now, level_s(facts.spec.evidence.level) + rules.request_timeout_s)
    tested = _tested(facts)
    if tested is None or since is None or tested <= since:
        return None
    return later(tested, rules.request_timeout_s)
