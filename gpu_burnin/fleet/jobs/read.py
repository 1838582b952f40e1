"""What whoever asks may read of teams and their jobs: what he may not is said, and hides nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from gpu_burnin.admission.client import NODES, ApiError, KubeApi, NotFound, admissions_path
from gpu_burnin.api.jobs import API, kueue_path
from gpu_burnin.api.kueue import Object, Workload
from gpu_burnin.api.names import Names
from gpu_burnin.api.waits import Surroundings
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.jobs.count import Facts, dedicated_wanted, flavors_of, surroundings, teams_of
from gpu_burnin.fleet.jobs.teams import Teams

_FORBIDDEN = 403


@dataclass
class Reader:
    """Lists of an API server, as one user. `unread` gathers what he may not read, each in a sentence.

    `partial`: not of all namespaces. `namespace` is his own: where he may not read the objects of all, those of this
    one are read.
    """

    api: KubeApi
    namespace: str = ""
    unread: list[str] = field(default_factory=list)
    partial: bool = False

    def all(self, path: str, what: str, without: str) -> list[Object] | None:
        """All of them; None where he may not. `without` says what is not known then. Raises ApiError."""
        try:
            return list(self.api.items(path, f"list the {what}"))
        except NotFound:
            return []
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            self.unread.append(f"{what}: {self.api.server} does not let you list them; {without}")
            return None

    def one(self, path: str) -> Object | None:
        """One of them; None where there is none, or none that he may read. Raises ApiError."""
        try:
            return self.api.find(path)
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            return None

    def of_namespaces(self, plural: str, what: str) -> list[Object] | None:
        """All of them, or those of his own namespace; None where he may read neither. Raises ApiError."""
        try:
            return list(self.api.items(kueue_path(plural), f"list the {what}"))
        except NotFound:
            return []
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
        self.partial = True
        if not self.namespace:
            self.unread.append(f"{what}: you may not list those of all namespaces; give --team TEAM for those of one")
            return None
        without = f"not even those of namespace {self.namespace}, so that its jobs are not known"
        found = self.all(kueue_path(plural, self.namespace), what, without)
        if found is not None:
            self.unread.append(f"{what} of other namespaces than {self.namespace}: their members alone may list them")
        return found


def has_kueue(api: KubeApi) -> bool:
    """Whether the cluster knows Kueue's objects. Raises ApiError."""
    try:
        api.get(API, "ask for Kueue's API")
    except NotFound:
        return False
    return True


def read_teams(api: KubeApi, names: Names, namespace: str, now: datetime) -> Teams:
    """The teams as this user may see them. Raises ApiError."""
    if not has_kueue(api):
        return Teams((), None, now, api.server, kueue=False)
    return teams_of(facts_of(api, names, namespace), names, now, api.server)


def facts_of(api: KubeApi, names: Names, namespace: str) -> Facts:
    """The objects that teams are counted from. Raises ApiError, also when he may see no queue at all."""
    reader = Reader(api, namespace)
    queues = reader.all(kueue_path("clusterqueues"), "ClusterQueues", "quotas and what is borrowed are not known")
    local = reader.of_namespaces("localqueues", "LocalQueues")
    if queues is None and local is None:
        raise GpuBurninError(f"{api.server}: you may see no queue: {'; '.join(reader.unread)}")
    flavors = reader.all(kueue_path("resourceflavors"), "ResourceFlavors", "models are by the names of flavors")
    cohorts = reader.all(kueue_path("cohorts"), "Cohorts", "GPUs that are in no team's quota are not known")
    workloads = reader.of_namespaces("workloads", "Workloads")
    nodes = reader.all(NODES, "Nodes", "verified nodes that are free are not known")
    admissions = reader.all(admissions_path(names), "NodeAdmissions", "the nodes that teams were given are not known")
    only = namespace if reader.partial else ""
    return Facts(
        queues, local, flavors, workloads, nodes, admissions, tuple(dict.fromkeys(reader.unread)), only, cohorts
    )


def read_dedicated_wanted(api: KubeApi) -> dict[tuple[str, str], int]:
    """GPUs that teams should have on nodes of their own, by team and model; none where that may not be read.

    Raises ApiError.
    """
    reader = Reader(api)
    flavors = flavors_of(reader.all(kueue_path("resourceflavors"), "ResourceFlavors", "") or ())
    if not any(one.team for one in flavors.values()):
        return {}
    return dedicated_wanted(reader.all(kueue_path("clusterqueues"), "ClusterQueues", "") or (), flavors)


def surroundings_of(api: KubeApi, job: Workload) -> Surroundings:
    """What one job is told of the fleet, as far as this user may read it. Raises ApiError."""
    reader = Reader(api, job.namespace)
    queue = reader.one(kueue_path("localqueues", job.namespace, job.queue)) if job.queue else None
    name = str(((queue or {}).get("spec") or {}).get("clusterQueue") or job.namespace)
    cluster = reader.one(kueue_path("clusterqueues", "", name))
    flavors = reader.all(kueue_path("resourceflavors"), "ResourceFlavors", "")
    # All nodes are much to read: only where the size of a place is what counts.
    close = any(request.near for request in job.requests) and job.waits
    nodes = reader.all(NODES, "Nodes", "") if close else []
    facts = Facts([cluster] if cluster else [], [queue] if queue else [], flavors, None, nodes)
    found = surroundings(facts, flavors_of(facts.flavors or ()))
    return found.get(name, found[""])
