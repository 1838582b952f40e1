"""The states of systemd services, and whether a host does work."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run

NOT_FOUND = "not-found"
BURNIN = "gpu-burnin-run"
RUNNING = ("active", "activating", "deactivating")
# What a difference on a host that does work waits for.
WHEN_IDLE = "playbooks/driver_upgrade.yml -l HOST drains it and changes that"
# Services that keep the GPUs' devices open and do no work there, what needs another one first.
OF_GPUS = (
    "gpu-burnin-watch",
    "nvidia-dcgm-exporter",
    "nvidia-dcgm",
    "nvidia-imex",
    "nvidia-fabricmanager",
    "nvidia-persistenced",
)
# Services that ask the driver for a second and end: installing a driver starts the first of them.
_PASSING = ("nvidia-cdi-refresh", "muster-gpu-settings")
_DEVICE = re.compile(r"/dev/nvidia\d+")
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
    if found[BURNIN] in RUNNING:
        return "a burn-in runs"
    if found["kubelet"] == "active":
        return "kubelet runs"
    if tasks(root):
        return "pods run"
    return next((f"the process {pid} ({name}) has a GPU open" for pid, name in gpu_users(root)), "")


def tasks(root: Path = Path("/")) -> tuple[tuple[str, str], ...]:
    """Namespace and id of each container that runs under containerd."""
    return tuple(sorted((path.parent.name, path.name) for path in (root / _TASKS).glob("*/*")))


def gpu_users(root: Path = Path("/")) -> Iterator[tuple[int, str]]:
    """Process id and name of each process that has the device of a GPU open and is none of the services of GPUs.

    A process that ends meanwhile, and a file that cannot be read, is passed over.
    """
    for folder in sorted((root / "proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError):
            if any(_DEVICE.fullmatch(_target(link)) for link in (folder / "fd").iterdir()):
                groups = (folder / "cgroup").read_text(encoding="utf-8", errors="replace")
                if not any(f"/{name}.service" in groups for name in (*OF_GPUS, *_PASSING)):
                    yield int(folder.name), (folder / "comm").read_text(encoding="utf-8", errors="replace").strip()


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


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
