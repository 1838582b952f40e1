"""A job with all that the API knows of it: JobSet, Jobs, Workload, pods and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import quote

from gpu_burnin.admission.client import ApiError, KubeApi, NotFound
from gpu_burnin.api import kueue
from gpu_burnin.api.jobs import JOBSET_API, kueue_path
from gpu_burnin.api.kueue import Object, Workload
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.why.of_cluster import pods_of_events

JOBS = "/apis/batch/v1"
JOBSET_NAME, JOB_NAME = "jobset.sigs.k8s.io/jobset-name", "job-name"
_FORBIDDEN = 403


@dataclass(frozen=True)
class Job:
    """`item` is the JobSet or Job that is asked for, `jobs` the Jobs of a JobSet, or itself.

    `workload` is None where Kueue has none for it, `workloads` are all of the namespace. `events` are those of all of
    them and of their pods, also of pods that are gone. `unread` says what may not be read.
    """

    kind: str
    item: Object
    jobs: tuple[Object, ...] = ()
    workload: Workload | None = None
    pods: tuple[Object, ...] = ()
    events: tuple[Object, ...] = ()
    unread: tuple[str, ...] = ()
    workloads: tuple[Workload, ...] = ()

    @property
    def namespace(self) -> str:
        """The namespace."""
        return str(self.item["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """The name."""
        return str(self.item["metadata"]["name"])

    @property
    def key(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"


def find(api: KubeApi, namespace: str, name: str, own: str = "") -> list[tuple[str, Object]]:
    """The JobSets and Jobs of a name, each with its kind: in a namespace, or in all that whoever asks may read.

    `own` is the namespace that is read where he may not list those of all. Raises ApiError.
    """
    found: list[tuple[str, Object]] = []
    for base, plural, kind in ((JOBSET_API, "jobsets", "JobSet"), (JOBS, "jobs", "Job")):
        found += ((kind, item) for item in _named(api, base, plural, namespace, name, own))
    return found


def whole(api: KubeApi, kind: str, item: Object) -> Job:
    """All of one job. What may not be read is said; what cannot be read otherwise raises ApiError."""
    namespace, name = str(item["metadata"]["namespace"]), str(item["metadata"]["name"])
    unread: list[str] = []

    def read(path: str, what: str, **selectors: str) -> list[Object]:
        return _listed(lambda: api.items(path, f"list the {what}", **selectors), f"{what} of {namespace}", unread)

    label = JOBSET_NAME if kind == "JobSet" else JOB_NAME
    selector = f"{label}={name}"
    jobs = [item]
    if kind == "JobSet":
        jobs = read(f"{JOBS}/namespaces/{_q(namespace)}/jobs", "Jobs", labelSelector=selector)
    pods = read(f"/api/v1/namespaces/{_q(namespace)}/pods", "pods", labelSelector=selector)
    workloads = [kueue.workload(one) for one in read(kueue_path("workloads", namespace), "Workloads")]
    mine = next((one for one in workloads if (one.kind, one.name) == (kind, name)), None)
    events = read(f"/api/v1/namespaces/{_q(namespace)}/events", "events")
    own = {("Workload", mine.own_name)} if mine else set()
    own |= {(kind, name), *(("Job", str(job["metadata"]["name"])) for job in jobs)}
    since = str(item["metadata"].get("creationTimestamp") or "")
    return Job(
        kind,
        item,
        tuple(jobs),
        mine,
        tuple(pods),
        tuple(events_of(events, own, (str(pod["metadata"]["name"]) for pod in pods), since)),
        tuple(unread),
        tuple(workloads),
    )


def events_of(events: Iterable[Object], own: set[tuple[str, str]], pods: Iterable[str], since: str) -> list[Object]:
    """The events of these objects and of their pods, the gone ones too: those that the Jobs tell that they have made.

    Those of a job of the same name before it, by `since`, are not its own.
    """
    found = [event for event in events if _about(event) in own and not _before(event, since)]
    of_pods = {("Pod", name) for name in (*pods, *pods_of_events(found))}
    return [*found, *(event for event in events if _about(event) in of_pods)]


def _about(event: Object) -> tuple[str, str]:
    about = event.get("involvedObject") or {}
    return str(about.get("kind") or ""), str(about.get("name") or "")


def _before(event: Object, since: str) -> bool:
    """RFC 3339 times of an API server in UTC to the second sort as texts."""
    last = event.get("lastTimestamp") or event.get("eventTime") or ""
    return bool(last) and str(last)[:19] < since[:19]


def _named(api: KubeApi, base: str, plural: str, namespace: str, name: str, own: str) -> list[Object]:
    def at(place: str) -> list[Object]:
        path = f"{base}/namespaces/{_q(place)}/{plural}" if place else f"{base}/{plural}"
        try:
            return list(api.items(path, f"look for {name} among the {plural}", fieldSelector=f"metadata.name={name}"))
        except NotFound:  # no JobSet in this cluster
            return []

    if namespace:
        return at(namespace)
    try:
        return at("")
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        if not own:
            raise GpuBurninError(
                f"{name}: {api.server} does not let you look for {plural} in all namespaces; give NAMESPACE/{name}"
            ) from error
        return at(own)


def _listed(items: Callable[[], Iterable[Object]], what: str, unread: list[str]) -> list[Object]:
    try:
        return list(items())
    except NotFound:
        return []
    except ApiError as error:
        if error.status != _FORBIDDEN:
            raise
        unread.append(f"{what}: the API server does not let you list them")
        return []


def _q(text: str) -> str:
    return quote(text, safe="")
