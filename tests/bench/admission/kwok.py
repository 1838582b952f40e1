"""kwok: nodes without machines. Built from its published module into the cache, since only this benchmark needs it."""

from __future__ import annotations

from pathlib import Path

from gpu_burnin.fleet.mirror.golang import Build
from tests.lab.go_tool import ensure_tool

_MODULES = Path(__file__).parent
_BUILD = Build("kwok", "kwok_module", "sigs.k8s.io/kwok/cmd/kwok", modules=_MODULES)
# kwok refuses to run without a stage. This one is for pods on nodes of ours, of which there are none: what is wanted
# of kwok are the nodes' Leases.
STAGE = """\
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-delete}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
      - {key: .metadata.deletionTimestamp, operator: Exists}
  next: {delete: true, finalizers: {empty: true}}
"""


def ensure_kwok() -> Path:
    """The binary in the cache; built in a minute or two where it is missing."""
    return ensure_tool(_BUILD)
