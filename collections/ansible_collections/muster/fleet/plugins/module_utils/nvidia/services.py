"""The states of systemd services, and whether a host does work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.commands import CommandError, Run

NOT_FOUND = "not-found"
BURNIN = "gpu-burnin-run"
# containerd's shims have a folder here for each container that runs, by namespace.
_TASKS = "run/containerd/io.containerd.runtime.v2.task"


def at_work(run: Run, root: Path = Path("/")) -> str:
    """What a change of the driver would disturb, as a clause; empty where the host does no work. Raises FleetError.

    A kubelet whose gate is shut is started again and again, and does no work; its pods of before may, when it crashed.
    """
    try:
        found = states(["kubelet", BURNIN], run)
    except CommandError as error:
        raise FleetError(f"whether the host does work cannot be told: {error}") from error
    if found[BURNIN] in ("active", "activating", "deactivating"):
        return "a burn-in runs"
    if found["kubelet"] == "active":
        return "kubelet runs"
    return "pods run" if any((root / _TASKS).glob("*/*")) else ""


def states(names: Sequence[str], run: Run) -> dict[str, str]:
    """Each service's ActiveState (active, inactive, failed, ...), or `not-found`. Raises CommandError."""
    units = [f"{name}.service" for name in names]
    done = run(["systemctl", "show", "--property=LoadState,ActiveState", *units])
    if done.code != 0:
        raise CommandError(f"systemctl show failed: {done.err.strip()}")
    blocks = [dict(line.partition("=")[::2] for line in block.splitlines()) for block in done.out.strip().split("\n\n")]
    if len(blocks) != len(names):
        raise CommandError(f"systemctl show told of {len(blocks)} services and not of {len(names)}")
    return {
        name: NOT_FOUND if block.get("LoadState") == NOT_FOUND else block.get("ActiveState", "")
        for name, block in zip(names, blocks, strict=True)
    }
