"""What labs share on their machine: its kernel settings, saved before the first lab and put back after the last."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import locked
from gpu_burnin.fleet.mirror.commands import run

PROC_SYS = Path("/proc/sys")
INOTIFY_INSTANCES = "fs/inotify/max_user_instances"
# Written by kubelet and by sysctl inside hosts with an unmasked /proc/sys.
SETTINGS = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "vm/panic_on_oom", INOTIFY_INSTANCES)
# systemd, kubelet, kube-proxy and containerd of all hosts share the machine's limit for root (128 by default).
MIN_INOTIFY_INSTANCES = 4096


def unmount_below(directory: Path) -> None:
    """Unmount whatever is mounted below a directory."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if Path(m).is_relative_to(directory)), key=len, reverse=True):
        run(["umount", mount])


def power(state: Path) -> AbstractContextManager[None]:
    """Who starts or removes a host from outside its lab's commands has this: one that starts a host which is being
    removed would leave its processes behind, and podman would know nothing of them.
    """
    return locked(state.parent / "power")


def enter(state: Path, settings: Path = PROC_SYS) -> None:
    """Make a lab's state directory, below that of all labs; the first lab saves the machine's settings."""
    with locked(state.parent / "lock"):
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        saved = _saved(state)
        if not saved.exists():
            saved.write_text("".join(f"{name} {(settings / name).read_text().strip()}\n" for name in SETTINGS))
        limit = settings / INOTIFY_INSTANCES
        if int(limit.read_text()) < MIN_INOTIFY_INSTANCES:
            limit.write_text(str(MIN_INOTIFY_INSTANCES))


def leave(state: Path, settings: Path = PROC_SYS) -> None:
    """Remove a lab's state directory; the last lab puts the machine's settings back."""
    with locked(state.parent / "lock"):
        if state.exists():
            shutil.rmtree(state)
        saved = _saved(state)
        if saved.exists() and not any(path.is_dir() for path in state.parent.iterdir()):
            for line in saved.read_text().splitlines():
                name, _, value = line.partition(" ")
                (settings / name).write_text(value)
            saved.unlink()


def _saved(state: Path) -> Path:
    return state.parent / "machine-settings"
