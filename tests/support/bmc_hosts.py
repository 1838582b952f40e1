"""Lab hosts as machines behind a stand-in BMC: what it is ordered, their containers do."""

from __future__ import annotations

import subprocess
import threading
import time
import uuid
from collections.abc import Sequence

from tests.lab.machine import power
from tests.lab.paths import state_dir

OFF = ("GracefulShutdown", "ForceOff")


class BmcHosts:
    """The containers behind the machines of the BMC, by the UUID that each has there."""

    def __init__(self, lab: str, names: Sequence[str]) -> None:
        self.containers = {str(uuid.uuid5(uuid.NAMESPACE_DNS, name)): f"muster-{lab}-{name}" for name in names}
        self._off: set[str] = set()
        self._lock = threading.Lock()
        self._state = state_dir(lab)

    def order(self, order: str, machine: str) -> None:
        """Do what the BMC was told, before it says that it is done."""
        container = self.containers[machine]
        with self._lock, power(self._state):
            if order in OFF:
                self._off.add(container)
                _podman("stop", "--time", "5", container)
            else:
                self._off.discard(container)
                _podman("start", container)

    def keep_up(self) -> None:
        """Start those again that have ended by themselves, until all are removed."""
        while left := [
            container for container in self.containers.values() if _podman("container", "exists", container)
        ]:
            with self._lock, power(self._state):
                for container in left:
                    if (
                        container not in self._off
                        and _podman("container", "exists", container)
                        and not _runs(container)
                    ):
                        _podman("start", container)
            # podman tells nobody that a container has ended by itself.
            time.sleep(0.5)


def _runs(container: str) -> bool:
    done = subprocess.run(
        ["podman", "ps", "--quiet", "--filter", f"name=^{container}$"], capture_output=True, text=True, check=False
    )
    return bool(done.stdout.strip()) or done.returncode != 0


def _podman(*arguments: str) -> bool:
    return subprocess.run(["podman", *arguments], capture_output=True, check=False).returncode == 0
