"""Telling the pods of teams that their node asks them to leave: an annotation, which they mount by the downward API.

Pod Security `restricted` forbids every path of the host, so the file that the node's agent writes cannot reach them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound
from gpu_burnin.admission.decide.draining import pod_notes
from gpu_burnin.admission.service.cache import Pods
from gpu_burnin.admission.view import Pod
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import DrainRequest


@dataclass(frozen=True)
class PodNotes:
    """Writes the annotation on pods in the namespaces of `teams`, and takes it away where the node stays after all."""

    api: KubeApi
    names: Names
    pods: Pods
    teams: frozenset[str] = frozenset()

    def write(self, pods: Sequence[Pod], leave: DrainRequest | None) -> None:
        """As the record says it; of a pod that is gone nothing is told.

        Raises the first ApiError, after all were tried: a pod that cannot be written hides nothing from the others.
        """
        refused: ApiError | None = None
        for pod, value in pod_notes(pods, leave, self.teams):
            path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"
            # Not another pod of this name: another UID is a conflict.
            metadata = {"uid": pod.uid, "annotations": {self.names.leave: value or None}}
            try:
                item = self.api.merge(path, {"metadata": metadata}, f"tell pod {pod.namespace}/{pod.name} to leave")
            except (NotFound, Conflict):
                continue
            except ApiError as error:
                refused = refused or error
                continue
            self.pods.put(item)
        if refused is not None:
            raise refused
