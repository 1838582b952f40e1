"""The one way to a test by the admitter: whether one is wanted, asked for, sent, answered or given up. Pure.

A request is written into the record first (its node gets a taint), and onto the Node after `settle_s`, if the node is
idle then. Its answer is evidence with a higher sequence than it names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpu_burnin.admission.decide.between import fabric_test, test_ends
from gpu_burnin.admission.decide.conditions import silent, unheard
from gpu_burnin.admission.decide.facts import Facts, TestRequest, rank
from gpu_burnin.admission.decide.finding import LEDGER_RESTORED
from gpu_burnin.admission.decide.nodes import annotation
from gpu_burnin.admission.decide.order import Judged
from gpu_burnin.admission.decide.times import FAR, LONG_AGO, later, stamp, when
from gpu_burnin.admission.decide.unproven import left_at_work
from gpu_burnin.admission.decide.words import PAUSED, active, sentence
from gpu_burnin.admission.view import Budget, Rules
from gpu_burnin.api.agent_note import Asked, note_text
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.api.record import Ask, Next, Request, State
from gpu_burnin.types import Verdict

# The `what` of status.next after a test that could not be had: `at` is when it is asked for again.
AGAIN = "asked for a test again"
# So long a test that a person asked for is before those with other nodes. One that cannot be had is asked for again and
# again while its node takes work, and jobs on it may need a test with another one.
_BEFORE_OTHERS_S = 3600.0
_REFUSED = "its agent refused the test"


@dataclass(frozen=True)
class TestTrigger:
    """A test that is wanted: `mine` are the admitter's own, which a person's hold, the budgets and doubts put off."""

    level: str
    code: str
    why: str
    mine: bool = True
    by_schedule: bool = False


def with_test(facts: Facts) -> Facts:
    """The facts with what has become of the record's request, and with what its answer, or the agent's word, ends."""
    test, status, ask, agent = _test_request(facts), facts.status, facts.retest, facts.view.agent
    if test.unanswered and ask is not None and not _obstacle(facts, by_schedule=False)[0]:
        # A person has asked anew: the doubt ends with the request that it was about.
        status = replace(status, request=_request(facts, _asked_for(facts, ask)))
        test = _test_request(replace(facts, status=status))
    restored, request = facts.restored, status.request
    if restored is not None and facts.denied is not Budget.GATE:
        # No heartbeat is fresh to a leader that has just begun, so that all nodes would be out: it waits for one.
        named = agent is not None and agent.restored == restored.since
        answered = test.answered and request is not None and request.since >= restored.since
        if answered or (named and (silent(facts) or not unheard(facts))):
            status = replace(status, confirmed=restored.since)
    if test.answered and ask is not None and request is not None and request.why == why_asked(ask):
        status = replace(status, retested=ask.since, retest_began=request.since)
    return replace(facts, status=status, test=test)


def begun_test(facts: Facts, judged: Judged) -> tuple[TestRequest, TestTrigger | None, Next | None]:
    """The request that is under way or is begun now, what triggers it, and what comes next where one waits."""
    own, test, wanted = judged.own, facts.test, _trigger(facts, judged)
    if wanted is None:
        # Not for a doubt that is over, of which nothing is on the Node yet.
        over = test.request is not None and own.fit and facts.gated and not is_sent(facts, test.request)
        return TestRequest() if over else test, None, None
    if test.request is not None and (wanted.mine or not test.unanswered):
        return test, None, None
    # A person has the node, so nothing is tested: in repair no test at all, else none of ours.
    if facts.repair is not None or (wanted.mine and _person_has(facts)):
        return test, None, None
    if test.gave_up:
        return test, None, Next(AGAIN, test.gave_up, stamp(later(facts.now, facts.rules.retry_s)))
    why, until = _obstacle(facts, by_schedule=wanted.by_schedule)
    if not why and wanted.mine and not own.fit and (patience := _patience(facts, judged)) and facts.now < patience:
        awaited = "its agent has not spoken" if own.code == LEDGER_RESTORED else "its own burn-in has not come"
        why, until = f"if {awaited} by then" if own.awaited else "the last test has cleared nothing", patience
    at_work = own.fit or own.code == LEDGER_RESTORED or left_at_work(facts, fit=False)
    if not why and wanted.mine and facts.denied is not None and at_work:
        why = "the admitter begins no test of its own before a budget has room for it"
    if why:
        old = facts.status.next
        if own.awaited and until is None:
            return test, None, None
        if old is not None and (old.what, old.why) == (AGAIN, why):
            return test, None, old
        return test, None, Next("tested", why, stamp(until) if until is not None else "")
    request = _request(facts, wanted)
    return _test_request(replace(facts, status=replace(facts.status, request=request))), wanted, None


def request_annotation(request: Request) -> str:
    """What the agent reads on its Node."""
    return note_text(Asked(request.id, request.level, request.after_sequence))


def is_sent(facts: Facts, request: Request) -> bool:
    """Whether it is on the Node already."""
    return annotation(facts.node, facts.rules.names.request) == request_annotation(request)


def why_asked(ask: Ask) -> str:
    """The request's reason, by which its answer is known to be that of the ask."""
    return sentence(f"{ask.who} asked for it at {ask.since}: {ask.why}")


def before_others_until(ask: Mapping[str, Any]) -> datetime:
    """How long an ask of the record's spec, a document, keeps its node out of tests with other nodes.

    One whose begin cannot be read does not: nobody knew when that ends.
    """
    since, until = when(str(ask.get("since") or "")) or LONG_AGO, when(str(ask.get("until") or "")) or FAR
    return min(until, later(since, _BEFORE_OTHERS_S))


def overdue_at(since: datetime, level: str, rules: Rules) -> datetime:
    """When a test that was asked for at `since` should have an answer; LONG_AGO: where that cannot be read."""
    return later(since, rules.settle_s + _level_s(level) + rules.request_timeout_s)


def _test_request(facts: Facts) -> TestRequest:
    """What has become of the record's request."""
    request, statement, agent = facts.status.request, facts.statement, facts.view.agent
    if request is None:
        return TestRequest()
    if (
        statement is not None
        and statement.sequence > request.after_sequence
        and (
            # A pass of a lower level is no answer.
            statement.verdict is not Verdict.PASS or rank(statement.level) >= rank(request.level)
        )
    ):
        return TestRequest(answered=True)
    # The burn-in of the new boot comes by itself.
    if (facts.agent_boot not in ("", facts.boot) and not facts.undecided_boot) or facts.repair is not None:
        return TestRequest()
    answer = agent.request if agent is not None else None
    if answer is not None and answer.id == request.id and answer.state == "refused":
        return TestRequest(gave_up=sentence(f"{_REFUSED}: {answer.why}"))
    since, ask, sent = when(request.since) or LONG_AGO, facts.retest, is_sent(facts, request)
    settled, overdue = later(since, facts.rules.settle_s), overdue_at(since, request.level, facts.rules)
    if not sent:
        if facts.view.paused:
            return TestRequest(request)
        if facts.busy:
            return TestRequest(gave_up="a pod with GPUs came before the test began")
        if facts.windows.why:
            return TestRequest(gave_up=f"no test begins in a maintenance window ({facts.windows.why})")
        if _person_has(facts) and (ask is None or request.why != why_asked(ask)):
            return TestRequest()
        if facts.now < settled:
            return TestRequest(request, wake_at=settled)
    if facts.now <= overdue:
        return TestRequest(request, sent=True, wake_at=overdue)
    if not sent:
        return TestRequest(gave_up="the test could not be asked for in time")
    unanswered = f"the test of level {request.level} asked for at {request.since} has no result"
    return TestRequest(request, sent=True, unanswered=unanswered)


def _trigger(facts: Facts, judged: Judged) -> TestTrigger | None:
    """The test that is wanted of the node: a person's, else one for what was found, else the schedule's.

    An answer that has just come serves the schedule's choice too.
    """
    view, level, found = facts.view, facts.spec.evidence.level, judged.wanted
    if facts.retest is not None:
        return _asked_for(facts, facts.retest)
    if found is not None:
        why = found.message.removeprefix(f"{view.name}: ")
        return TestTrigger(level, found.code, why, by_schedule=found.by_schedule)
    at_work = facts.status.state is State.TESTING or not facts.gated
    if judged.own.fit and at_work and rank(view.test) >= 0 and not facts.test.answered:
        return TestTrigger(view.test, "TEST_DUE", sentence(view.test_why) or "it is its turn", by_schedule=True)
    return None


def _asked_for(facts: Facts, ask: Ask) -> TestTrigger:
    level = ask.level if rank(ask.level) >= 0 else facts.spec.evidence.level
    return TestTrigger(level, "RETEST_ASKED", why_asked(ask), mine=False)


def _obstacle(facts: Facts, *, by_schedule: bool) -> tuple[str, datetime | None]:
    """Why no test can be asked for now, "" when it can; and when that ends, None where something must."""
    planned, calendar = facts.status.next, facts.windows
    if facts.view.paused:
        return f"{PAUSED}: {facts.view.paused}", None
    if (running := fabric_test(facts)) is not None:
        return "it is in a test with other nodes", test_ends(running, facts.now)
    again = when(planned.at) if planned is not None and planned.what == AGAIN else None
    if planned is not None and planned.why.startswith(_REFUSED) and _refuses_no_more(facts):
        again = None
    if planned is not None and again is not None and facts.now < again:
        return planned.why, again
    if (facts.agent_boot != facts.boot or not facts.boot) and not facts.undecided_boot:
        return "its agent does not answer in this boot", None
    if calendar.why:
        return f"no test begins in a maintenance window ({calendar.why})", calendar.changes_at
    if calendar.unknown and by_schedule:
        return f"it is unknown whether maintenance is near ({calendar.unknown})", calendar.changes_at
    return "it has pods with GPUs; it is tested when it is idle" if facts.busy else "", None


def _refuses_no_more(facts: Facts) -> bool:
    """Whether the agent has taken its refusal back: what stood in the test's way, as a driver to come, is over."""
    agent = facts.view.agent
    return agent is not None and (agent.request is None or agent.request.state != "refused")


def _request(facts: Facts, wanted: TestTrigger) -> Request:
    """A new request for what is wanted."""
    since, after = stamp(facts.now), facts.status.highest_sequence
    identity = f"{facts.view.name}/{wanted.level}/{since}/{after}"
    return Request(hashlib.sha256(identity.encode()).hexdigest()[:16], wanted.level, since, wanted.why, after)


def _level_s(level: str) -> float:
    """How long a run of this level takes."""
    return LEVELS[level].total_s if level in LEVELS else 0.0


def _person_has(facts: Facts) -> bool:
    return any(active(ask, facts.now) is not None for ask in (facts.spec.quarantine, facts.spec.hold))


def _patience(facts: Facts, judged: Judged) -> datetime | None:
    """Until when a test of ours waits: for one that comes by itself, or since the last has changed nothing."""
    status, rules, own = facts.status, facts.rules, judged.own
    since = when(status.since) if status.state is own.state else facts.now
    for one in reversed(status.transitions):
        if one.after != own.state:
            break
        since = when(one.at) or since
    if own.awaited and rules.mode is not Mode.BUILT:
        return None  # no test comes by itself there
    if own.awaited:
        return later(since or facts.now, _level_s(facts.spec.evidence.level) + rules.request_timeout_s)
    tested = facts.tested_at
    return (
        later(tested, rules.request_timeout_s) if tested is not None and since is not None and tested > since else None
    )
