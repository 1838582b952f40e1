"""A job followed to its end: how it stands, and the logs of its nodes as they come."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

from gpu_burnin.admission.client import ApiError, KubeApi, NotFound, Object
from gpu_burnin.api.jobs import START_AGAIN
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.logs import Pod, lines_of, newest_pods
from gpu_burnin.launch.look import job_sets_path
from gpu_burnin.launch.outcome import Outcome
from gpu_burnin.launch.progress import Stand, stand_of, workload_of

LOOK_S = 2.0
# So long the API may be silent before it is not known what becomes of the job.
_SILENCE_S = 600.0
# After the job's end, for what its last pods still say.
_DRAIN_S = 15.0
# Of a job of so many nodes each is looked at, of a larger one those that are followed.
_MOST_LOOKED_AT = 32
# Logs of so many nodes are followed at once: each is a connection.
MOST_FOLLOWED = 32


def follow_job(
    api: KubeApi,
    team: str,
    job: str,
    *,
    indexes: Sequence[int] = (0,),
    show: Callable[[Pod, str, str], None] | None = None,
    tell: Callable[[str], None] | None = None,
    look_s: float = LOOK_S,
) -> Outcome:
    """Show how a job stands and the logs of some of its nodes until it ends; no line is kept.

    `show` takes a pod, a time and a line; `tell` a sentence. They are called from several threads, one at a time.
    Raises LaunchError where there is no such job.
    """
    return _Following(api, team, job, indexes, show or _show, tell or _tell).to_the_end(look_s)


def _show(pod: Pod, moment: str, line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _tell(sentence: str) -> None:
    sys.stderr.write(f"muster: {sentence}\n")
    sys.stderr.flush()


class _Following:
    def __init__(
        self,
        api: KubeApi,
        team: str,
        job: str,
        indexes: Sequence[int],
        show: Callable[[Pod, str, str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._api, self._team, self._job, self._indexes = api, team, job, indexes
        self._show, self._tell = show, tell
        self._one = threading.Lock()
        self._readers: dict[str, threading.Thread] = {}
        self._told: set[str] = set()
        self._told_last = ""
        self._lost: list[BaseException] = []

    def to_the_end(self, look_s: float) -> Outcome:
        silent_since: float | None = None
        while True:
            try:
                stand = self._look()
                silent_since = None
            except NotFound as error:
                raise LaunchError(f"{self._team} has no job {self._job}, or it was deleted ({error})") from error
            except ApiError as error:
                if error.status in (401, 403):
                    raise
                now = time.monotonic()
                silent_since = silent_since or now
                if now - silent_since > _SILENCE_S:
                    self._say(f"it is not known what becomes of {self._job}: {error}")
                    return Outcome.UNCLEAR
                stand = Stand("")
            if stand.done is not None:
                for reader in self._readers.values():
                    reader.join(_DRAIN_S)
                self._say(stand.told)
                return Outcome.SUCCEEDED if stand.done else Outcome.FAILED
            time.sleep(look_s)
            if self._lost:
                raise self._lost[0]

    def _look(self) -> Stand:
        job_set = self._api.get(job_sets_path(self._team, self._job), f"read the job {self._job}")
        stand = stand_of(job_set, workload_of(self._api, self._team, job_set))
        if stand.told != self._told_last and stand.done is None:
            self._told_last = stand.told
            self._say(stand.told)
        # Of a job that is over too: its pods may have come and gone since the last look.
        for pod in self._pods(job_set, cached=stand.done is None):
            if pod.started and pod.index in self._indexes and pod.name not in self._readers:
                reader = threading.Thread(target=self._read, args=(pod,), daemon=True)
                self._readers[pod.name] = reader
                reader.start()
            if words := _trouble(pod):
                self._say_once(words)
        return stand

    def _pods(self, job_set: Object, *, cached: bool) -> list[Pod]:
        """All pods of a job that is not large: which of them fails first is in none of the others."""
        [replicated] = job_set["spec"]["replicatedJobs"]
        small = replicated["template"]["spec"]["completions"] <= _MOST_LOOKED_AT
        one = self._indexes[0] if len(self._indexes) == 1 and not small else None
        return newest_pods(self._api, self._team, self._job, one, cached=cached)

    def _read(self, pod: Pod) -> None:
        try:
            for moment, line in lines_of(self._api, self._team, pod.name, follow=True):
                with self._one:
                    self._show(pod, moment, line)
        except ApiError as error:
            self._say(f"the log of {pod.name} is not complete: {error}")
        except BaseException as error:  # the reader of standard output went away
            self._lost.append(error)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            self._say(sentence)

    def _say(self, sentence: str) -> None:
        with self._one:
            self._tell(sentence)


def _trouble(pod: Pod) -> str:
    """What a pod waits for, or why it failed; "" for neither."""
    if not pod.started:
        return f"the pod {pod.name} waits: {pod.reason}" if pod.reason else ""
    if pod.exit_code in (None, 0, START_AGAIN):
        return ""
    return f"the pod {pod.name} on {pod.node} ended with exit code {pod.exit_code}: {pod.last_words}"
