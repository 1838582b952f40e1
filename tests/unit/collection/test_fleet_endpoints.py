"""A fleet on IPv6 without a default port, rendered by Ansible itself: every role follows the fleet's variables.

Only here: that Ansible renders every role's templates for a fleet on IPv6 with no port of the defaults.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Playbook = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[3]
DEFAULT_PORTS = re.compile(r"(?<!\d)(2379|2380|2381|6443)(?!\d)")
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "etcd": {f"etcd-{n}": {"fleet_address": f"2001:db8::1{n}"} for n in (1, 2)},
    "etcd_events": {f"events-{n}": {"fleet_address": f"2001:db8::2{n}"} for n in (1, 2)},
    "kube_apiserver": {"api-1": {"fleet_address": "2001:db8::31"}, "api-2": {"fleet_address": "198.18.7.32"}},
    "api_loadbalancer": {"lb-1": {"fleet_address": "2001:db8::41"}},
    "system_nodes": {
        "system-1": {
            "ansible_host": "2001:db8::51",
            "__node_admission_gate_state": {"gate_open": True},
            "fleet_api_local_balancer": True,
        }
    },
    "gpu_nodes": {
        "gpu-1": {
            "ansible_host": "2001:db8::61",
            "fleet_node_dns": True,
            "__node_admission_gate_state": {"gate_open": True, "machine_id": "a" * 32},
        },
        "gpu-2": {
            "ansible_host": "198.18.7.62",
            "ansible_port": 2222,
            "gpu_burnin_allow_simulated": True,
            "__node_admission_gate_state": {"gate_open": False, "gate_message": "no pass of this boot"},
        },
        "gpu-3": {"ansible_host": "198.18.7.63"},
    },
}
VARIABLES = {
    "fleet_name": "test",
    "fleet_planned_nodes": 10,
    "fleet_state_dir": "/nowhere",
    "fleet_api_address": "2001:db8:0::41",
    "fleet_pod_cidr": "10.64.0.0/16",
    "fleet_service_cidr": "10.96.0.0/16",
    "fleet_api_port": 7443,
    "fleet_api_server_port": 8443,
    "fleet_etcd_client_port": 12379,
    "fleet_etcd_peer_port": 12380,
    "fleet_etcd_metrics_port": 12381,
    "nvidia_device_plugin_image": "plugin",
    "nvidia_device_plugin_environment": {"MIG_STRATEGY": "mixed", "A": "secret"},
    "gpu_burnin_retest": True,
    "gpu_burnin_retest_level": "extended",
    "kube_binaries_checksums": {"kubelet": "0", "kube-proxy": "0"},
    "__pki_plan": {"signing": ["etcd", "kubelet", "new"], "authorities": [{"name": "new"}]},
}
# For each host the roles, whose variables a play sees without running them, and what to write down.
PLAYS: list[tuple[str, list[str], dict[str, str]]] = [
    (
        "etcd-2",
        ["etcd", "preflight"],
        {"etcd.yaml": "TEMPLATE/etcd/templates/etcd.yaml.j2", "ports": "preflight_ports"},
    ),
    (
        "api-1",
        ["kube_apiserver", "kube_controller_manager", "kube_scheduler", "cluster_dns"],
        {
            "unit": "TEMPLATE/kube_apiserver/templates/kube-apiserver.service.j2",
            "kubeconfigs": "__kube_apiserver_kubeconfigs",
            "controller_manager": "__kube_controller_manager_kubeconfig",
            "scheduler": "__kube_scheduler_kubeconfig",
            "dns": "__cluster_dns_kubeconfig",
        },
    ),
    ("lb-1", ["api_loadbalancer"], {"haproxy.cfg": "TEMPLATE/api_loadbalancer/templates/haproxy.cfg.j2"}),
    (
        "gpu-1",
        ["kubelet", "kube_proxy", "gpu_burnin"],
        {
            "bootstrap": "kubelet_api_url",
            "dns": "kubelet_cluster_dns",
            "metrics": "__fleet_metric_sources.gpu_nodes",
            "proxy": "__kube_proxy_kubeconfig",
            "publish": "gpu_burnin_api_url",
            "wave_wait_s": "__gpu_burnin_wave_wait_s",
        },
    ),
    (
        "system-1",
        ["kubelet", "kube_proxy", "api_loadbalancer"],
        {
            "dns": "kubelet_cluster_dns",
            "metrics": "__fleet_metric_sources.system_nodes",
            "bootstrap": "kubelet_api_url",
            "proxy": "__kube_proxy_kubeconfig",
            "asks": "api_loadbalancer_url",
            "haproxy.cfg": "TEMPLATE/api_loadbalancer/templates/haproxy.cfg.j2",
            "shared": "api_loadbalancer_shared_address",
        },
    ),
    (
        "localhost",
        ["node_admission", "pki"],
        {
            "identities": "__node_admission_system_identities",
            "nodes": "__node_admission_nodes",
            "open": "__node_admission_open",
            "keys": "__pki_signing_files",
        },
    ),
]


def play(hosts: str, roles: list[str], shown: dict[str, str]) -> dict[str, Any]:
    values = {
        name: f"{{{{ lookup('ansible.builtin.template', '{ROOT}/roles{value.removeprefix('TEMPLATE')}') }}}}"
        if value.startswith("TEMPLATE")
        else f"{{{{ {value} }}}}"
        for name, value in shown.items()
    }
    return {
        "hosts": hosts,
        "gather_facts": False,
        "roles": [f"muster.fleet.{role}" for role in ["fleet", *roles]],
        # As site.yml says it of nodes.
        "vars": {
            "api_loadbalancer_local": hosts not in GROUPS["api_loadbalancer"],
            # A task of the role counts them.
            "__gpu_burnin_hosts": 1,
        },
        "tasks": [
            {
                "ansible.builtin.debug": {"msg": "{{ shown | to_json | b64encode }}"},
                "vars": {"shown": values},
                "tags": ["show"],
            }
        ],
    }


@pytest.mark.slow
def test_every_role_follows_the_fleet(tmp_path: Path, ansible_playbook: Playbook) -> None:
    (tmp_path / "site.yml").write_text(yaml.safe_dump([play(*entry) for entry in PLAYS]))
    inventory = {"all": {"children": {name: {"hosts": hosts} for name, hosts in GROUPS.items()}, "vars": VARIABLES}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    # Neither the roles' tasks nor the check of their arguments, which is tagged always.
    done = ansible_playbook("site.yml", "--tags=show", "--skip-tags=always", inventory="hosts.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.findall(r'^ok: \[(\S+)\] => \{\s+"msg": "([^"]+)"', done.stdout, re.MULTILINE)
    texts = {host: base64.b64decode(text).decode() for host, text in shown}
    assert list(texts) == [entry[0] for entry in PLAYS]
    assert {host: DEFAULT_PORTS.findall(text) for host, text in texts.items()} == {host: [] for host in texts}
    found: dict[str, Any] = {host: json.loads(text) for host, text in texts.items()}

    etcd = yaml.safe_load(found["etcd-2"]["etcd.yaml"])
    assert etcd["listen-client-urls"] == "https://[2001:db8::12]:12379,https://127.0.0.1:12379"
    assert etcd["advertise-client-urls"] == "https://[2001:db8::12]:12379"
    assert etcd["listen-peer-urls"] == etcd["initial-advertise-peer-urls"] == "https://[2001:db8::12]:12380"
    assert etcd["listen-metrics-urls"] == "http://127.0.0.1:12381"
    assert etcd["initial-cluster"] == "etcd-1=https://[2001:db8::11]:12380,etcd-2=https://[2001:db8::12]:12380"
    assert etcd["peer-transport-security"]["allowed-cns"] == ["etcd-1", "etcd-2"]
    ports = {group: [entry["port"] for entry in entries] for group, entries in found["etcd-2"]["ports"].items()}
    assert ports["etcd"] == ports["etcd_events"] == [12379, 12380, 12381]
    assert ports["kube_apiserver"][0] == 8443 and ports["api_loadbalancer"] == [7443]

    api = found["api-1"]
    assert "--secure-port=8443 " in api["unit"]
    assert "--etcd-servers=https://[2001:db8::11]:12379,https://[2001:db8::12]:12379 " in api["unit"]
    assert "--etcd-servers-overrides=/events#https://[2001:db8::21]:12379;https://[2001:db8::22]:12379 " in api["unit"]
    users = ["admin", "break-glass", "provisioner"]
    assert [Path(file["dest"]).name for file in api["kubeconfigs"]] == [f"{user}.kubeconfig" for user in users]
    assert server(api["kubeconfigs"][2]["content"]) == server(api["dns"]) == "https://[2001:db8::41]:7443"
    # The parts on an API server's own host ask that server.
    assert server(api["scheduler"]) == server(api["controller_manager"]) == "https://[2001:db8::31]:8443"
    assert "    bind [::]:7443\n" in found["lb-1"]["haproxy.cfg"]
    assert "    server api-1 [2001:db8::31]:8443 " in found["lb-1"]["haproxy.cfg"]
    assert "    server api-2 198.18.7.32:8443 " in found["lb-1"]["haproxy.cfg"]

    # A node with a balancer of its own.
    node = found["system-1"]
    assert node["bootstrap"] == node["asks"] == server(node["proxy"]) == "https://127.0.0.1:7443"
    assert "    bind 127.0.0.1:7443\n" in node["haproxy.cfg"] and node["shared"] == ""
    assert " inter 2000ms " in node["haproxy.cfg"] and " on-error fastinter\n" in node["haproxy.cfg"]
    assert " inter 1000ms " in found["lb-1"]["haproxy.cfg"] and "fastinter" not in found["lb-1"]["haproxy.cfg"]

    node = found["gpu-1"]
    assert node["bootstrap"] == node["publish"] == server(node["proxy"]) == "https://[2001:db8::41]:7443"
    # It has a name server of its own, and the cluster's after it.
    assert node["dns"][0] == "169.254.20.10"
    assert sorted(node["dns"][1:]) == sorted(found["system-1"]["dns"]) == ["198.18.7.32", "2001:db8::31"]
    assert node["metrics"] == {"gpu": "127.0.0.1:9400", "node_dns": "127.0.0.1:9154"}
    assert found["system-1"]["metrics"] == {}

    # One host, one turn: its start, 600 s and the two hours of an extended run, and a quarter of both.
    assert node["wave_wait_s"] == 9780

    controller = found["localhost"]
    assert controller["identities"][0] == {"name": "system-1", "addresses": "2001:db8::51"}
    plugin = {"device_plugin": "plugin", "mig_strategy": "mixed"}
    assert controller["nodes"] == [
        {"name": "gpu-1", "address": "2001:db8::61", "addresses": "2001:db8::61", "machine_id": "a" * 32, **plugin},
        {
            "name": "gpu-2",
            "address": "198.18.7.62",
            "addresses": "198.18.7.62",
            "port": 2222,
            "allow_simulated": True,
            "gate_closed": "no pass of this boot",
            **plugin,
        },
        {"name": "gpu-3", "address": "198.18.7.63", "addresses": "198.18.7.63", **plugin},
    ]
    assert controller["open"] == ["system-1", "gpu-1"]
    assert controller["keys"] == ["/nowhere/pki/etcd/ca.key", "/nowhere/pki/kubelet/ca.key"]


def server(kubeconfig: str) -> str:
    return str(yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]["server"])


def test_a_port_of_the_fleet_is_typed_once() -> None:
    """Everything but the role that declares the ports reads the variables."""
    paths = [
        *(path for name in ("roles", "playbooks", "tests/molecule") for path in (ROOT / name).rglob("*")),
        ROOT / "site.yml",
    ]
    sources = [
        path
        for path in paths
        if path.suffix in (".yml", ".j2", ".py") and (ROOT / "roles/fleet") not in path.parents and path.is_file()
    ]
    assert len(sources) > 100
    typed = [str(path.relative_to(ROOT)) for path in sources if DEFAULT_PORTS.search(path.read_text())]
    assert typed == []
