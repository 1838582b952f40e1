"""Each mistake in an inventory that site.yml must refuse: one problem with its place and fix, and nothing touched.

site.yml itself runs, on a spoilt copy of the example, whose hosts do not exist.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Playbook = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[3]
ALL = "group_vars/all.yml"
HOSTS = "hosts.yml"
SUMS = "SHA256SUMS.txt"
ETCD_3 = "        etcd-3: {ansible_host: 198.51.100.13, local_ssd_device: /dev/disk/by-id/nvme-EXAMPLE_SSD_1TB_S0000003}\n"
SYSTEM_2 = "        system-2: {ansible_host: 198.51.100.52, pod_network_range: 198.18.52.0/24}\n"
MIRROR = "kube_binaries_url: http://mirror.example.com/muster/current\n"
ETCDCTL = f"{'0' * 64}  etcdctl\n"


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        pytest.param(
            ALL, MIRROR, "",
            r": role kube_binaries needs kube_binaries_url, which is not set; set kube_binaries_url in the inventory",
            id="a role variable is missing",
        ),
        pytest.param(
            ALL, "fleet_pod_cidr: ", "fleet_pod_cdir: ",
            r"group_vars/all.yml:\d+, .*: fleet_pod_cdir is not a variable of role fleet; did you mean fleet_pod_cidr\?",
            id="a needed one is misspelt and so missing too",
        ),
        pytest.param(
            ALL, "pki_leaf_days: 365", "pki_leaf_days: a year",
            r"group_vars/all.yml:\d+, localhost: role pki: argument 'pki_leaf_days' is of type str and we were unable to "
            r"convert to int: .*; correct pki_leaf_days",
            id="one has the wrong type",
        ),
        pytest.param(
            ALL, "fleet_name: ", "etcd_quota_byts: 8589934592\nfleet_name: ",
            r"group_vars/all.yml:\d+, .*: etcd_quota_byts is not a variable of role etcd; did you mean etcd_quota_bytes\?",
            id="one is misspelt",
        ),
        pytest.param(
            HOSTS, ETCD_3, "",
            r"hosts.yml:\d+, etcd-1, etcd-2: the group etcd has 2 hosts, but an etcd cluster has 1, 3, 5 or 7; "
            r"add or remove hosts under etcd",
            id="etcd has two members",
        ),
        pytest.param(
            HOSTS, SYSTEM_2, f"{SYSTEM_2}        api-2: {{pod_network_range: 198.18.53.0/24}}\n",
            r"hosts.yml:\d+, api-2: is in the exclusive groups kube_apiserver and system_nodes; keep it in one of them",
            id="a host has two exclusive jobs",
        ),
        pytest.param(
            SUMS, ETCDCTL, "",
            r"group_vars/all.yml:\d+, etcd-1, etcd-2, etcd-3 and 3 more hosts: kube_binaries_checksums has no entry for "
            r"etcdctl; add its SHA-256 \(`sha256sum etcdctl`\)",
            id="a binary has no checksum",
        ),
        pytest.param(
            SUMS, f"{'0' * 64}  kubelet\n", "",
            r"group_vars/all.yml:\d+, system-1, .*: kube_binaries_checksums has no entry for kubelet; add its SHA-256 .*",
            id="a binary that a template names has no checksum",
        ),
    ],
)  # fmt: skip
def test_one_problem_and_nothing_touched(
    tmp_path: Path, ansible_playbook: Playbook, file: str, old: str, new: str, expected: str
) -> None:
    inventory = tmp_path / "inventory"
    shutil.copytree(ROOT / "inventory/example", inventory)
    text = (inventory / file).read_text()
    assert text.count(old) == 1
    (inventory / file).write_text(text.replace(old, new))
    state = tmp_path / "state"
    done = ansible_playbook(str(ROOT / "site.yml"), "-e", f"fleet_state_dir={state}", inventory="inventory")
    said = done.stdout + done.stderr
    assert done.returncode == 2
    assert "inventory is not usable, nothing was touched: 1 problem." in said
    (line,) = [line for line in said.splitlines() if line.startswith("- ")]
    assert re.search(expected + "$", line), line
    assert "Traceback" not in said
    # The first task said it, and it was the last.
    assert done.stdout.count("PLAY [") == 1
    assert re.search(r"localhost +: ok=0 +changed=0 +unreachable=0 +failed=1 ", done.stdout)
    assert not state.exists()
