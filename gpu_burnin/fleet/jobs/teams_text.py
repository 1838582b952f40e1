"""Teams as text: quotas and use by model, why the first of each queue waits, dedicated nodes, and what is free."""

from __future__ import annotations

from gpu_burnin.fleet.cluster.times import to_the_minute
from gpu_burnin.fleet.jobs.teams import Team, Teams
from gpu_burnin.system.prose import STANDARD_WIDTH, table_with_text, wrap

UNREAD = "?"
NO_TEAM = "(no team)"
NO_KUEUE = (
    "no teams: fleet_teams is empty. There is no Kueue in this cluster; name teams in the inventory and run site.yml; "
    "an attached cluster has none"
)
NO_TEAMS = "no teams: fleet_teams is empty. Kueue runs and has no ClusterQueue; name teams in the inventory"
_LEAST_REASON = 40


def render(found: Teams, width: int = STANDARD_WIDTH) -> str:
    """Lines of at most `width` characters, but for longer words."""
    lines = [line for text in summary(found) for line in wrap(text, width, rest="  ")]
    if found.teams:
        lines += ["", *_table(SHARES, shares(found))]
        if any(share.dedicated for team in found.teams for share in team.shares):
            lines.append("  * on nodes that are the team's alone")
    for title, head, told in (
        ("What waits:", WAITING, waiting(found)),
        ("Queues that take no jobs:", ("team", "why"), problems(found)),
    ):
        if told:
            lines += ["", title, *table_with_text([head, *told], width, least=_LEAST_REASON)]
    for name, columns, rows in (
        ("Dedicated nodes:", DEDICATED, dedicated(found)),
        ("Verified nodes that take work:", FREE, free(found)),
    ):
        if rows:
            lines += ["", name, *_table(columns, rows)]
        if columns is DEDICATED:
            lines += [line for text in shortages(found) for line in wrap(text, width, "  - ", "    ")]
    if found.unread:
        lines += ["", "Not readable with your rights:"]
        lines += [line for text in found.unread for line in wrap(text, width, "  - ", "    ")]
    first = next((team.first.job for team in found.teams if team.first is not None), "")
    if first:
        lines += ["", f"All of one job: `muster why {first}`"]
    return "\n".join(lines) + "\n"


SHARES = ("team", "model", "quota", "used", "checked", "borrowed", "lent")
WAITING = ("team", "jobs", "GPUs", "since", "why the first one waits")
DEDICATED = ("team", "model", "nodes", "GPUs given", "GPUs wanted")
_NAMES = ("team", "model")
FREE = ("model", "nodes", "nodes free", "GPUs", "GPUs free")


def summary(found: Teams) -> tuple[str, ...]:
    """The whole fleet in two sentences, or why there is nothing."""
    if not found.kueue:
        return (NO_KUEUE,)
    if not found.teams:
        return (NO_TEAMS,)
    sums = found.sums
    count = len(found.teams)
    held = f", {number(sums['reserved'])} held for nodes that are checked" if sums["reserved"] else ""
    jobs = sums["waiting_jobs"]
    waiting = f"{number(jobs)} job{'s' * (jobs != 1)} ({number(sums['waiting_gpus'])} GPUs) wait{'s' * (jobs == 1)}"
    of_teams = (
        f"{count:,} team{'s' * (count != 1)}: quotas of {number(sums['quota'])} GPUs, {number(sums['used'])} used, "
        f"{number(sums['borrowed'])} borrowed{held}; {waiting}"
    )
    if found.free is None:
        return (of_teams,)
    return (
        of_teams,
        f"{number(sums['verified_nodes'])} verified nodes with {number(sums['verified_gpus'])} GPUs take work; "
        f"{number(sums['free_nodes'])} of them and {number(sums['free_gpus'])} GPUs are free",
    )


def shares(found: Teams) -> list[tuple[str, ...]]:
    """A row of each team and model."""
    rows: list[tuple[str, ...]] = []
    for team in found.teams:
        for place, share in enumerate(team.shares):
            model = f"{share.model} *" if share.dedicated else share.model
            figures = (share.quota, share.used, share.reserved, share.borrowed, share.lent)
            rows.append((team.name if not place else "", model, *map(number, figures)))
        if not team.shares:
            rows.append((team.name, "-", *[UNREAD] * 5))
    for place, one in enumerate(found.rest):
        rows.append((NO_TEAM if not place else "", one.model, number(one.quota), "", "", "", number(one.lent)))
    return rows


def waiting(found: Teams) -> list[tuple[str, ...]]:
    """A row of each team of which something waits: how much, since when, and why the first of its queue does."""
    rows: list[tuple[str, ...]] = []
    for team in found.teams:
        if team.jobs or team.first is not None:
            since = team.oldest or (team.first.since if team.first is not None else None)
            why = f"{team.first.job}: {team.first.wait.sentence}" if team.first is not None else UNREAD
            minute = to_the_minute(since.isoformat()) if since is not None else UNREAD
            much = (number(team.jobs), number(team.gpus)) if team.jobs else (f"{team.checking} checked", "")
            rows.append((team.name, *much, minute, why))
    return rows


def much(team: Team) -> str:
    """How much of a team waits, since when."""
    if not team.jobs:
        return number(team.jobs)
    jobs = f"{number(team.jobs)} job{'s' * (team.jobs != 1)}, {number(team.gpus)} GPUs"
    return f"{jobs}, since {to_the_minute(team.oldest.isoformat())}" if team.oldest else jobs


def problems(found: Teams) -> list[tuple[str, ...]]:
    """Queues that take no jobs, and why."""
    return [(team.name, team.problem) for team in found.teams if team.problem]


def dedicated(found: Teams) -> list[tuple[str, ...]]:
    """A row of each team and model with nodes of its own."""
    return [
        (team.name, one.model, number(one.nodes), number(one.gpus), number(one.gpus_wanted))
        for team in found.teams
        for one in team.dedicated
    ]


def shortages(found: Teams) -> list[str]:
    """What teams lack of nodes of their own, each in a sentence."""
    return [text for team in found.teams for one in team.dedicated if (text := one.shortage(team.name))]


def free(found: Teams) -> list[tuple[str, ...]]:
    """A row of each model."""
    return [(one.model, *map(number, (one.nodes, one.nodes_free, one.gpus, one.gpus_free))) for one in found.free or ()]


def number(value: int | None) -> str:
    """A figure, or the sign of one that may not be read."""
    return UNREAD if value is None else f"{value:,}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Names to the left, figures to the right."""
    columns = []
    for name, *cells in zip(head, *rows, strict=True):
        wide = max(map(len, (name, *cells)))
        columns.append([one.ljust(wide) if name in _NAMES else one.rjust(wide) for one in (name, *cells)])
    return ["  " + "  ".join(row).rstrip() for row in zip(*columns, strict=True)]
