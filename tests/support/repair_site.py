"""What the ladder meets beside the hosts of its molecule scenario: a BMC that powers them, and the cluster's API.

`python -m tests.support.repair_site FOLDER LAB HOST...` serves both on loopback until the lab's hosts are gone. The BMC
is sushy-tools' emulator, whose orders stop and start the hosts' containers; a host that ends by itself boots again, as
a machine does. FOLDER gets kubeconfig/admin.kubeconfig and, when both listen, site.json with the BMC's address.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.bmc import fake_bmc
from tests.support.bmc_hosts import BmcHosts
from tests.support.fake_api import FakeApi


def main(folder: Path, lab: str, names: list[str]) -> None:
    """Serve until the hosts are gone."""
    hosts, api = BmcHosts(lab, names), FakeApi()
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
