"""How a test goes on: from what is on its members' Nodes to the next step. Pure, so that any leader goes on with it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpu_burnin.api.evidence import one_line
from gpu_burnin.api.fabric_documents import Holds, RendezvousError
from gpu_burnin.api.fabric_note import NO_ADDRESS, FabricAnswer, FabricRequest, Part
from gpu_burnin.api.rendezvous import FabricTest, Kind, Member, Nic, parse_test
from gpu_burnin.fabric import verify
from gpu_burnin.fabric.model import Result
from gpu_burnin.system.clock import parse_rfc3339, rfc3339_s
from gpu_burnin.system.prose import printable

# For agents to answer, and for members to meet once they have the offer.
ANSWER_S, MEET_S = 60.0, 60.0
# Beside these and the time that members work: four stalls of 10 s that one may wait for, its start, and its answer.
BESIDE_S = 75.0


@dataclass(frozen=True)
class Seen:
    """What a member's Node says. `boots` are those that kubelet and agent name. `closed`: no new pod comes.

    `hindrance` is why it can be tested no more: a pod with GPUs came, a window is near, a person asks for it.
    """

    request: FabricRequest | None = None
    answer: FabricAnswer | None = None
    boots: tuple[str, ...] = ()
    closed: bool = False
    hindrance: str = ""


@dataclass(frozen=True)
class Step:
    """What is next. `give` is the request for those members that have another one; `result` ends the test.

    `why` says what it waits for, or why it came to nothing; `faults` have the members that refused since something of
    their own is not as it should be, each with it.
    """

    give: FabricRequest | None = None
    result: Result | None = None
    why: str = ""
    found: Mapping[str, str] = field(default_factory=dict)
    faults: Mapping[str, str] = field(default_factory=dict)


def planned(
    members: Sequence[tuple[str, str, tuple[Nic, ...]]],
    keys: Mapping[str, str],
    now: datetime,
    *,
    seconds: float,
    size_bytes: int,
    settle_s: float,
    run: str = "",
) -> FabricRequest:
    """The request of a new test of these members: name, boot and NICs of each, rank 0 first."""
    run = run or str(uuid.uuid4())
    test = FabricTest(
        run=run,
        test=0,
        kind=Kind.PAIR if len(members) == 2 else Kind.GROUP,
        rails=(),
        members=tuple(Member(name, boot, nics) for name, boot, nics in members),
        seconds=seconds,
        size_bytes=size_bytes,
        seed=uuid.UUID(run).int % (1 << 62),
        valid_s=MEET_S,
    )
    until = now + timedelta(seconds=settle_s + ANSWER_S + MEET_S + seconds + BESIDE_S)
    return FabricRequest(run, rfc3339_s(now), rfc3339_s(until), test.canonical().decode("ascii"), keys)


def test_of(request: FabricRequest) -> FabricTest | None:
    """The test that a request asks for, None where it cannot be read, or none that can be run."""
    try:
        return parse_test(request.test.encode())
    except ValueError:
        return None


def members_of(request: FabricRequest, name: str) -> tuple[str, ...]:
    """The members of the test that stands on the Node of this name: it alone where nobody can read them."""
    test = test_of(request)
    return test.names if test is not None else (name,)


def step(
    request: FabricRequest,
    test: FabricTest,
    seen: Mapping[str, Seen],
    now: datetime,
    *,
    settle_s: float,
    holds: Holds,
) -> Step:
    """The next step of a test, whose newest request is `request`."""
    if found := _rebooted(test, seen):
        why = f"{', '.join(found)} rebooted in the middle of it"
        return Step(result=Result(test.test, (), rebooted=found), why=why)
    answers = {name: one.answer for name, one in seen.items() if one.answer is not None and one.answer.id == request.id}
    said = {name: printable(one_line(one.why)) for name, one in answers.items() if one.part is Part.REFUSED}
    refused = {name: why or "it refused" for name, why in said.items()}
    if refused:
        faults = {name: why for name, why in refused.items() if answers[name].fault == NO_ADDRESS}
        return replace(_absent(test, refused), faults=faults)
    if not request.offer:
        return _before_the_offer(request, test, seen, answers, now, settle_s=settle_s, holds=holds)
    if any(seen[name].request != request for name in test.names) and now < parse_rfc3339(request.until):
        return Step(give=request, why="the offer is brought to its members")
    done = [name for name in test.names if name in answers and answers[name].part is Part.DONE]
    if len(done) < len(test.names) and now < parse_rfc3339(request.until):
        return Step(why="its members are at work")
    return _ended(request, test, seen, answers, holds)


def _before_the_offer(
    request: FabricRequest,
    test: FabricTest,
    seen: Mapping[str, Seen],
    answers: Mapping[str, FabricAnswer],
    now: datetime,
    *,
    settle_s: float,
    holds: Holds,
) -> Step:
    hindered = {name: seen[name].hindrance for name in test.names if seen[name].hindrance}
    if hindered:
        return _absent(test, hindered)
    since = parse_rfc3339(request.since)
    late = now >= since + timedelta(seconds=settle_s + ANSWER_S)
    lacking = [name for name in test.names if seen[name].request is None]
    if lacking and not late:
        return Step(give=request, why=f"{', '.join(lacking)} is to be asked")
    silent = [name for name in test.names if name not in answers]
    offered = answers[test.names[0]].offer if test.names[0] in answers else ""
    if late and (silent or not offered):
        names = silent or [test.names[0]]
        return _absent(test, dict.fromkeys(names, f"its agent has not answered within {ANSWER_S:.0f} s"))
    open_ = [name for name in test.names if not seen[name].closed]
    if late and open_:
        return _absent(test, dict.fromkeys(open_, "it could not be kept from new work"))
    if silent or not offered or open_ or now < since + timedelta(seconds=settle_s):
        return Step(why="its agents are to answer, and no new pod may come")
    try:
        made = verify.offered(offered.encode(), test, request.keys, now, holds).rendezvous
    except RendezvousError as error:
        return Step(result=Result(test.test, (), refused={test.names[0]: str(error)}), why=str(error))
    # From here on it is over when its members have to be.
    until = made.made + timedelta(seconds=MEET_S + test.seconds + BESIDE_S)
    return Step(give=replace(request, offer=offered, until=rfc3339_s(until)), why="the offer is brought to its members")


def _ended(
    request: FabricRequest,
    test: FabricTest,
    seen: Mapping[str, Seen],
    answers: Mapping[str, FabricAnswer],
    holds: Holds,
) -> Step:
    idle = [name for name in test.names if name not in answers or answers[name].part is Part.READY]
    if idle:
        return _absent(test, dict.fromkeys(idle, "its agent has not begun the test"))
    # It was fresh when it was brought to them; now the question is what was signed.
    made_at = verify.made_at(request.offer.encode()) or parse_rfc3339(request.since)
    try:
        offer = verify.offered(request.offer.encode(), test, request.keys, made_at, holds)
    except RendezvousError as error:
        return Step(result=Result(test.test, (), refused={test.names[0]: str(error)}), why=str(error))
    views = {name: answer.view.encode() for name, answer in answers.items() if answer.view}
    boots = {name: one.boots[0] for name, one in seen.items() if one.boots}
    verified = verify.result_of(offer, views, request.keys, boots, holds)
    result = replace(verified.result, refused={one.member: one.why for one in verified.refused})
    return Step(result=result, found={view.member: view.detail or str(view.outcome) for view in verified.found})


def _rebooted(test: FabricTest, seen: Mapping[str, Seen]) -> tuple[str, ...]:
    return tuple(one.name for one in test.members if any(boot and boot != one.boot_id for boot in seen[one.name].boots))


def _absent(test: FabricTest, why: Mapping[str, str]) -> Step:
    words = "; ".join(f"{name}: {one}" for name, one in why.items())
    return Step(result=Result(test.test, (), absent=why), why=words)
