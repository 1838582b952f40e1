"""A cluster in this process whose admitter follows asks as the real one does, for the tests of driver upgrades.

`python -m tests.support.upgrade_site FOLDER CONTAINER` serves it until the container is gone, for molecule: FOLDER gets
the kubeconfig and, when it listens, site.json with its address.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.names import READY_LABEL, Names
from gpu_burnin.fleet.driver_upgrade import book
from gpu_burnin.fleet.driver_upgrade.book import Entry, Run
from gpu_burnin.fleet.driver_upgrade.course import Upgrade
from gpu_burnin.fleet.repair.cluster import Cluster
from tests.support.fake_api import FakeApi

NOW = datetime(2026, 11, 22, 17, tzinfo=UTC)
NAMES = Names()
OLD, NEW = "575.57.08", "580.105.08"
LOOK: dict[str, Any] = {"working": []}


@dataclass
class Site:
    """Nodes at work, by default gpu-1 and gpu-2. `stands` is what the admitter says of a node that nobody asks for.

    `on_poll` is called at each wait.
    """

    folder: Path
    api: FakeApi = field(default_factory=FakeApi)
    admits: bool = True
    stands: tuple[str, str] = ("ready", "PASS")
    on_poll: Callable[[], None] = lambda: None
    waited_s: float = 0.0
    names: tuple[str, ...] = ("gpu-1", "gpu-2")

    def __post_init__(self) -> None:
        self.kubeconfig = self.api.kubeconfig(self.folder / "kubeconfig")
        self.directory = self.folder / "driver-upgrade"
        for name in self.names:
            self.api.put("nodeadmissions", {"metadata": {"name": name}, "spec": {}, "status": {"state": "ready"}})
            self.api.put_node({"metadata": {"name": name, "labels": {}, "annotations": {}}, "spec": {"taints": []}})
        self.api.objects |= {"pods": {}, "configmaps": {}}
        self.api.before_read = lambda path: self._admit()

    def _admit(self) -> None:
        for name, item in self.api.objects["nodeadmissions"].items() if self.admits else ():
            spec, node = item["spec"], self.api.nodes[name]
            state, code = self.stands
            if spec.get("quarantine"):
                state, code = "quarantined", "QUARANTINED_BY_PERSON"
            if spec.get("repair"):
                state, code = "repairing", "REPAIRING"
            item["status"] |= {"state": state, "code": code, "message": f"{name}: {code.lower()}"}
            node["metadata"]["labels"] = {READY_LABEL: "true"} if state == "ready" else {}
            taint = {"key": NAMES.preflight, "effect": "NoSchedule"}
            node["spec"]["taints"] = [] if state == "ready" else [taint]

    def spec(self, name: str = "gpu-1") -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects["nodeadmissions"][name]["spec"]
        return found

    def pod(self, name: str, *, hold: str = "", daemon: bool = False, phase: str = "Running") -> None:
        owner = [{"kind": "DaemonSet", "name": "d", "controller": True}] if daemon else []
        notes = {NAMES.hold_until: hold} if hold else {}
        self.api.put(
            "pods",
            {
                "metadata": {
                    "namespace": "ml", "name": name, "uid": name, "annotations": notes, "ownerReferences": owner,
                },
                "spec": {"nodeName": "gpu-1", "containers": []},
                "status": {"phase": phase},
            },
        )  # fmt: skip

    def run(self, run_id: str = "run-1", wanted: str = NEW) -> None:
        book.write_run(self.directory, Run(run_id, wanted, self.names, (1,) * len(self.names)))

    def upgrade(self, node: str = "gpu-1", *, user: str = "anna", maintenance: str = "") -> Upgrade:
        self.api.user = user
        return Upgrade(
            node=node,
            directory=self.directory,
            cluster=Cluster(KubeApi(self.kubeconfig), NAMES, now_s=self._now_s, sleep=self._sleep),
            now=lambda: NOW,
            now_s=self._now_s,
            sleep=self._sleep,
            drain_timeout_s=600,
            admission_timeout_s=300,
            maintenance=maintenance,
        )

    def entry(self, node: str = "gpu-1") -> Entry:
        return book.read_entry(self.directory, node)

    def _now_s(self) -> float:
        return self.waited_s

    def _sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        self.on_poll()


def main(folder: Path, container: str) -> None:
    """Serve until the container is gone."""
    folder.mkdir(parents=True, exist_ok=True)
    site = Site(folder)
    (folder / "site.json").write_text(json.dumps({"api": f"http://127.0.0.1:{site.api.server.server_port}"}))
    while subprocess.run(["podman", "container", "exists", container], check=False).returncode == 0:
        time.sleep(1.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
