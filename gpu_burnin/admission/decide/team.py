"""Whether an idle node goes to a team, or back to all. Pure.

Which node should move is chosen for the whole fleet (admission/teams); here it is done, unless something came up.
"""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.admission.decide.facts import Facts
from gpu_burnin.admission.decide.plan import Plan
from gpu_burnin.admission.decide.times import stamp
from gpu_burnin.api.names import ADMITTER_USER
from gpu_burnin.api.record import State, Status, Transition, with_step

GIVEN, BACK = "DEDICATED", "SHARED"


def with_team(facts: Facts, plan: Plan, status: Status) -> Status:
    """The record with the team that the node should be dedicated to, and the transition that tells it."""
    team, before = facts.view.team, status.team
    if team is None or team == before or not _may_move(facts, plan, status):
        return status
    code = GIVEN if team else BACK
    message = (
        f"{facts.view.name}: it is idle, and dedicated to the team {team} now"
        if team
        else (f"{facts.view.name}: it is idle, and not dedicated to the team {before} any more")
    )
    step = Transition(stamp(facts.now), str(status.state), str(status.state), code, message, ADMITTER_USER)
    return replace(status, team=team, transitions=with_step(status.transitions, step))


def _may_move(facts: Facts, plan: Plan, status: Status) -> bool:
    """A node at work without work: what is tested, asked for, left, or near a window stays where it is."""
    at_work = plan.open and not facts.gated and plan.needs is None and plan.shown.state is State.READY
    calm = not (facts.windows.why or facts.windows.unknown or facts.retest)
    return at_work and calm and not facts.busy and status.request is None and status.leave is None
