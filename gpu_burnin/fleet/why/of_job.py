"""The story of a job: why it waits for its nodes, why its pods do not run on them, or why it died."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.api.jobs import QUEUE_NAME, START_AGAIN, kueue_path
from gpu_burnin.api.kueue import Workload, workload
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import NodeAdmission, State
from gpu_burnin.api.waits import Wait, Why, why_waits
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.jobs import entries
from gpu_burnin.fleet.jobs.found import Job, whole
from gpu_burnin.fleet.jobs.pods import why_pods_wait
from gpu_burnin.fleet.jobs.read import surroundings_of
from gpu_burnin.fleet.why.entry import Entry, What
from gpu_burnin.fleet.why.gather import (
    FORBIDDEN,
    Asked,
    Gathered,
    add_files,
    add_node,
    in_namespace,
    put_together,
    record_of,
)
from gpu_burnin.fleet.why.of_admission import of_admission, out_of_service
from gpu_burnin.fleet.why.of_cluster import (
    Object,
    end_of_events,
    end_of_job,
    key_of,
    node_of_events,
    of_event,
    of_pod,
    printable,
    time_of_event,
)
from gpu_burnin.fleet.why.of_fabric import RUN, of_ledger, of_run
from gpu_burnin.fleet.why.told import Files, Log, Story, Waits
from gpu_burnin.system.clock import NEVER

# Nodes that a wait is about: of each all is read.
_MOST_ASKED = 8
# The other nodes of a gang: what the ledger says of each, as far as it is of the hours around its end.
_MOST_NODES, _AROUND = 256, timedelta(hours=2)
_MOST_LINES, _MOST_BYTES, _MOST_LETTERS = 20, 65_536, 400
_USUAL = frozenset(
    {"SuccessfulCreate", "SuccessfulDelete", "Scheduled", "Pulling", "Pulled", "Created", "Started", "Suspended"}
    | {"Resumed", "SuspendedJobs", "ResumeJobs", "CreatedWorkload", "Killing", "Completed", "BackOff", "Stopped"}
)
# What begins another attempt: Kueue's admission, and JobSet's own restarts.
_STARTS = ("Admitted", "RestartJobSet")


def story_of_job(
    api: KubeApi, names: Names, kind: str, item: Object, files: Files, since: datetime, now: datetime
) -> Story:
    """The story of a JobSet or Job. Raises ApiError."""
    job = whole(api, kind, item)
    job = replace(job, workloads=(*job.workloads, *_preemptors(api, job)))
    found = Gathered(events=[*job.events], missing=[*job.unread])
    found.entries += entries.of_job(job)
    ends = _add_pods(found, job)
    ended = end_of_job(item)
    wait = None if ended else _wait(api, job, now)
    effect = entries.of_wait(job, wait) if wait is not None else None if _well(item) else _end(job, ends)
    if effect is not None and effect not in found.entries:
        found.entries.append(effect)
    found.entries = [replace(one, quiet=True) if _follows(one, effect) else one for one in found.entries]
    node = effect.node if effect is not None else ""
    gang = _add_nodes(found, api, names, job, wait, effect)
    pods = frozenset({*entries.pods_by_key(job), *(one.pod for one in ends)})
    add_files(found, api, node, pods, files, since, now)
    fabric = () if wait is not None or _well(item) else _fabric(found, api, names, job, files, effect, now)
    asked = Asked(job.key, "job", job.namespace, job.name, ended)
    gone = len({one.pod for one in ends} - {*entries.pods_by_key(job)})
    told = put_together(asked, node, _stands(job, wait, ended, gone), found, effect, api, now, since, gang=gang)
    waits = Waits(str(wait.why), wait.sentence, wait.never, wait.nodes) if wait is not None else None
    log, unread = _log(api, job, effect)
    return replace(told, waits=waits, log=log, fabric=fabric, missing=(*told.missing, *unread))


def _follows(entry: Entry, effect: Entry | None) -> bool:
    """Whether it is the end of one of many pods that ended because their job did."""
    return entry is not effect and entry.what is What.ENDED and entries.is_consequence(entry)


def _preemptors(api: KubeApi, job: Job) -> list[Workload]:
    """The Workloads of the team for which it had to leave, where whoever asks may read them."""
    team = entries.preemptor_team(job.workload) if job.workload is not None else ""
    if team in ("", job.namespace):
        return []
    try:
        return [workload(item) for item in api.items(kueue_path("workloads", team), "list the Workloads")]
    except ApiError as error:
        if error.status not in (FORBIDDEN, 404):
            raise
        return []


def _add_pods(found: Gathered, job: Job) -> list[Entry]:
    """The entries of its pods and of all events; the ends of pods."""
    present = entries.pods_by_key(job)
    for pod in job.pods:
        found.entries += of_pod(pod)
    by_pod: dict[str, list[Object]] = {}
    known = [*found.entries]
    for event in job.events:
        about = event.get("involvedObject") or {}
        if about.get("kind") == "Workload":
            found.entries += entries.of_workload_event(event, job.workloads, known)
            continue
        key = f"{about.get('namespace', '')}/{about.get('name', '')}" if about.get("kind") == "Pod" else ""
        by_pod.setdefault(key, []).append(event)
    ends = [one for one in found.entries if one.what is What.ENDED]
    for key, events in by_pod.items():
        node = str(((present.get(key) or {}).get("spec") or {}).get("nodeName") or node_of_events(events))
        told = [_folded(entry, event) for event in events for entry in of_event(event, node)]
        found.entries += told
        if key and key not in present and (end := end_of_events(told, key)) is not None:
            ends.append(end)
            found.entries.append(end)
    gone = [*entries.ends_of_gone(job, present, (one.pod for one in ends))]
    found.entries += gone
    return [*ends, *gone]


def _folded(entry: Entry, event: Object) -> Entry:
    """What each pod of a gang goes through is one line for people."""
    usual = entry.what is What.TOLD and event.get("reason") in _USUAL and event.get("type") != "Warning"
    return replace(entry, routine=True) if usual else entry


def _wait(api: KubeApi, job: Job, now: datetime) -> Wait | None:
    """Why it has no nodes, or why its pods do not run on them; None where they do."""
    if job.workload is None:
        return _unmanaged(job)
    wait = why_waits(job.workload, surroundings_of(api, job.workload), now)
    if wait is not None:
        return wait
    admitted = job.workload.conditions.get("Admitted")
    since = admitted.at if admitted is not None else NEVER
    if any(_ended_badly(pod) for pod in job.pods):
        return None
    return why_pods_wait(job.pods, job.workload.pods, job.events, since)


def _unmanaged(job: Job) -> Wait | None:
    """Of a job that Kueue has made no Workload for."""
    made = min((at for event in job.events if (at := time_of_event(event))), default=NEVER)
    if not (job.item.get("spec") or {}).get("suspend"):
        return why_pods_wait(job.pods, 0, job.events, made)
    queue = (job.item["metadata"].get("labels") or {}).get(QUEUE_NAME)
    if queue:
        return Wait(Why.NEW, f"it names queue {queue}, and Kueue has made no Workload for it: is Kueue up?", made)
    return Wait(Why.NO_QUEUE, "it is suspended and names no queue: nobody will start it", made, never=True)


def _end(job: Job, ends: Sequence[Entry]) -> Entry | None:
    """The first end of the last attempt in which a pod ended: the others often follow it."""
    starts = sorted(
        at
        for event in job.events
        if str(event.get("reason")).startswith(_STARTS) and (at := time_of_event(event)) is not None
    )
    attempts: dict[int, list[Entry]] = {}
    for one in ends:
        attempts.setdefault(bisect_right(starts, one.at), []).append(one)
    if attempts:
        return min(attempts[max(attempts)], key=lambda one: (entries.is_consequence(one), one.at))
    return entries.ended_at(job)


def _add_nodes(
    found: Gathered, api: KubeApi, names: Names, job: Job, wait: Wait | None, effect: Entry | None
) -> frozenset[str]:
    """What is known of the nodes that may explain it; those of them that are of the gang."""
    if effect is None:
        return frozenset()
    if wait is not None:
        return frozenset(node for node in wait.nodes[:_MOST_ASKED] if _is_out(add_node(found, api, names, node)))
    if effect.node:
        add_node(found, api, names, effect.node)
    others = [node for node in entries.nodes_of(job) if node != effect.node]
    for node in others[:_MOST_NODES]:
        try:
            record = record_of(found, api, names, node)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            break  # said of its own node already
        found.entries += (one for one in of_admission(record) if _tells(one, effect.at)) if record else ()
    if len(others) > _MOST_NODES:
        found.missing.append(f"the ledger of {len(others) - _MOST_NODES:,} more of its nodes: `muster status` has them")
    return frozenset(others)


def _fabric(
    found: Gathered, api: KubeApi, names: Names, job: Job, files: Files, effect: Entry | None, now: datetime
) -> tuple[str, ...]:
    """What tests between nodes found of its nodes, by the ledger and by the newest run of the controller's."""
    nodes, ended = entries.nodes_of(job), effect.at if effect is not None else None
    records: list[NodeAdmission] = []
    try:
        records += (one for node in nodes[:_MOST_NODES] if (one := record_of(found, api, names, node)) is not None)
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        found.missing.append("what tests between nodes found of its nodes: your rights show no NodeAdmissions")
    told = of_ledger(records, ended, now)
    if files.state is not None:
        try:
            told += of_run(files.state / RUN, frozenset(nodes), ended, now)
        except GpuBurninError as error:
            found.missing.append(str(error))
    return tuple(told)


def _is_out(record: NodeAdmission | None) -> bool:
    return record is not None and record.status.state != State.READY and out_of_service(record) is not None


def _tells(entry: Entry, at: datetime) -> bool:
    return entry.what is not What.TOLD and abs(entry.at - at) <= _AROUND


def _stands(job: Job, wait: Wait | None, ended: str, gone: int) -> str:
    phases = sorted(str((pod.get("status") or {}).get("phase") or "unknown").lower() for pod in job.pods)
    counts = [f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases)] + [f"{gone:,} gone"] * bool(gone)
    going = "is failing" if entries.is_failing(job) else "runs" if "running" in phases else ""
    waits = "will not start" if wait is not None and wait.never else "waits"
    state = ended or (waits if wait is not None else going)
    size = ""
    if job.workload is not None:
        pods, gpus = job.workload.pods, job.workload.gpus
        size = f"{pods:,} pod{'s' * (pods != 1)} and {gpus:,} GPU{'s' * (gpus != 1)}, queue {job.workload.queue or '-'}"
    there = f"pods: {', '.join(counts) or 'none is known'}"
    return f"{job.key}: {'; '.join(filter(None, (state, entries.restarts_of(job), size, there)))}"


def _well(item: Object) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or []
    return any(one.get("type") in ("Complete", "Completed") and one.get("status") == "True" for one in conditions)


def _ended_badly(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") == "Failed"


def _log(api: KubeApi, job: Job, effect: Entry | None) -> tuple[Log | None, Iterable[str]]:
    """The last lines of the rank that ended first, where it ended badly and its node's kubelet can be asked."""
    pod = entries.pods_by_key(job).get(effect.pod) if effect is not None and effect.pod else None
    container = _failed_container(pod) if pod is not None else ""
    if pod is None or not container:
        return None, ()
    name = str(pod["metadata"]["name"])
    options = {"container": container, "tailLines": _MOST_LINES, "limitBytes": _MOST_BYTES}
    place = f"{in_namespace(job.namespace, 'pods')}/{quote(name, safe='')}/log?{urlencode(options)}"
    try:
        text = api.text(place, f"read the log of {name}")
    except ApiError as error:
        return None, (f"the log of {key_of(pod)}: {error}",)
    lines = [printable(line)[:_MOST_LETTERS] for line in text.splitlines()[-_MOST_LINES:]]
    return (Log(key_of(pod), container, tuple(lines)) if lines else None), ()


def _failed_container(pod: Mapping[str, object]) -> str:
    """The container that ended with an error, as far as that is not its asking for a new start."""
    status = pod.get("status")
    for one in (status.get("containerStatuses") or []) if isinstance(status, Mapping) else []:
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode") not in (None, 0, START_AGAIN):
            return str(one.get("name"))
    return ""
