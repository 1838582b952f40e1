"""Teams as one page that loads nothing."""

from __future__ import annotations

from gpu_burnin import __version__
from gpu_burnin.fleet.cluster.times import to_the_minute
from gpu_burnin.fleet.jobs.teams import SCHEMA, Share, Team, Teams
from gpu_burnin.fleet.jobs.teams_text import much, number, shortages, summary
from gpu_burnin.report import html

# A bar of less can hardly be seen, and what is there has to be.
_LEAST_PER_CENT = 1.0


def render(found: Teams) -> str:
    """The page."""
    return html.fill(
        "teams.html.j2",
        found=found,
        sums=found.sums,
        summary=summary(found),
        shortages=shortages(found),
        worst=worst(found),
        badge_of=badge_of,
        shortcoming=shortcoming,
        bar=bar,
        number=number,
        much=much,
        minute=lambda at: to_the_minute(at.isoformat()),
        schema=SCHEMA,
        version=__version__,
    )


def worst(found: Teams) -> str:
    """The verdict of the whole: a queue that takes nothing, or a job that never starts, needs a person."""
    if not found.teams:
        return "INCONCLUSIVE"
    return "FAIL" if any(badge_of(team) == "FAIL" for team in found.teams) else "PASS"


def badge_of(team: Team) -> str:
    """The verdict whose colour and sign a team has: waiting for others' GPUs is no fault."""
    if team.problem or (team.first is not None and team.first.wait.never):
        return "FAIL"
    short = any(one.shortage(team.name) for one in team.dedicated)
    return "NOTE" if team.jobs or team.checking or short else "PASS"


def shortcoming(team: Team) -> str:
    """What a team is marked for of which no job waits."""
    if team.problem:
        return "its queue takes no jobs"
    return "nodes are checked" if team.checking else "nodes of its own are missing"


def bar(share: Share) -> list[tuple[str, float, float]]:
    """What of a team's GPUs is used, is being checked and is lent: a class each, where it begins, and its length.

    In per cent of its quota, or of what it has where that is more, as with what it borrows.
    """
    whole = max(share.quota or 0, share.used + share.reserved, 1)
    found, start = [], 0.0
    for css, value in (("used", share.used), ("checked", share.reserved), ("lent", share.lent or 0)):
        if value:
            length = max(_LEAST_PER_CENT, 100 * value / whole)
            found.append((css, round(start, 2), round(length, 2)))
            start += length
    return found
