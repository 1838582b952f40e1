"""What a member makes of all that it has met: its finding, in words too. Pure but for reading the mesh."""

from __future__ import annotations

from collections.abc import Iterator, Set

from gpu_burnin.checks.fabric.audit import Culprit
from gpu_burnin.checks.fabric.mesh import Loss, Mesh
from gpu_burnin.checks.fabric.result import (
    MTU,
    OK,
    STALLED,
    UNREACHABLE,
    WRONG,
    Finding,
    PeerFinding,
    RailFinding,
    gravest,
)
from gpu_burnin.checks.fabric.tally import Tally
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import count, rate


def conclude(mesh: Mesh, tally: Tally, broken: Set[int]) -> Finding:
    """The finding. A member that did not run itself for a while says nothing of others."""
    lost = {} if mesh.stood_s else mesh.lost
    peers = tuple(_peers(mesh, tally, lost))
    outcomes = [loss.outcome for loss in lost.values()]
    if tally.wrong or any(mesh.meeting.rank in (culprit.giver, culprit.taker) for culprit in tally.culprits):
        outcomes.append(WRONG)
    if not outcomes and not tally.done:
        outcomes.append(UNREACHABLE if broken else mesh.word.outcome if mesh.word and not mesh.stood_s else STALLED)
    elif broken:
        outcomes.append(UNREACHABLE)
    outcome = gravest(outcomes)
    return Finding(
        outcome=outcome,
        bytes_per_s=tally.together.bytes_per_s,
        rails=tuple(_rails(mesh, tally, lost, broken, outcome)),
        peers=peers,
        detail="; ".join(_sentences(mesh, tally, lost, broken)),
        operations=tally.operations,
        elements=tally.elements,
        wrong_elements=tally.wrong,
    )


def _peers(mesh: Mesh, tally: Tally, lost: dict[int, Loss]) -> Iterator[PeerFinding]:
    me = mesh.meeting.rank
    for rank in mesh.meeting.others:
        # What came from it, wrong for this member; or what it got of this one, which is the same link.
        given = [culprit for culprit in tally.culprits if culprit.giver == rank]
        wrong = sum(tally.culprits[culprit] for culprit in given)
        at_link = any({culprit.giver, culprit.taker} == {me, rank} for culprit in tally.culprits)
        loss = lost.get(rank)
        outcomes = [loss.outcome] if loss else []
        if wrong or at_link:
            outcomes.append(WRONG)
        speed = tally.peer_rates.get(rank)
        if not outcomes and speed is None:
            continue
        again = sum(link.sent_again() for (_, other), link in mesh.links.items() if other == rank)
        words = [loss.why] if loss else []
        if again:
            words.append(f"{count(again, 'segment')} to it sent again")
        first = next((tally.first[culprit] for culprit in given if culprit in tally.first), None)
        yield PeerFinding(
            rank, mesh.meeting.name(rank), gravest(outcomes), wrong, first, speed, detail="; ".join(words)
        )


def _rails(mesh: Mesh, tally: Tally, lost: dict[int, Loss], broken: Set[int], outcome: str) -> Iterator[RailFinding]:
    """Of each that was to be tested alone, and was; one that cannot be used needs no test."""
    for rail in mesh.meeting.rails:
        rates = tally.by_rail.get(rail)
        faults = [loss.outcome for loss in lost.values() if rail in loss.rails]
        if len(mesh.meeting.together) == 1:
            yield RailFinding(rail, outcome, tally.together.bytes_per_s)
        elif rail in broken or faults:
            yield RailFinding(rail, gravest([*faults, *([UNREACHABLE] if rail in broken else [])]))
        elif rail in tally.wrong_rails:
            yield RailFinding(rail, WRONG, rates.bytes_per_s if rates else None)
        elif rates is not None and rail in tally.tested:
            yield RailFinding(rail, OK, rates.bytes_per_s)


# --- words ---


def _sentences(mesh: Mesh, tally: Tally, lost: dict[int, Loss], broken: Set[int]) -> Iterator[str]:
    meeting = mesh.meeting
    for culprit, wrong in tally.culprits.items():
        yield _of_wrong(mesh, tally, culprit.giver, culprit.taker, wrong)
    if mesh.stood_s:
        yield f"this host itself did not run for {mesh.stood_s:.1f} s, so it can say nothing of others"
        return
    for rank, loss in lost.items():
        yield f"{meeting.name(rank)} is {_WORDS[loss.outcome]}: {loss.why}"
    if broken:
        yield f"not all members reach each other on rail {listed([str(rail) for rail in sorted(broken)])}"
    if mesh.word and not lost:
        yield f"{meeting.name(mesh.word.rank)} ended the test: {mesh.word.why}"
    elif not tally.done and not lost and not broken:
        yield "the test did not end in its time, and nothing shows which member held it up"
    if tally.done:
        verdict = f"{count(tally.wrong, 'element')} wrong" if tally.wrong else "none wrong"
        at = tally.together.bytes_per_s
        speed = f", {rate(at, 'B/s')} on the bus" if at else ""
        yield (
            f"{count(tally.operations, 'collective')} of {meeting.ranks} members, {tally.elements:,} elements "
            f"compared, {verdict}{speed}"
        )


_WORDS = {OK: "there", WRONG: "wrong", UNREACHABLE: "unreachable", MTU: "behind a smaller MTU", STALLED: "stalled"}


def _of_wrong(mesh: Mesh, tally: Tally, giver: int, taker: int, wrong: int) -> str:
    culprit, name = Culprit(giver, taker), mesh.meeting.name
    first = tally.first.get(culprit)
    example = f", first at {first.position}: expected {first.expected}, got {first.got} ({first.kind})" if first else ""
    if giver == taker:
        whose = f"{name(giver)}'s own sum or memory is wrong"
    else:
        whose = f"what {name(giver)} gave to {name(taker)} was wrong"
    return f"{whose} in {tally.where[culprit]} ({count(wrong, 'wrong element')} here{example})"
