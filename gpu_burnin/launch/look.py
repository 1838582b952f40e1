"""What the cluster says to a job before anything is made: rights, the team, its offer, the image, the name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import quote

from gpu_burnin.admission.client import METADATA_ONLY, ApiError, KubeApi, NotFound, Object
from gpu_burnin.api.jobs import GPUS, JOBSET_API, JOBSET_GROUP, kueue_path
from gpu_burnin.api.names import GPU_LABEL, LOCAL_QUEUE, Names
from gpu_burnin.api.remedies import QUEUES
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.offer import Offer, flavors_of, offer_of
from gpu_burnin.launch.pod_options import CONFIG_MAP, SECRET, Mount, Variables

_ACCESS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_DEFAULTS = "muster-launch"
# So many teams are asked for, where somebody has no right in the one that was named.
_MOST_TEAMS = 50
_MANY, _READ_MANY = "ReadWriteMany", "ReadOnlyMany"
_KINDS = {SECRET: "Secret", CONFIG_MAP: "ConfigMap"}


def job_sets_path(team: str, name: str = "") -> str:
    """Where a team's JobSets are, or one of them."""
    return _in(f"{JOBSET_API}/namespaces/{quote(team, safe='')}/jobsets", name)


def core_path(team: str, kind: str, name: str = "") -> str:
    """Where objects of the core group are in a team's namespace."""
    return _in(f"/api/v1/namespaces/{quote(team, safe='')}/{kind}", name)


def _in(place: str, name: str) -> str:
    return f"{place}/{quote(name, safe='')}" if name else place


def check_rights(api: KubeApi, team: str) -> None:
    """Refuse who may not make jobs in the team's namespace. Raises LaunchError and ApiError."""
    if _may_launch(api, team):
        return
    others = [name for name in _teams(api) if name != team and _may_launch(api, name)]
    there = f"you may in: {', '.join(others)}" if others else "ask who keeps fleet_teams to make you a member"
    raise LaunchError(
        f"you may not make jobs in the namespace {team}: there is no such team, or you are none of it; {there}"
    )


def _may_launch(api: KubeApi, team: str) -> bool:
    wanted = ((JOBSET_GROUP, "jobsets"), ("", "configmaps"))
    return all(_may(api, team, group, resource) for group, resource in wanted)


def _may(api: KubeApi, team: str, group: str, resource: str) -> bool:
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": {"namespace": team, "verb": "create", "group": group, "resource": resource},
        },
    }
    answer = api.create(_ACCESS, review, f"ask whether {resource} may be made in {team}")
    return bool((answer.get("status") or {}).get("allowed"))


def _teams(api: KubeApi) -> Iterator[str]:
    """Names of teams, as far as they may be read."""
    try:
        for number, queue in enumerate(api.items(kueue_path("clusterqueues"), "list the teams' queues")):
            if number >= _MOST_TEAMS:
                return
            yield queue["metadata"]["name"]
    except ApiError:
        return


def look_at_offer(api: KubeApi, team: str, names: Names) -> Offer:
    """What the team can have. Raises LaunchError where the namespace has no queue, and ApiError."""
    local = api.find(kueue_path("localqueues", team, LOCAL_QUEUE), f"read the queue of {team}")
    if local is None:
        known = ", ".join(_teams(api))
        there = f"; the teams: {known}" if known else "; it has to be in fleet_teams"
        raise LaunchError(f"the namespace {team} is no team's: it has no queue{there}")
    name = str(local["spec"]["clusterQueue"])
    peers = list(api.items(kueue_path("clusterqueues"), "list the teams' queues"))
    queue = next((one for one in peers if one["metadata"]["name"] == name), None)
    if queue is None:
        raise LaunchError(f"the queue of {team} leads to the ClusterQueue {name}, which is not there; {QUEUES}")
    flavors = [
        flavor
        for one in flavors_of(queue)
        if (flavor := api.find(kueue_path("resourceflavors", name=one), f"read the flavor {one}")) is not None
    ]
    cohort_name = queue["spec"].get("cohortName")
    cohort = (
        api.find(kueue_path("cohorts", name=cohort_name), f"read the cohort {cohort_name}") if cohort_name else None
    )
    return offer_of(queue, flavors, _levels(api, flavors), peers, cohort, names)


def _levels(api: KubeApi, flavors: list[Object]) -> list[str]:
    names = {flavor["spec"].get("topologyName") for flavor in flavors} - {None}
    if len(names) != 1:
        return []
    [name] = names
    topology = api.find(kueue_path("topologies", name=str(name)), f"read the topology {name}")
    return [level["nodeLabel"] for level in topology["spec"]["levels"]] if topology else []


def default_image(api: KubeApi, team: str) -> str | None:
    """The image of the team's ConfigMap muster-launch, None where it has none. Raises ApiError."""
    found = api.find(core_path(team, "configmaps", _DEFAULTS), f"read the ConfigMap {_DEFAULTS} of {team}")
    return ((found or {}).get("data") or {}).get("image")


def gpus_of_a_node(api: KubeApi, offer: Offer, model: str) -> int:
    """GPUs that the nodes of a model have: by its flavor, else by the nodes, which members may not read.

    Raises LaunchError where that cannot be told, or differs.
    """
    if model in offer.sizes:
        return offer.sizes[model]
    try:
        nodes = list(api.items("/api/v1/nodes", "list nodes", labelSelector=f"{GPU_LABEL}={model}"))
    except ApiError as error:
        if error.status != 403:
            raise
        nodes = []
    figures = {int(of[GPUS]) for node in nodes if GPUS in (of := node["status"].get("allocatable") or {})}
    figures -= {0}
    if len(figures) == 1:
        return figures.pop()
    why = f"they differ: {', '.join(map(str, sorted(figures)))}" if figures else "none can be read"
    raise LaunchError(f"the GPUs of a node of {model} cannot be told ({why}); give gpus_per_node (--gpus-per-node)")


def check_priority(api: KubeApi, priority: str | None) -> None:
    """Refuse a priority that is not there. Raises LaunchError and ApiError."""
    if priority is None:
        return
    path = kueue_path("workloadpriorityclasses")
    known = [one["metadata"]["name"] for one in api.items(path, "list the priorities")]
    if priority not in known:
        there = f"those that there are: {', '.join(known)}" if known else "there are none: leave it out"
        raise LaunchError(f"there is no priority {priority!r}; {there}")


def check_claims(api: KubeApi, team: str, mounts: Sequence[Mount], nodes: int) -> None:
    """Refuse a claim that is not there, or that so many pods cannot have. Raises LaunchError and ApiError."""
    place = core_path(team, "persistentvolumeclaims")
    for mount in mounts:
        claim = api.find(core_path(team, "persistentvolumeclaims", mount.claim), f"read the claim {mount.claim}")
        if claim is None:
            known = ", ".join(one["metadata"]["name"] for one in api.items(place, f"list the claims of {team}"))
            there = f"those that there are: {known}" if known else "it has none: make one with kubectl"
            raise LaunchError(f"{team} has no PersistentVolumeClaim {mount.claim}; {there}")
        if why := _unusable(claim, mount, nodes):
            raise LaunchError(f"the PersistentVolumeClaim {mount.claim} of {team} {why}")


def _unusable(claim: Object, mount: Mount, nodes: int) -> str:
    """Why pods would wait for a claim for ever; "" where they would not."""
    spec, status = claim["spec"], claim.get("status") or {}
    # A volume may have more modes than it was claimed with.
    modes = set(status.get("accessModes") or spec.get("accessModes") or ())
    if claim["metadata"].get("deletionTimestamp"):
        return "is being deleted; name another one"
    if status.get("phase") == "Lost":
        return "has lost its volume; name another one"
    if spec.get("volumeMode") == "Block":
        return "is a raw device, and has no files; name one with volumeMode Filesystem"
    if modes == {_READ_MANY} and not mount.read_only:
        return f"can only be read; write {mount.claim}:{mount.path}:ro"
    if nodes > 1 and not modes & {_MANY, *([_READ_MANY] if mount.read_only else [])}:
        wanted = f"{_MANY} or {_READ_MANY}" if mount.read_only else _MANY
        return f"is for one node ({', '.join(sorted(modes))}), and the job has {nodes:,}; name one that is {wanted}"
    return ""


def find_variables(api: KubeApi, team: str, variables: Sequence[Variables]) -> tuple[Variables, ...]:
    """Secrets and ConfigMaps with their kind. Their values are not read. Raises LaunchError and ApiError."""
    found = []
    for one in variables:
        kinds = [one.kind] if one.kind else list(_KINDS)
        there = [kind for kind in kinds if _is_there(api, team, kind, one.name)]
        if len(there) > 1:
            raise LaunchError(
                f"{team} has a Secret and a ConfigMap {one.name}; write {SECRET}/{one.name} or {CONFIG_MAP}/{one.name}"
            )
        if not there:
            what = " or ".join(_KINDS[kind] for kind in kinds)
            raise LaunchError(f"{team} has no {what} {one.name}; make it with kubectl, or correct the name")
        found.append(replace(one, kind=there[0]))
    return tuple(found)


def _is_there(api: KubeApi, team: str, kind: str, name: str) -> bool:
    try:
        api.get(core_path(team, f"{kind}s", name), f"look for the {_KINDS[kind]} {name}", answer=METADATA_ONLY)
    except NotFound:
        return False
    return True


def check_free(api: KubeApi, team: str, name: str) -> None:
    """Refuse a name that a job or a ConfigMap has. Raises LaunchError and ApiError."""
    there = (
        ("job", job_sets_path(team, name)),
        ("ConfigMap", core_path(team, "configmaps", name)),
    )
    for what, path in there:
        if api.find(path, f"look for {name} in {team}") is not None:
            raise LaunchError(
                f"{team} has a {what} named {name} already; give another name, or delete it: "
                f"kubectl -n {team} delete {'jobset' if what == 'job' else 'configmap'} {name}"
            )
