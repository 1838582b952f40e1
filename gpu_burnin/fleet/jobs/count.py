"""What each team has and what of it waits, counted from objects of Kueue, Nodes and the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_burnin.api import kueue
from gpu_burnin.api.jobs import GPUS, number_of
from gpu_burnin.api.kueue import Object, Workload
from gpu_burnin.api.names import GPU_LABEL, TEAM_LABEL, Names
from gpu_burnin.api.waits import Surroundings, why_waits
from gpu_burnin.fleet.jobs.nodes import free_of, gpus_of, largest_domains, model_of
from gpu_burnin.fleet.jobs.teams import Dedicated, Rest, Share, Team, Teams, Waiting


@dataclass(frozen=True)
class Facts:
    """Objects as the API server sends them; None: may not be read. `locals` are LocalQueues.

    `only`: the namespace that Workloads and LocalQueues are of, "" where they are of all.
    """

    cluster_queues: Sequence[Object] | None = ()
    locals: Sequence[Object] | None = ()
    flavors: Sequence[Object] | None = ()
    workloads: Sequence[Object] | None = ()
    nodes: Sequence[Object] | None = ()
    admissions: Sequence[Object] | None = ()
    unread: tuple[str, ...] = ()
    only: str = ""
    cohorts: Sequence[Object] | None = ()


@dataclass(frozen=True)
class Flavor:
    """What a ResourceFlavor is: the model of its GPUs, and the team that its nodes are dedicated to ("" for none)."""

    model: str
    team: str = ""


def teams_of(facts: Facts, names: Names, now: datetime, server: str = "") -> Teams:
    """The teams by name."""
    flavors = flavors_of(facts.flavors or ())
    jobs = None if facts.workloads is None else [kueue.workload(item) for item in facts.workloads]
    around = surroundings(facts, flavors)
    rest: tuple[Rest, ...] = ()
    if facts.cluster_queues is not None:
        found = [_of_cluster_queue(item, flavors) for item in facts.cluster_queues]
        found, rest = _with_lent(found, facts.cluster_queues, _rest(facts.cohorts or (), flavors))
    else:
        found = [_of_local_queue(item, flavors) for item in facts.locals or ()]
    team_of = _teams_of_queues(facts)
    given = None if facts.admissions is None or facts.nodes is None else _given(facts)
    # The namespace of a team is named as the team.
    filled = [
        _with_jobs(team, None if facts.only not in ("", team.name) else jobs, team_of, around, now) for team in found
    ]
    filled = [_with_dedicated(team, given) for team in filled]
    free = None
    if facts.nodes is not None and jobs is not None and not facts.only:
        free = free_of(facts.nodes, jobs, {name: one.model for name, one in flavors.items()}, names)
    ordered = tuple(sorted(filled, key=lambda team: team.name))
    return Teams(ordered, free, now, server, unread=facts.unread, rest=rest)


def flavors_of(items: Iterable[Object]) -> dict[str, Flavor]:
    """The ResourceFlavors by name: by the labels of nodes that they ask for."""
    found = {}
    for item in items:
        labels = (item.get("spec") or {}).get("nodeLabels") or {}
        name = str(item["metadata"]["name"])
        found[name] = Flavor(str(labels.get(GPU_LABEL) or name), str(labels.get(TEAM_LABEL) or ""))
    return found


def surroundings(facts: Facts, flavors: Mapping[str, Flavor]) -> dict[str, Surroundings]:
    """What a job of each team is told of the fleet; that of "" is for those of no team."""
    models = {name: f"{one.model}{f' (dedicated to {one.team})' if one.team else ''}" for name, one in flavors.items()}
    largest = largest_domains(facts.nodes or ())
    problems = dict(_problems((*(facts.cluster_queues or ()), *(facts.locals or ()))))
    plain = Surroundings(models, largest=largest, problems=problems)
    found = {"": plain}
    for item in facts.cluster_queues or ():
        found[str(item["metadata"]["name"])] = replace(
            plain, used=_taken(item, "flavorsReservation", "total"), quotas=_quotas(item)
        )
    return found


def in_line(jobs: Iterable[Workload]) -> list[Workload]:
    """Those that stand in line, the first of the line first."""
    return sorted((job for job in jobs if job.waits), key=lambda job: (-job.priority, job.queued, job.own_name))


def dedicated_wanted(queues: Iterable[Object], flavors: Mapping[str, Flavor]) -> dict[tuple[str, str], int]:
    """GPUs that teams should have on nodes of their own, by team and model."""
    return {
        (of.team, of.model): quota
        for queue in queues
        for flavor, quota in _quotas(queue).items()
        if (of := flavors.get(flavor)) is not None and of.team
    }


def _problems(queues: Iterable[Object]) -> Iterable[tuple[str, str]]:
    for item in queues:
        active = kueue.condition(item, "Active")
        if active is not None and not active.status:
            yield str(item["metadata"]["name"]), active.message or active.reason


def _of_cluster_queue(item: Object, flavors: Mapping[str, Flavor]) -> Team:
    name, spec = str(item["metadata"]["name"]), item.get("spec") or {}
    used, held = _taken(item, "flavorsUsage", "total"), _taken(item, "flavorsReservation", "total")
    borrowed = _taken(item, "flavorsReservation", "borrowed")
    shares = []
    for flavor, quota in _quotas(item).items():
        of = flavors.get(flavor) or _by_name(flavor, name)
        running = used.get(flavor, 0)
        reserved = max(0, held.get(flavor, 0) - running)
        shares.append(Share(of.model, bool(of.team), quota, running, reserved, borrowed.get(flavor, 0)))
    weight = f"{number_of((spec.get('fairSharing') or {}).get('weight') or 1).normalize():f}"
    problem = dict(_problems((item,))).get(name, "")
    pending = (item.get("status") or {}).get("pendingWorkloads")
    return Team(name, tuple(shares), pending, None, None, None, weight=weight, problem=problem)


def _of_local_queue(item: Object, flavors: Mapping[str, Flavor]) -> Team:
    """As much of a team as its own queue tells: no quota, and not what is borrowed."""
    name = str((item.get("spec") or {}).get("clusterQueue") or item["metadata"].get("namespace") or "")
    used, held = _taken(item, "flavorsUsage", "total"), _taken(item, "flavorsReservation", "total")
    shares = []
    for flavor in dict.fromkeys((*used, *held)):
        of = flavors.get(flavor) or _by_name(flavor, name)
        running = used.get(flavor, 0)
        shares.append(Share(of.model, bool(of.team), None, running, max(0, held.get(flavor, 0) - running), None, None))
    problem = dict(_problems((item,))).get(str(item["metadata"]["name"]), "")
    pending = (item.get("status") or {}).get("pendingWorkloads")
    return Team(name, tuple(shares), pending, None, None, None, problem=problem)


def _by_name(flavor: str, team: str) -> Flavor:
    """Of a flavor that may not be read: the provisioner names them MODEL, or MODEL-TEAM where nodes are dedicated."""
    model = flavor.removesuffix(f"-{team}")
    return Flavor(model, team if model != flavor else "")


def _quotas(item: Object) -> dict[str, int]:
    return {flavor: kueue.gpus(one.get("nominalQuota")) for flavor, one in _resources(item)}


def _resources(item: Object) -> Iterator[tuple[str, Object]]:
    """What is said of GPUs, by flavor."""
    for group in (item.get("spec") or {}).get("resourceGroups") or []:
        for flavor in group.get("flavors") or []:
            for resource in flavor.get("resources") or []:
                if resource.get("name") == GPUS:
                    yield str(flavor["name"]), resource


def _taken(item: Object, kind: str, field_name: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for flavor in (item.get("status") or {}).get(kind) or []:
        for resource in flavor.get("resources") or []:
            if resource.get("name") == GPUS:
                found[str(flavor["name"])] = kueue.gpus(resource.get(field_name))
    return found


def _rest(cohorts: Iterable[Object], flavors: Mapping[str, Flavor]) -> dict[str, int]:
    """The GPUs by model that cohorts have beside the quotas of teams."""
    found: dict[str, int] = {}
    for item in cohorts:
        for flavor, quota in _quotas(item).items():
            model = flavors[flavor].model if flavor in flavors else flavor
            found[model] = found.get(model, 0) + quota
    return found


def _with_lent(
    teams: list[Team], queues: Sequence[Object], rest: Mapping[str, int]
) -> tuple[list[Team], tuple[Rest, ...]]:
    """Each with its part of what others borrow: in the proportion of what it leaves unused and may lend.

    What is in no team's quota is lent before that.
    """
    lent: dict[tuple[str, int], int] = {}
    members: dict[str, list[tuple[Team, int]]] = {}
    for team in teams:
        for number, share in enumerate(team.shares):
            if not share.dedicated:
                members.setdefault(share.model, []).append((team, number))
    lendable = {str(item["metadata"]["name"]): _lending_limits(item) for item in queues}
    left = []
    for model in sorted({*members, *rest}):
        of = members.get(model, [])
        shares = [team.shares[number] for team, number in of]
        borrowed = sum(share.borrowed or 0 for share in shares)
        first = min(borrowed, rest.get(model, 0))
        unused = [
            min(
                max(0, (share.quota or 0) - share.used - share.reserved),
                lendable[team.name].get(model, share.quota or 0),
            )
            for (team, _), share in zip(of, shares, strict=True)
        ]
        parts = _divided(min(sum(unused), borrowed - first), unused)
        lent |= {(team.name, number): part for (team, number), part in zip(of, parts, strict=True)}
        if rest.get(model):
            left.append(Rest(model, rest[model], first))
    filled = [
        replace(
            team,
            shares=tuple(
                replace(share, lent=lent.get((team.name, number), 0)) for number, share in enumerate(team.shares)
            ),
        )
        for team in teams
    ]
    return filled, tuple(left)


def _lending_limits(item: Object) -> dict[str, int]:
    return {flavor: kueue.gpus(one["lendingLimit"]) for flavor, one in _resources(item) if "lendingLimit" in one}


def _divided(whole: int, weights: Sequence[int]) -> list[int]:
    """`whole` in whole parts in the proportion of `weights`, the largest remainders first: they add up to it."""
    total = sum(weights)
    if not whole or not total:
        return [0] * len(weights)
    parts = [whole * weight // total for weight in weights]
    order = sorted(range(len(weights)), key=lambda n: -(whole * weights[n] % total))
    for number in order[: whole - sum(parts)]:
        parts[number] += 1
    return parts


def _teams_of_queues(facts: Facts) -> dict[tuple[str, str], str]:
    """The ClusterQueue of each LocalQueue, by namespace and name."""
    return {
        (str(item["metadata"].get("namespace")), str(item["metadata"]["name"])): str(
            (item.get("spec") or {}).get("clusterQueue") or ""
        )
        for item in facts.locals or ()
    }


def _with_jobs(
    team: Team,
    jobs: Sequence[Workload] | None,
    team_of: Mapping[tuple[str, str], str],
    around: Mapping[str, Surroundings],
    now: datetime,
) -> Team:
    """With what waits of it. A job whose queue is not there is counted with the team that its namespace is named as."""
    if jobs is None:
        return team
    mine = [job for job in jobs if team_of.get((job.namespace, job.queue), job.namespace) == team.name]
    line = in_line(mine)
    checking = [job for job in mine if job.reserved and not job.admitted and not job.finished]
    first = next(iter([*line, *sorted(checking, key=lambda job: job.queued)]), None)
    wait = why_waits(first, around.get(team.name, around[""]), now) if first is not None else None
    return replace(
        team,
        jobs=len(line),
        gpus=sum(job.gpus for job in line),
        oldest=min((job.created for job in line), default=None),
        first=Waiting(first.key, first.gpus, first.created, wait) if first is not None and wait is not None else None,
        running=sum(job.admitted and not job.finished for job in mine),
        checking=len(checking),
    )


def _given(facts: Facts) -> dict[tuple[str, str], tuple[int, int]]:
    """Nodes and GPUs by team and model: the record of who has a node is its NodeAdmission."""
    nodes = {str(node["metadata"]["name"]): node for node in facts.nodes or ()}
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for item in facts.admissions or ():
        team = str((item.get("status") or {}).get("team") or "")
        node = nodes.get(str(item["metadata"]["name"]))
        if team and node is not None:
            count, gpus = found.get((team, model_of(node)), (0, 0))
            found[team, model_of(node)] = (count + 1, gpus + gpus_of(node))
    return found


def _with_dedicated(team: Team, given: Mapping[tuple[str, str], tuple[int, int]] | None) -> Team:
    wanted = {share.model: share.quota for share in team.shares if share.dedicated}
    if given is None:
        return team
    models = sorted({*wanted, *(model for name, model in given if name == team.name)})
    rows = [Dedicated(model, *given.get((team.name, model), (0, 0)), wanted.get(model, 0)) for model in models]
    return replace(team, dedicated=tuple(rows))
