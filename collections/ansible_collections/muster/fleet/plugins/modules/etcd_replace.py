#!/usr/bin/python
"""Ansible module: an etcd member that lost its data taken out of its cluster and into it again, without an outage."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.etcd import replace as etcd_replace
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit

DOCUMENTATION = r"""
module: etcd_replace
short_description: Replace an etcd member whose data is lost
version_added: "0.2.0"
description:
  - Removes the member from the list, puts aside what is in its data folder, adds it again as a learner, starts it, and
    promotes it once it has caught up. A voter that is healthy is never touched.
  - What is done next follows from the member list, the data folder and the unit, so a run that was killed is run again.
  - Refused while another member is not healthy, where the list is not as the inventory has it, for a cluster of one
    member, and where the member has data that nobody gave up. The cluster is not changed then.
  - In check mode nothing is done; it then runs on a member that stays, which asks the others, and is told with
    O(has_data) and O(version) what there is on the host. It refuses the same, and an etcd of another minor.
options:
  name:
    description: Name of the member that is replaced.
    type: str
    required: true
  endpoints:
    description: Client URL of every member by name, this one included.
    type: dict
    required: true
  peers:
    description: Peer URL of every member by name, this one included.
    type: dict
    required: true
  data_dir:
    description: The member's data folder.
    type: path
    required: true
  confirm:
    description: The member's name, to put aside data that it still has.
    type: str
    default: ""
  config:
    description: etcd's configuration file; the one to join with is written beside it.
    type: path
    default: /etc/etcd/etcd.yaml
  owner:
    description: User and group of the data.
    type: str
    default: etcd
  unit:
    description: The systemd unit.
    type: str
    default: etcd.service
  has_data:
    description: In check mode, whether anything is in the data folder on the member's host.
    type: bool
    default: false
  version:
    description: In check mode, which version of etcd the member will run.
    type: str
    default: ""
  timeout_s:
    description: How long each thing that is waited for may take, in seconds. Catching up takes longest.
    type: float
    default: 600
extends_documentation_fragment:
  - muster.fleet.etcd_client
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Replace the member
  muster.fleet.etcd_replace:
    name: etcd-1
    endpoints: {etcd-1: "https://198.18.7.11:2379", etcd-2: "https://198.18.7.12:2379", etcd-3: "https://198.18.7.13:2379"}
    peers: {etcd-1: "https://198.18.7.11:2380", etcd-2: "https://198.18.7.12:2380", etcd-3: "https://198.18.7.13:2380"}
    data_dir: /var/lib/etcd/data
"""

RETURN = r"""
steps:
  description: What was done, in this order.
  type: list
  elements: str
  returned: success
  sample: [remove, prepare, add, start, catch up, promote, finish]
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "endpoints": {"type": "dict", "required": True},
    "peers": {"type": "dict", "required": True},
    "data_dir": {"type": "path", "required": True},
    "confirm": {"type": "str", "default": ""},
    "config": {"type": "path", "default": "/etc/etcd/etcd.yaml"},
    "owner": {"type": "str", "default": "etcd"},
    "unit": {"type": "str", "default": "etcd.service"},
    **etcd_api.CREDENTIAL_OPTIONS,
    "has_data": {"type": "bool", "default": False},
    "version": {"type": "str", "default": ""},
    "timeout_s": {"type": "float", "default": 600.0},
}


class Machine:
    """This host: its unit, its data folder, and a drop-in with which the unit joins instead of founding a cluster."""

    def __init__(self, given: dict[str, Any], units: Path = Path("/etc/systemd/system")) -> None:
        self.unit = given["unit"]
        self.data = Path(given["data_dir"])
        self.owner = given["owner"]
        self.config = Path(given["config"])
        self.join_config = self.config.with_name(f"{self.config.stem}-join.yaml")
        self.drop_in = units / f"{self.unit}.d" / "join.conf"

    def has_data(self) -> bool:
        """Whether anything is in the folder."""
        return self.data.is_dir() and any(self.data.iterdir())

    def running(self) -> bool:
        """Whether systemd runs it, or tries to."""
        return systemd_unit.show(self.unit).running

    def joining(self) -> bool:
        """Whether a start joins a cluster that exists."""
        return self.drop_in.exists()

    def stop(self) -> None:
        """Stop etcd."""
        systemd_unit.systemctl(["stop", "--", self.unit])

    def clean(self) -> None:
        """Put the data aside, under a name with the time."""
        stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S%fZ")
        self.data.rename(self.data.with_name(f"{self.data.name}.replaced-{stamp}"))
        os.sync()

    def prepare(self) -> None:
        """Write configuration and drop-in; a reboot from here on joins too."""
        text = self.config.read_text()
        if (joins := text.replace("initial-cluster-state: new\n", "initial-cluster-state: existing\n")) == text:
            raise FleetError(f"{self.config} has no line `initial-cluster-state: new`; run the role etcd first")
        _write(self.join_config, joins)
        self.drop_in.parent.mkdir(exist_ok=True)
        start = f"/usr/local/bin/etcd --config-file {self.join_config}"
        _write(
            self.drop_in, f"# Removed once the member is in its cluster.\n[Service]\nExecStart=\nExecStart={start}\n"
        )
        systemd_unit.systemctl(["daemon-reload"])

    def start(self) -> None:
        """Start etcd, not waiting: it is up when it has joined."""
        if not self.data.exists():
            self.data.mkdir(mode=0o700)
            shutil.chown(self.data, self.owner, self.owner)
        systemd_unit.systemctl(["daemon-reload"])
        systemd_unit.systemctl(["enable", "--", self.unit])
        systemd_unit.systemctl(["start", "--no-block", "--", self.unit])

    def finish(self) -> None:
        """Leave the unit as the role has it; what runs goes on."""
        self.join_config.unlink(missing_ok=True)
        self.drop_in.unlink()
        systemd_unit.systemctl(["daemon-reload"])


class Elsewhere:
    """The member's host as another member sees it: whether etcd runs there it learns by asking it."""

    def __init__(self, data: bool) -> None:
        self.data = data

    def has_data(self) -> bool:
        """As it was told."""
        return self.data

    def running(self) -> bool:
        """It may: it is asked."""
        return True

    def joining(self) -> bool:
        """Nobody knows, and it does not count for what is refused."""
        return False


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.chmod(0o644)
    partial.rename(path)


def replace(module: AnsibleModule) -> dict[str, Any]:
    """All steps that are left; in check mode only what must hold before. Raises FleetError."""
    given = module.params
    credentials = etcd_api.Credentials(given["ca"], given["cert"], given["key"])
    apis = {
        name: etcd_api.connect(endpoint, credentials, etcd_api.REQUEST_TIMEOUT_S)
        for name, endpoint in given["endpoints"].items()
    }
    cluster = etcd_replace.Cluster(given["name"], given["peers"], apis)
    etcd_replace.check(cluster, etcd_replace.SETTLE_S)
    confirmed = given["confirm"] == given["name"]
    if module.check_mode:
        etcd_replace.check_release(cluster, given["version"])
        etcd_replace.check_data(cluster, Elsewhere(given["has_data"]), etcd_replace.SETTLE_S, confirmed=confirmed)
        return {"changed": False, "steps": []}
    steps = etcd_replace.Replacement(cluster, Machine(given), confirmed, given["timeout_s"]).run()
    return {"changed": bool(steps), "steps": [str(step) for step in steps]}


def main() -> None:
    """Entry point."""
    run_module(replace, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
