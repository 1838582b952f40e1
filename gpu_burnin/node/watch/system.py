"""What the agent asks of systemd: the burn-in's one starter, and kubelet."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gpu_burnin.node import unit
from gpu_burnin.node.fabric import unit as fabric_unit

KUBELET = "kubelet.service"
_TIMEOUT_S = 30.0


class Say(Protocol):
    """Writes a line into the journal; `code` is the reason code of what it says, "" for none."""

    def __call__(self, message: str, code: str = "") -> None:
        """Write it."""


class System:
    """The real one; a test has another. `ends_with_agent`: so does a burn-in, which is else a unit of its own."""

    ends_with_agent = False

    def hindered(self) -> str:
        """Why no burn-in could be started now for something that comes by itself, "" where one could."""
        return ""

    def burnin(self) -> unit.UnitState:
        """What the burn-in's unit does. Raises GpuBurninError."""
        return unit.state()

    def start(self, arguments: Sequence[str]) -> unit.Started:
        """Start the burn-in. Raises GpuBurninError."""
        return unit.start(arguments)

    def join(self, folder: Path) -> None:
        """Start this node's part in a test with others, whose files are in `folder`. Raises GpuBurninError."""
        fabric_unit.start(folder)

    def joining(self) -> bool:
        """Whether it is under way. Raises GpuBurninError."""
        return fabric_unit.running()

    def end_part(self) -> bool:
        """Have it end where it is under way, without waiting; whether none is there. Raises GpuBurninError."""
        return fabric_unit.end()

    def kubelet_runs(self) -> bool:
        """Whether kubelet's unit is active, and not only about to be."""
        return _systemctl("is-active", "--quiet", KUBELET)

    def restart_kubelet(self) -> bool:
        """Ask systemd for it; whether it took it on."""
        return _systemctl("--no-block", "try-restart", KUBELET)


def _systemctl(*arguments: str) -> bool:
    try:
        return subprocess.run(["systemctl", *arguments], check=False, timeout=_TIMEOUT_S).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
