"""What the ladder meets beside the hosts of its molecule scenario: a BMC that powers them, and the cluster's API.

`python -m tests.support.repair_site FOLDER LAB HOST...` serves both on loopback until the lab's hosts are gone. The BMC
is sushy-tools' emulator, whose orders stop and start the hosts' containers; a host that ends by itself boots again, as
a machine does. FOLDER gets kubeconfig/admin.kubeconfig and, when both listen, site.json with the BMC's address.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

import pytest

from tests.lab.machine import power
from tests.lab.paths import state_dir
from tests.support.bmc import fake_bmc
from tests.support.fake_api import FakeApi

OFF = ("GracefulShutdown", "ForceOff")


class Hosts:
    """The containers behind the machines of the BMC, by the UUID that each has there."""

    def __init__(self, lab: str, names: list[str]) -> None:
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
            time.sleep(0.5)


def main(folder: Path, lab: str, names: list[str]) -> None:
    """Serve until the hosts are gone."""
    hosts, api = Hosts(lab, names), FakeApi()
    api.objects |= {"pods": {}, "configmaps": {}}
    for name in names:
        api.put("nodeadmissions", {"metadata": {"name": name}, "spec": {}, "status": {}})
    (folder / "kubeconfig").mkdir(exist_ok=True)
    api.kubeconfig(folder / "kubeconfig/admin.kubeconfig")
    with (
        tempfile.TemporaryDirectory() as scratch,
        pytest.MonkeyPatch.context() as patch,
        fake_bmc(Path(scratch), patch, machines=tuple(hosts.containers)) as bmc,
    ):
        bmc.before = hosts.order
        (folder / "bmc-ca.pem").write_bytes(bmc.ca_file.read_bytes())
        systems = {container.rpartition(f"-{lab}-")[2]: machine for machine, container in hosts.containers.items()}
        told = {"address": bmc.address, "systems": systems, "api": f"http://127.0.0.1:{api.server.server_port}"}
        (folder / "site.json").write_text(json.dumps(told))
        hosts.keep_up()


def _runs(container: str) -> bool:
    done = subprocess.run(
        ["podman", "ps", "--quiet", "--filter", f"name=^{container}$"], capture_output=True, text=True, check=False
    )
    return bool(done.stdout.strip()) or done.returncode != 0


def _podman(*arguments: str) -> bool:
    return subprocess.run(["podman", *arguments], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
