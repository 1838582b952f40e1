"""Logs of a job as they are now, node after node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpu_burnin.admission.client import KubeApi, NotFound, Object
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.follow import MOST_FOLLOWED
from gpu_burnin.launch.logs import Pod, lines_of, newest_pods
from gpu_burnin.launch.look import job_sets_path
from gpu_burnin.launch.progress import stand_of, workload_of


def nodes_of(api: KubeApi, team: str, job: str, rank: int | None, *, follow: bool) -> list[int]:
    """The nodes of a job whose logs are asked for, by their numbers. Raises LaunchError and ApiError."""
    found = _job_set(api, team, job)
    try:
        [replicated] = found["spec"]["replicatedJobs"]
        spec = replicated["template"]["spec"]
        nodes = int(spec["completions"])
        [container] = spec["template"]["spec"]["containers"]
        values = {one["name"]: one.get("value") for one in container["env"]}
        processes = int(values["MUSTER_PROCESSES"])
    except (KeyError, ValueError, TypeError) as error:
        raise LaunchError(f"{job} of {team} was not made by muster run; use kubectl logs") from error
    if rank is not None:
        if rank >= nodes * processes:
            raise LaunchError(
                f"{job} has {nodes * processes:,} processes, 0 to {nodes * processes - 1:,}, and no {rank}"
            )
        return [rank // processes]
    if follow and nodes > MOST_FOLLOWED:
        raise LaunchError(f"{job} has {nodes:,} nodes, and {MOST_FOLLOWED} can be followed at once; give --rank")
    return list(range(nodes))


def show_logs(
    api: KubeApi,
    team: str,
    job: str,
    indexes: Sequence[int],
    show: Callable[[Pod, str, str], None],
    tell: Callable[[str], None],
    *,
    tail: int | None = None,
) -> bool:
    """Show the logs as they are now; whether there was one. Raises LaunchError and ApiError."""
    pods = newest_pods(api, team, job, indexes[0] if len(indexes) == 1 else None)
    there = [pod for pod in pods if pod.index in indexes]
    for pod in there:
        if pod.started:
            for moment, line in lines_of(api, team, pod.name, follow=False, tail=tail):
                show(pod, moment, line)
        if pod.exit_code:
            tell(f"{pod.name} on {pod.node or 'no node'} ended with exit code {pod.exit_code}: {pod.last_words}")
        elif not pod.started:
            tell(f"{pod.name} has not started: {pod.reason or pod.phase or 'it waits'}")
    if not there:
        found = _job_set(api, team, job)
        tell(f"{job} has no pods now: {stand_of(found, workload_of(api, team, found)).told}")
    return any(pod.started for pod in there)


def _job_set(api: KubeApi, team: str, job: str) -> Object:
    try:
        return api.get(job_sets_path(team, job), f"read the job {job} of {team}")
    except NotFound as error:
        raise LaunchError(f"{team} has no job {job}; the jobs: kubectl -n {team} get jobsets") from error
