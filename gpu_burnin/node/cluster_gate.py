"""The gate towards the cluster: no pod starts in a new boot before the cluster knows of that boot.

A boot that is shorter than the node's lease does not show: the Node still looks admitted, and kubelet would start what
is bound to it. So kubelet waits until the admitter has tainted the Node. Standard library only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_burnin import __version__
from gpu_burnin.api.agent_note import AgentNote, NoteError, note_text, read_note
from gpu_burnin.api.names import NO_EXECUTE, Names
from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
from gpu_burnin.node.api import NOT_FOUND, UNAUTHORIZED, ApiRefused, NodeApi, NotYet, annotations_of
from gpu_burnin.node.unit import RUN_DIR
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.system.files import read_text, write_atomic

DEFAULT_DEADLINE_S = 60.0
# On tmpfs: the boot in which the cluster was found to know. A kubelet that is only restarted asks nobody.
KNOWN = RUN_DIR / "cluster-knows"
_POLL_S = 1.0


class ClusterGateClosed(GpuBurninError):
    """The cluster does not know of this boot yet; systemd asks again, hence exit code 1."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_FAIL)


def check_cluster(
    config: Config,
    deadline_s: float = DEFAULT_DEADLINE_S,
    root: Path = Path("/"),
    known: Path = KNOWN,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Why kubelet may start, in words. Raises ClusterGateClosed after the deadline, and GpuBurninError.

    It may where kubelet has no certificate yet, or one that the API server does not take (it has expired), where the
    cluster has no such Node, where the Node's status is of this boot, and where its preflight taint ends all work.
    Else it asks for that taint, by the agent's note.
    """
    node, boot = config.node_name, host.boot_id(root)
    if _noted(known) == boot:
        return f"the cluster knows of boot {boot}"
    api, end, why = NodeApi(config), clock() + deadline_s, ""
    while True:
        try:
            found = api.get()
            if opens := _opens(found, boot, config.publish.names):
                _note(known, boot)
                return opens
            why = "the admitter has not tainted the Node"
            _ask(api, found, boot, config.publish.names.agent)
        except NotYet as error:
            if not error.certificate:
                return "kubelet has no certificate, so the cluster does not know this node"
            if error.status == NOT_FOUND:
                return "the cluster has no Node of this name"
            why = str(error)
        except ApiRefused as error:
            if error.status != UNAUTHORIZED:
                raise
            # An expired certificate: kubelet reads no pod with it, and has to start to ask for another. With that one
            # it may see pods before the taint is there; the GPUs have passed in this boot by then (`gpu-burnin gate`).
            return "the API server does not take kubelet's certificate, so kubelet can start no pod with it"
        if clock() >= end:
            raise ClusterGateClosed(
                f"{node}: closed: the cluster does not know yet that this is another boot ({boot}), and kubelet would "
                f"start pods: {why}; see muster-admitter.service on the API servers"
            )
        sleep(_POLL_S)


def _opens(found: Mapping[str, Any], boot: str, names: Names) -> str:
    status, spec = found.get("status") or {}, found.get("spec") or {}
    info = status.get("nodeInfo") or {}
    if info.get("bootID") == boot:
        return f"the cluster knows of boot {boot}"
    if not info.get("bootID"):
        return "kubelet has never reported for this Node, so no pod runs on it"
    taints = spec.get("taints") or []
    if any(taint.get("key") == names.preflight and taint.get("effect") == NO_EXECUTE for taint in taints):
        return "the Node is tainted until this boot has passed"
    return ""


def _ask(api: NodeApi, found: Mapping[str, Any], boot: str, key: str) -> None:
    """Have the agent's note name this boot, where the agent has not written it yet."""
    note = AgentNote(boot, __version__, heartbeat=True)
    with contextlib.suppress(NoteError):
        old = read_note(str(annotations_of(found).get(key) or ""))
        if old.boot_id == boot:
            return
        note = replace(note, maintenance=old.maintenance)
    api.annotate({key: note_text(note)})


def _noted(path: Path) -> str:
    try:
        return read_text(path, follow=False, errors="replace").strip()
    except OSError:
        return ""


def _note(path: Path, boot: str) -> None:
    with contextlib.suppress(OSError):  # asked once more, then
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, f"{boot}\n".encode())
