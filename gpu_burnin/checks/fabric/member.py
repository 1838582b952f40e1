"""One member's test from its start to its end: it meets the others, works with them, and says what it has found."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_burnin.checks.fabric.conclude import conclude
from gpu_burnin.checks.fabric.join import join
from gpu_burnin.checks.fabric.meeting import Fault, Meeting, check
from gpu_burnin.checks.fabric.mesh import Ended, Loss, Mesh
from gpu_burnin.checks.fabric.result import UNREACHABLE, Finding
from gpu_burnin.checks.fabric.selftest import selftest
from gpu_burnin.checks.fabric.session import Session

# Of stall_s, after join_s and seconds: an operation under way may end, or be seen to stall.
_TAIL = 2


@dataclass(frozen=True)
class Missing:
    """Links that a member does not have: rail and rank of each."""

    links: tuple[tuple[int, int], ...]


def run(meeting: Meeting, faults: Sequence[Fault] = ()) -> Finding:
    """Hold a member's part of a test. `faults` are on purpose.

    Raises DeviceError for what is wrong with this host alone; what others or a network do is in the finding. It ends
    within join_s + seconds + 4 stall_s + 2 s and leaves no connection.
    """
    check(meeting)
    return asyncio.run(_attend(meeting, faults))


async def _attend(meeting: Meeting, faults: Sequence[Fault]) -> Finding:
    await selftest(meeting.ranks, meeting.rank, meeting.seed)
    mesh = Mesh(meeting)
    session = Session(mesh, faults)
    broken: set[int] = set()
    limit_s = meeting.join_s + meeting.seconds + _TAIL * meeting.stall_s
    limit = asyncio.get_running_loop().call_later(limit_s, mesh.fail)
    try:
        try:
            await join(mesh)
            broken = await _broken_rails(mesh)
            usable = [rail for rail in meeting.together if rail not in broken]
            if usable:
                await session.run(usable)
        except Ended:
            if not mesh.lost:
                await mesh.own_evidence()
        finding = conclude(mesh, session.tally, broken)
        await mesh.part(
            "" if session.tally.done else finding.detail, {k: loss.outcome for k, loss in mesh.lost.items()}
        )
        return finding
    finally:
        limit.cancel()
        await mesh.close()


async def _broken_rails(mesh: Mesh) -> set[int]:
    """Rails on which any two members have no link. Raises Ended when one member is on no rail at all."""
    mine = mesh.missing()
    for rank in mesh.meeting.others:
        rails = tuple(rail for rail, other in mine if other == rank)
        if not rails:
            continue
        why = next((mesh.tries[rail, rank] for rail in rails if (rail, rank) in mesh.tries), "it did not come")
        if len(rails) == len(mesh.meeting.together):
            mesh.blame(rank, UNREACHABLE, why, rails)
        else:
            where = ", ".join(map(str, rails))
            mesh.lost[rank] = Loss(UNREACHABLE, f"{why} (rail {where})", rails)
    if mesh.failed.is_set():
        raise Ended
    missing, _ = await mesh.agree(Missing(tuple(mine)), Missing)
    return {rail for one in missing for rail, _ in one.links}
