"""Asking pods to leave by the eviction API, which keeps PodDisruptionBudgets and grace periods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.view import Pod

# A budget that refuses an eviction is asked again; kubectl drain does so each 5 s, for one person that waits.
AGAIN_S = 30.0
TOO_MANY = 429


@dataclass
class Evictor:
    """Asks, and remembers of each pod when it may be asked again."""

    api: KubeApi
    journal: Journal
    recorder: EventRecorder
    metrics: Metrics
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    _asked: dict[str, datetime] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)

    def ask(self, node: str, pods: Sequence[Pod], why: str) -> datetime | None:
        """Ask these pods of a node; when to ask again those that are left.

        Raises the first ApiError, after all were asked: a pod that cannot be is no reason for the others to stay.
        """
        now, again_at = self.now(), []
        unasked: ApiError | None = None
        for pod in pods:
            due = self._asked.get(pod.uid, now)
            if due > now:
                again_at.append(due)
                continue
            if pod.uid not in self._asked:
                self.recorder.leave(node, pod, why)
            again = now + timedelta(seconds=AGAIN_S)
            self._asked[pod.uid] = again
            try:
                answer = self._evict(pod)
            except ApiError as error:
                unasked = unasked or error
                continue
            self.metrics.add("evictions", {"result": answer})
            if answer != "gone":
                # An evicted pod may take its grace period; that its eviction is asked again does no harm.
                again_at.append(again)
        if unasked is not None:
            raise unasked
        return min(again_at, default=None)

    def announce(self, node: str, pod_events: Sequence[tuple[Pod, str]], why: str) -> None:
        """Tell each of these pods once, in an event, what is in its sentence."""
        for pod, sentence in pod_events:
            if pod.uid not in self._told:
                self._told.add(pod.uid)
                self.recorder.leave(node, pod, f"{why}; {sentence}")

    def prune(self, living: Callable[[], Collection[str]]) -> None:
        """Forget the pods that are gone; `living` gives the UIDs of those that are not."""
        known = {*self._asked, *self._told}
        for uid in known.difference(living()) if known else ():
            self._asked.pop(uid, None)
            self._told.discard(uid)
            self._refused.discard(uid)

    def _evict(self, pod: Pod) -> str:
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}/eviction"
        document = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            # Not another pod of this name, which came to another node since.
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        where = f"{pod.namespace}/{pod.name}"
        try:
            self.api.create(path, document, f"evict pod {where}")
        except (NotFound, Conflict):
            return "gone"
        except ApiError as error:
            if error.status != TOO_MANY:
                raise
            if pod.uid not in self._refused:
                self._refused.add(pod.uid)
                self.journal.say(
                    f"{where} is not evicted yet: {error}; it is asked again each {AGAIN_S:.0f} s", pod=where
                )
            return "refused"
        return "granted"
