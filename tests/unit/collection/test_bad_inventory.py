"""Mistakes in an inventory that site.yml must refuse: each is one line with its place and fix, and nothing is touched.

site.yml itself runs, on a spoilt copy of the example with a site's values, whose hosts do not exist.

Only here: that site.yml as a whole tells every mistake at once, and ends before it touches anything.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.example_inventory import filled_example

ROOT = Path(__file__).resolve().parents[3]
NO_SUM = "kube_binaries_checksums has no entry for"
# File, what stands there, what is put there instead, the one line that comes of it.
MISTAKES = (
    (
        "hosts.yml", r" +etcd-3: .*\n", "",
        r"hosts.yml:\d+, etcd-1, etcd-2: the group etcd has 2 hosts, but an etcd cluster has 1, 3, 5 or 7; "
        r"add or remove hosts under etcd",
    ),
    (
        "hosts.yml", r"( +)system-2: .*\n", r"\1api-2: {pod_network_range: 198.18.202.0/24}\n",
        r"hosts.yml:\d+, api-2: is in the exclusive groups kube_apiserver and system_nodes; "
        r"a host may be in one of them only: take it out of the others",
    ),
    (
        "group_vars/all.yml", "fleet_name: ", "etcd_quota_byts: 8589934592\nfleet_name: ",
        r"group_vars/all.yml:\d+, all hosts: etcd_quota_byts is not a variable of role etcd; "
        r"did you mean etcd_quota_bytes\?",
    ),
    (  # misspelt, and therefore missing too, which is not said twice
        "group_vars/all.yml", "fleet_pod_cidr: ", "fleet_pod_cdir: ",
        r"group_vars/all.yml:\d+, all hosts: fleet_pod_cdir is not a variable of role fleet; "
        r"did you mean fleet_pod_cidr\?",
    ),
    (
        "group_vars/all.yml", "pki_leaf_days: 365", "pki_leaf_days: a year",
        r"group_vars/all.yml:\d+, localhost: role pki: argument 'pki_leaf_days' is of type str and we were unable to "
        r"convert to int: .*; correct pki_leaf_days",
    ),
    (  # a role's default reads this one, and that is not said
        "group_vars/all.yml", "kube_binaries_url: .*", "kube_binaries_url: mirror.site.internal/kube",
        r"group_vars/all.yml:\d+, .*: kube_binaries_url 'mirror.site.internal/kube' has no scheme; write "
        r"http://mirror.site.internal/kube, or begin with http:// or https:// or file://",
    ),
    (
        "group_vars/all.yml", "time_sync_servers: .*", "time_sync_servers: [10.9.0.2, 198.51.100.3]",
        r"group_vars/all.yml:\d+, all hosts: time_sync_servers still has a placeholder, an address reserved for "
        r"documentation \(RFC 5737\): 198.51.100.3; give the time servers of your site, or leave it out",
    ),
    (
        "group_vars/all.yml", "fleet_service_cidr: ",
        "fleet_traffic: {a: [10.0.0.0/8], b: [10.9.0.0/16], c: rest}\nfleet_service_cidr: ",
        r"group_vars/all.yml:\d+: fleet_traffic: 10.0.0.0/8 of a and 10.9.0.0/16 of b share addresses; a packet has "
        r"one class: divide the larger range, or take one of them away",
    ),
    (
        "SHA256SUMS.txt", "[0-9a-f]{64}  etcdctl\n", "",
        rf"group_vars/all.yml:\d+, all hosts of etcd, etcd_events: {NO_SUM} etcdctl; "
        r"add its SHA-256 \(`sha256sum etcdctl`\)",
    ),
    (  # roles' defaults read this one, and none of them is said
        "SHA256SUMS.txt", "[0-9a-f]{64}  kubelet\n", "",
        rf"group_vars/all.yml:\d+, all hosts of gpu_nodes, system_nodes: {NO_SUM} kubelet; "
        r"add its SHA-256 \(`sha256sum kubelet`\)",
    ),
)  # fmt: skip


@pytest.mark.slow
def test_each_mistake_is_one_line_and_nothing_is_touched(
    tmp_path: Path, ansible_playbook: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    inventory = filled_example(tmp_path / "inventory")
    for name, old, new, _ in MISTAKES:
        text, found = re.subn(f"^{old}", new, (inventory / name).read_text(), flags=re.MULTILINE)
        assert found == 1, old
        (inventory / name).write_text(text)
    (inventory / "group_vars/system_node.yml").write_text("kubelet_max_pods: 50\n")
    state = tmp_path / "state"
    done = ansible_playbook(str(ROOT / "site.yml"), "-e", f"fleet_state_dir={state}", inventory="inventory")
    said = done.stdout + done.stderr
    assert done.returncode == 2
    assert f"inventory is not usable, nothing was touched: {len(MISTAKES) + 1} problems." in said
    lines = [line for line in said.splitlines() if line.startswith("- ")]
    for *_, expected in MISTAKES:
        assert len([line for line in lines if re.fullmatch(f"- .*{expected}", line)]) == 1, (expected, lines)
    unread = r"- .*group_vars/system_node.yml: there is no group system_node, so .*; did you mean system_nodes\?"
    assert len([line for line in lines if re.fullmatch(unread, line)]) == 1, lines
    assert len(lines) == len(MISTAKES) + 1
    assert "Traceback" not in said
    # The first task said it, and it was the last.
    assert done.stdout.count("PLAY [") == 1
    assert re.search(r"localhost +: ok=0 +changed=0 +unreachable=0 +failed=1 ", done.stdout)
    assert not state.exists()
