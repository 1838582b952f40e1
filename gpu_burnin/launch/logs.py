"""Logs of a job's pods: streamed line by line, and gone on with where the connection broke."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from gpu_burnin.admission.client import ApiError, KubeApi, NotFound, Object
from gpu_burnin.launch.look import core_path
from gpu_burnin.launch.objects import ATTEMPT_LABEL, CONTAINER, INDEX_LABEL, JOBSET_LABEL

# Between two looks at something that has not come.
_AGAIN_S = 1.0
# A pod's log that cannot be read for so many looks is given up.
_MOST_BREAKS = 30


@dataclass(frozen=True)
class Pod:
    """A pod of a job. `reason` says in a few words why it ended or what it waits for, "" where it does neither."""

    name: str
    index: int
    attempt: int
    node: str
    phase: str
    started: bool
    exit_code: int | None = None
    reason: str = ""
    made: str = ""

    @property
    def ended(self) -> bool:
        """Whether its log grows no more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def last_words(self) -> str:
        """The last line of why it ended."""
        return self.reason.splitlines()[-1] if self.reason else "it says no more"


def pod_of(found: Object) -> Pod:
    """A pod as the API has it."""
    metadata, status = found["metadata"], found.get("status") or {}
    labels = metadata.get("labels") or {}
    state: dict[str, Any] = {}
    for container in status.get("containerStatuses") or []:
        if container["name"] == CONTAINER:
            state = container.get("state") or {}
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    reason = (
        (ended or {}).get("message") or status.get("message") or waiting.get("message") or waiting.get("reason") or ""
    )
    return Pod(
        name=metadata["name"],
        index=int(labels.get(INDEX_LABEL, 0)),
        attempt=int(labels.get(ATTEMPT_LABEL, 0)),
        node=(found.get("spec") or {}).get("nodeName", ""),
        phase=status.get("phase", ""),
        started="running" in state or ended is not None,
        exit_code=None if ended is None else int(ended.get("exitCode", 0)),
        reason=reason.strip(),
        made=metadata.get("creationTimestamp", ""),
    )


def newest_pods(api: KubeApi, team: str, job: str, index: int | None = None, *, cached: bool = False) -> list[Pod]:
    """The newest pod of each node of a job, by node; of one node where `index` is given.

    `cached`: from the API server's memory, for those who ask again and again; it may lag behind. Raises ApiError.
    """
    selector = f"{JOBSET_LABEL}={job}" + ("" if index is None else f",{INDEX_LABEL}={index}")
    found: dict[int, Pod] = {}
    options = {"labelSelector": selector, **({"resourceVersion": "0"} if cached else {})}
    for one in api.items(core_path(team, "pods"), f"list the pods of {job}", **options):
        pod = pod_of(one)
        other = found.get(pod.index)
        if other is None or (other.attempt, other.made) <= (pod.attempt, pod.made):
            found[pod.index] = pod
    return [found[index] for index in sorted(found)]


def lines_of(
    api: KubeApi,
    team: str,
    pod: str,
    *,
    follow: bool,
    tail: int | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> Iterator[tuple[str, str]]:
    """Lines of a pod's log, each with its time (RFC 3339), each once; nothing is kept of what was given.

    With `follow` it goes on until the container ends, past connections that break. Raises ApiError.
    """
    path = core_path(team, "pods", pod)
    newest, breaks, first = "", 0, True
    while True:
        options = {"container": CONTAINER, "timestamps": "true", **({"follow": "true"} if follow else {})}
        if newest:
            options["sinceTime"] = f"{newest[:19]}Z"
        elif tail is not None and first:
            options["tailLines"] = str(tail)
        error: ApiError | None = None
        resumed = newest
        try:
            for line in api.stream(f"{path}/log?{urlencode(options)}", f"read the log of {pod}"):
                moment, _, text = line.decode(errors="replace").partition(" ")
                # sinceTime has whole seconds alone.
                if moment > resumed:
                    newest, breaks = moment, 0
                    yield moment, text
        except NotFound:
            return
        except ApiError as broken:
            error = broken
        first = False
        if not follow and error is None:
            return
        breaks += 1
        if error is not None and (error.status or breaks > _MOST_BREAKS):
            raise error
        now = api.find(path, f"read the pod {pod}")
        if error is None and (now is None or pod_of(now).ended or pod_of(now).exit_code is not None):
            return
        wait(_AGAIN_S)
