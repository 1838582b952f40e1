"""kwok: nodes without machines. Built from its published module into the cache, since only this benchmark needs it."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir
from gpu_burnin.fleet.mirror.golang import Build, go_build, install_go, ready_go

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
    sums = (_MODULES / _BUILD.module / "go.sum").read_bytes()
    binary = cache_dir() / f"kwok/{hashlib.sha256(sums).hexdigest()[:12]}/kwok"
    if not binary.exists():
        if not ready_go():
            install_go()
        binary.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=binary.parent) as part:
            go_build([_BUILD], Path(part))
            (Path(part) / "kwok").rename(binary)
    return binary
