"""What Kubernetes and Kueue are told of the teams. Pure functions: teams in, objects out.

Every object says all that Kueue would add, and quantities are written as Kueue writes them: what is there is then equal
to what is wanted, or differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import GROUP, Team

from gpu_burnin.api.jobs import API_VERSION, GPUS, HOSTNAME, JOBSET_GROUP
from gpu_burnin.api.jobs import GROUP as KUEUE_GROUP
from gpu_burnin.api.names import (
    CHECK,
    COHORT,
    GPU_LABEL,
    KUEUE_PROVISIONING,
    LABEL_PREFIX,
    LOCAL_QUEUE,
    MANAGED_BY,
    POWER_CHECK,
    READY_LABEL,
    TEAM_LABEL,
    TEAM_MEMBER_ROLE,
    TOPOLOGY,
    Names,
)

Object = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
MEMBERS = "muster:team-members"
# By this name LimitRange and ResourceQuota are in each team's namespace.
LIMITS = "muster"
PRIORITIES = {
    "low": (-1000, "Jobs that may wait, and that others of the team may stop."),
    "normal": (0, "What a job has that names no priority."),
    "high": (1000, "Jobs that go before the others of the team, and stop those of low and normal."),
}
# Of a container that says nothing: enough to start, and little enough to leave room for those that say what they need.
DEFAULT_REQUESTS = {"cpu": "500m", "memory": "1Gi"}
# A launched job is a JobSet with a ConfigMap and a headless Service, until a week after its end; what of them is left
# over is the team's own. With fewer of one than of the others a launch would fail half-way.
_LAUNCHES, _OWN = 500, 100
# What one namespace may put into etcd (quota 8 GiB; a ConfigMap or a Secret has up to 1 MiB). Pods: one for each GPU of
# 7,500 nodes.
MOST_OBJECTS = {
    "configmaps": _LAUNCHES + _OWN,
    "count/jobs.batch": 5000,
    f"count/jobsets.{JOBSET_GROUP}": _LAUNCHES,
    "persistentvolumeclaims": 200,
    "pods": 60_000,
    "secrets": 200,
    "services": _LAUNCHES + _OWN,
}


def objects(teams: Sequence[Team], fleet: Fleet, names: Names, *, scale: bool = False) -> list[Object]:
    """All objects of the teams, in the order in which they are written; none without teams.

    `scale`: jobs wait for machines that are switched on, by a second check of each queue.
    """
    if not teams:
        return []
    of_teams = (one for team in teams for one in _of(team, fleet, names, scale=scale))
    return [*_shared(teams, fleet, names), *(_powered(names) if scale else []), *of_teams]


def quantity(number: float) -> str:
    """A number as Kubernetes writes it: 1000 is 1k, 1.5 is 1500m."""
    value, suffixes = round(number * 1000), iter(("m", "", "k", "M", "G", "T"))
    suffix = next(suffixes)
    while value and value % 1000 == 0 and suffix != "T":
        value, suffix = value // 1000, next(suffixes)
    return f"{value}{suffix}" if value else "0"


def flavor(team: Team, model: str) -> str:
    """The name of the ResourceFlavor of a model as the team has it."""
    return f"{model}-{team.name}" if team.dedicated else model


def _shared(teams: Sequence[Team], fleet: Fleet, names: Names) -> list[Object]:
    shared = list(dict.fromkeys(model for team in teams if not team.dedicated for model in team.gpus))
    levels = [*(f"{LABEL_PREFIX}{level}" for level in fleet.levels), HOSTNAME]
    return [
        _object(API_VERSION, "Topology", TOPOLOGY, spec={"levels": [{"nodeLabel": level} for level in levels]}),
        *(_flavor(model, {READY_LABEL: "true", GPU_LABEL: model}, _size(fleet, model, names)) for model in shared),
        _object(API_VERSION, "AdmissionCheck", CHECK, spec={"controllerName": names.verified_check}),
        *(
            _object(API_VERSION, "WorkloadPriorityClass", name, value=value, description=words)
            for name, (value, words) in PRIORITIES.items()
        ),
        _object(API_VERSION, "Cohort", COHORT, spec=_rest(teams, shared, fleet)),
    ]


def _powered(names: Names) -> list[Object]:
    """The check that Kueue itself judges, by the ProvisioningRequests that it makes and the scaler answers.

    A job without GPUs needs no machine. One for which there is none waits on: Kueue by itself would deactivate it for
    good after three times, some minutes later.
    """
    retries = {"backoffLimitCount": 1_000_000, "backoffBaseSeconds": 60, "backoffMaxSeconds": 600}
    config = {"provisioningClassName": names.domain, "managedResources": [GPUS], "retryStrategy": retries}
    parameters = {"apiGroup": KUEUE_GROUP, "kind": "ProvisioningRequestConfig", "name": POWER_CHECK}
    check = {"controllerName": KUEUE_PROVISIONING, "parameters": parameters}
    return [
        _object(API_VERSION, "ProvisioningRequestConfig", POWER_CHECK, spec=config),
        _object(API_VERSION, "AdmissionCheck", POWER_CHECK, spec=check),
    ]


def _rest(teams: Sequence[Team], shared: Sequence[str], fleet: Fleet) -> Object:
    """The GPUs that no team has: whoever may borrow gets them from the cohort."""
    given = {model: sum(team.gpus.get(model, 0) for team in teams) for model in shared}
    flavors = [_quota(model, fleet.gpus[model] - given[model]) for model in shared if fleet.gpus[model] > given[model]]
    return {"resourceGroups": [{"coveredResources": [GPUS], "flavors": flavors}]} if flavors else {}


def _of(team: Team, fleet: Fleet, names: Names, *, scale: bool) -> list[Object]:
    label = {names.team: team.name}
    security = {
        f"pod-security.kubernetes.io/{mode}{part}": value
        for mode in ("enforce", "audit", "warn")
        for part, value in (("", "restricted"), ("-version", "latest"))
    }
    return [
        _object("v1", "Namespace", team.name, labels={**label, **security}),
        *(_dedicated_flavor(team, model, fleet, names) for model in team.gpus if team.dedicated),
        _object(API_VERSION, "ClusterQueue", team.name, labels=label, spec=_cluster_queue(team, label, scale=scale)),
        _object(API_VERSION, "LocalQueue", LOCAL_QUEUE, team, spec={"clusterQueue": team.name}),
        _object(
            "v1",
            "LimitRange",
            LIMITS,
            team,
            spec={"limits": [{"type": "Container", "defaultRequest": DEFAULT_REQUESTS}]},
        ),
        _object(
            "v1",
            "ResourceQuota",
            LIMITS,
            team,
            spec={"hard": {key: quantity(most) for key, most in MOST_OBJECTS.items()}},
        ),
        _object(
            f"{RBAC}/v1",
            "RoleBinding",
            MEMBERS,
            team,
            roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": TEAM_MEMBER_ROLE},
            subjects=[_subject(member) for member in team.members],
        ),
    ]


def _cluster_queue(team: Team, label: Mapping[str, str], *, scale: bool) -> Object:
    limits = {"borrowingLimit": "0"} if team.dedicated or not team.borrow else {}
    if team.dedicated:
        limits["lendingLimit"] = "0"
    flavors = [_quota(flavor(team, model), count, **limits) for model, count in team.gpus.items()]
    return {
        "cohortName": COHORT,
        "namespaceSelector": {"matchLabels": dict(label)},
        "queueingStrategy": "BestEffortFIFO",
        "resourceGroups": [{"coveredResources": [GPUS], "flavors": flavors}],
        "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
        # A borrower stops for the owner. Stopping others' jobs in order to borrow is not for fair sharing (Kueue).
        "preemption": {
            "reclaimWithinCohort": "Any",
            "borrowWithinCohort": {"policy": "Never"},
            "withinClusterQueue": "LowerPriority",
        },
        "fairSharing": {"weight": quantity(team.weight)},
        "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}, *([{"name": POWER_CHECK}] if scale else [])]},
    }


def _quota(name: str, count: int, **limits: str) -> Object:
    return {"name": name, "resources": [{"name": GPUS, "nominalQuota": quantity(count), **limits}]}


def _flavor(name: str, node_labels: Mapping[str, str], labels: Mapping[str, str] | None = None, **more: Any) -> Object:
    spec = {"nodeLabels": dict(node_labels), "topologyName": TOPOLOGY, **more}
    return _object(API_VERSION, "ResourceFlavor", name, labels=labels, spec=spec)


def _size(fleet: Fleet, model: str, names: Names) -> Object:
    """A label with the GPUs of each node: members of teams may not read nodes, and ask for whole ones."""
    sizes = fleet.sizes[model]
    return {names.gpus_per_node: str(min(sizes)) if len(sizes) == 1 else "mixed"}


def _dedicated_flavor(team: Team, model: str, fleet: Fleet, names: Names) -> Object:
    """Nodes with the team's taint; Kueue gives its pods the toleration."""
    taint = {"key": names.team, "value": team.name, "effect": "NoSchedule"}
    return _flavor(
        flavor(team, model),
        {READY_LABEL: "true", GPU_LABEL: model, TEAM_LABEL: team.name},
        {names.team: team.name, **_size(fleet, model, names)},
        nodeTaints=[taint],
        tolerations=[{**taint, "operator": "Equal"}],
    )


def _subject(member: str) -> Object:
    kind = "Group" if member.startswith(GROUP) else "User"
    return {"apiGroup": RBAC, "kind": kind, "name": member.removeprefix(GROUP)}


def _object(
    version: str,
    kind: str,
    name: str,
    team: Team | None = None,
    labels: Mapping[str, str] | None = None,
    **content: Any,
) -> Object:
    metadata: Object = {"name": name, "labels": {**MANAGED_BY, **(labels or {})}}
    if team is not None:
        metadata["namespace"] = team.name
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}
