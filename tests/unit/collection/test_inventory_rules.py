"""Every rule of the inventory fires in its case, and none on a clean inventory."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_rules import check, check_sizes
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem, is_named_in_full, report

from tests.support.clean_inventory import GROUPS, Data, add, drop, rename, with_teams

Spoil = Callable[[Data], object]

CASES: list[tuple[str, Spoil, str]] = [
    (
        "an IPv6 node",
        lambda d: d.addresses.update({"gpu-1": "2001:db8::7"}),
        "gpu-1: fleet_address 2001:db8::7 is IPv6, but the pod network routes IPv4 between nodes; give the node",
    ),
    ("no etcd", lambda d: drop(d, "etcd", *GROUPS["etcd"]), "the group etcd has no host"),
    ("no events etcd", lambda d: d.groups.pop("etcd_events") and drop(d, "etcd"), "the group etcd_events has no"),
    ("no API server", lambda d: drop(d, "kube_apiserver", "api-1", "api-2"), "kube_apiserver has no host"),
    (
        "no node",
        lambda d: [drop(d, group, *GROUPS["nodes"]) for group in ("gpu_nodes", "system_nodes", "nodes")],
        "no host is a node",
    ),
    ("misspelt group", lambda d: d.groups.update(gpu_node=["gpu-1"]), "gpu_node .*; did you mean gpu_nodes"),
    (
        "misspelt group of a file",
        lambda d: d.group_files.update({"inv/group_vars/gpu_node.yml": "gpu_node"}),
        "inv/group_vars/gpu_node.yml: there is no group gpu_node, so nobody reads this file; did you mean gpu_nodes",
    ),
    (
        "file of a host's misspelt name",
        lambda d: d.host_files.update({"inv/host_vars/gpu-0001.yml": "gpu-0001"}),
        "inv/host_vars/gpu-0001.yml: there is no host gpu-0001, so nobody reads this file; did you mean gpu-1",
    ),
    ("etcd of two", lambda d: drop(d, "etcd", "etcd-3"), "etcd has 2 hosts, but an etcd cluster has 1, 3, 5 or 7"),
    ("events of two", lambda d: add(d, "events-2", "etcd_events"), "etcd_events has 2 hosts"),
    ("etcd of nine", lambda d: [add(d, f"etcd-{n}", "etcd") for n in range(4, 10)], "etcd has 9 hosts"),
    ("etcd of one", lambda d: drop(d, "etcd", "etcd-2", "etcd-3"), "etcd has a single host"),
    ("one API server", lambda d: drop(d, "kube_apiserver", "api-2"), "1 of the 2 hosts that the plan needs"),
    ("too few API servers", lambda d: d.fleet.update(fleet_planned_nodes=3001), "2 of the 3 hosts that the plan"),
    (
        "no balancer",
        lambda d: (drop(d, "api_loadbalancer", "lb-1"), d.fleet.update(fleet_api_address=d.addresses["api-1"])),
        "address of one API server of several",
    ),
    (
        "two balancers, one's address",
        lambda d: (add(d, "lb-2", "api_loadbalancer"), d.fleet.update(fleet_api_address=d.addresses["lb-1"])),
        "fleet_api_address is the address of lb-1, but the 2 hosts of api_loadbalancer share it; give an address of",
    ),
    (
        "two balancers, a name",
        lambda d: (add(d, "lb-2", "api_loadbalancer"), d.fleet.update(fleet_api_address="api.example.com")),
        "fleet_api_address 'api.example.com' is a name, but the 2 hosts of api_loadbalancer share an address",
    ),
    ("etcd and node", lambda d: d.groups["gpu_nodes"].append("etcd-1"), "exclusive groups etcd and gpu_nodes"),
    ("both etcds", lambda d: d.groups["etcd_events"].__setitem__(0, "etcd-1"), "groups etcd and etcd_events"),
    ("both nodes", lambda d: d.groups["system_nodes"].append("gpu-1"), "groups gpu_nodes and system_nodes"),
    ("API and LB", lambda d: d.groups["kube_apiserver"].append("lb-1"), "kube_apiserver and api_loadbalancer"),
    ("events etcd and node", lambda d: d.groups["gpu_nodes"].append("events-1"), "groups etcd_events and gpu_nodes"),
    ("API and node", lambda d: d.groups["gpu_nodes"].append("api-1"), "groups kube_apiserver and gpu_nodes"),
    ("LB and node", lambda d: d.groups["gpu_nodes"].append("lb-1"), "groups api_loadbalancer and gpu_nodes"),
    ("API and system node", lambda d: d.groups["system_nodes"].append("api-1"), "kube_apiserver and system_nodes"),
    (
        "two device plugins",
        lambda d: d.device_plugin["nvidia_device_plugin_image"].update({"gpu-2": ""}),
        'gpu-2: nvidia_device_plugin_image is "plugin" on gpu-1 and "" on gpu-2, but one DaemonSet serves all',
    ),
    (
        "two environments",
        lambda d: d.device_plugin["nvidia_device_plugin_environment"].update({"gpu-2": {"A": "secret"}}),
        "gpu-2: nvidia_device_plugin_environment is one on gpu-1 and one on gpu-2, but one DaemonSet serves all",
    ),
    ("monitoring on node", lambda d: d.groups["monitoring"].append("gpu-1"), "groups monitoring and gpu_nodes"),
    ("homeless", lambda d: add(d, "spare-1"), "spare-1: is in no group"),
    ("upper case", lambda d: rename(d, "Mon-1"), "Mon-1: is not a valid host name"),
    ("underscore", lambda d: rename(d, "mon_1"), "mon_1: is not a valid host name"),
    ("long name", lambda d: rename(d, "m" * 65), "is not a valid host name"),
    ("address as name", lambda d: rename(d, "10.20.0.99"), "the host's name is an address"),
    ("pod range", lambda d: d.fleet.update(fleet_pod_cidr="10.64.0.0/33"), "fleet_pod_cidr .* is not an IP range"),
    ("host bits", lambda d: d.fleet.update(fleet_pod_cidr="10.64.0.1/16"), "fleet_pod_cidr .* is not an IP range"),
    ("service range", lambda d: d.fleet.update(fleet_service_cidr="x"), "fleet_service_cidr 'x' is not an IP range"),
    ("ranges overlap", lambda d: d.fleet.update(fleet_service_cidr="10.64.128.0/20"), "overlaps fleet_pod_cidr"),
    ("no port", lambda d: d.fleet.update(fleet_api_port=65536), "fleet_api_port is 65536, which is not a port"),
    (
        "shared port",
        lambda d: d.fleet.update(fleet_etcd_client_port=2380),
        "fleet_etcd_peer_port is 2380, which fleet_etcd_client_port is too",
    ),
    (
        "API address with a port",
        lambda d: d.fleet.update(fleet_api_address="10.20.0.41:6443"),
        "fleet_api_address '10.20.0.41:6443' is neither an IP address nor a host name; write it alone",
    ),
    (
        "no address",
        lambda d: d.addresses.update({"gpu-1": None}),
        "gpu-1: no address; set ansible_host or fleet_address",
    ),
    (
        "no address but the name",
        lambda d: d.addresses.update({"gpu-1": "gpu-1"}),
        "gpu-1: no address; set ansible_host",
    ),
    ("name for address", lambda d: d.addresses.update({"gpu-1": "gpu-1.example"}), "'gpu-1.example' is not an IP"),
    ("same address", lambda d: d.addresses.update({"gpu-1": "10.20.0.1"}), "have the same fleet_address 10.20.0.1"),
    (
        "same BMC",
        lambda d: d.bmc_addresses.update({"gpu-1": "10.21.0.2"}) or d.bmc_systems.clear(),
        "gpu-1, gpu-2: have the same repair_bmc_address 10.21.0.2",
    ),
    (
        "a host for a BMC",
        lambda d: d.bmc_addresses.update({"gpu-1": "https://10.20.0.1"}),
        "gpu-1: repair_bmc_address https://10.20.0.1 is the address of etcd-1 itself; give the address of its BMC",
    ),
    ("address in pods", lambda d: d.addresses.update({"gpu-1": "10.64.9.9"}), "lies in fleet_pod_cidr"),
    ("address in services", lambda d: d.addresses.update({"gpu-1": "10.96.0.9"}), "lies in fleet_service_cidr"),
    ("no pod range", lambda d: d.pod_ranges.pop("gpu-1"), "gpu-1: no pod_network_range, which each node needs"),
    ("bad pod range", lambda d: d.pod_ranges.update({"gpu-1": "10.64.0.1/24"}), "pod_network_range '10.64.0.1/24'"),
    ("outside", lambda d: d.pod_ranges.update({"gpu-1": "10.80.0.0/24"}), "is not inside fleet_pod_cidr"),
    ("too wide", lambda d: d.pod_ranges.update({"gpu-1": "10.0.0.0/8"}), "is not inside fleet_pod_cidr"),
    ("shared", lambda d: d.pod_ranges.update({"gpu-2": "10.64.0.0/24"}), "10.64.0.0/24 overlaps 10.64.0.0/24"),
    ("nested", lambda d: d.pod_ranges.update({"gpu-1": "10.64.0.0/20"}), "overlaps 10.64.0.0/20 of gpu-1"),
    (
        "range for too few nodes",
        lambda d: d.fleet.update(fleet_pod_cidr="10.64.0.0/13"),
        r"10.64.0.0/13 has room for 2048 pod ranges of /24 \(2\^\(24 - 13\)\), but fleet_planned_nodes is 3000; "
        "take a /12",
    ),
    (
        "wider ranges among them",
        lambda d: (d.fleet.update(fleet_planned_nodes=4090), d.pod_ranges.update({"gpu-1": "10.65.0.0/20"})),
        r"room for 4081 pod ranges of /24 \(2\^\(24 - 12\), less 15 that wider ones take\), but fleet_planned_nodes "
        "is 4090; take a /11",
    ),
    (
        "the example's addresses",
        lambda d: d.ansible_hosts.update({"gpu-1": "192.0.2.7", "gpu-2": "192.0.2.8", "mon-1": "10.20.0.9"}),
        "gpu-1, gpu-2: ansible_host still has a placeholder, an address reserved for documentation",
    ),
    (
        "maintenance of a group that is none",
        lambda d: d.fleet.update(
            fleet_maintenance=[
                {"nodes": ["gpu_node"], "not_before": "2026-12-01T22:00:00Z", "not_after": "2026-12-02T00:00:00Z"}
            ]
        ),
        r"fleet_maintenance\[0\]: gpu_node is neither a host nor a group of the inventory",
    ),
    (
        "maintenance at a time without offset",
        lambda d: d.fleet.update(fleet_maintenance=[{"nodes": "all", "not_before": "2026-12-01T22:00:00"}]),
        r"fleet_maintenance\[0\]: not_before is '2026-12-01T22:00:00'; it must be a time with its offset",
    ),
    (
        "a place that cannot be a label",
        lambda d: d.places.update({"gpu-1": {"rack": "row 7"}, "gpu-2": {"rack": "row 7"}}),
        "gpu-1, gpu-2: fleet_place.rack is 'row 7', which cannot be the value of a Node's label",
    ),
    (
        "a switch that is not the leaf",
        lambda d: d.places.update({"gpu-1": {"switch": "s1", "leaf": "s2"}}),
        "gpu-1: fleet_place has switch s1 and leaf s2, and both mean the leaf switch",
    ),
    (
        "a rack on two leaves",
        lambda d: with_teams(d) and d.places.update({h: {"rack": "r1", "leaf": h} for h in ("gpu-1", "gpu-2")}),
        "gpu-1, gpu-2: rack r1 is on 2 leaf switches, gpu-1, gpu-2",
    ),
    (
        "teams and a node without its model",
        lambda d: with_teams(d) and d.expects.update({"gpu-2": {"gpus": 8}}),
        "gpu-2: has no gpu_burnin_expect.model, and fleet_teams needs the model of every GPU node",
    ),
    (
        "more GPUs than there are",
        lambda d: with_teams(d, 24),
        r"fleet_teams gives 24 GPUs of h100-sxm5-80gb, 24 \(vision\), and the GPU nodes have 16; take 8 away",
    ),
    (
        "a member that is no user",
        lambda d: with_teams(d) and d.fleet.update(fleet_users=["bob"]),
        "fleet_teams.vision.members names alice, which fleet_users does not have",
    ),
    (
        "a user of the fleet's own without teams",
        lambda d: d.fleet.update(fleet_users=["admin"]),
        "fleet_users names admin, which is the fleet's own",
    ),
    (
        "teams without GPU nodes",
        lambda d: with_teams(d) and drop(d, "gpu_nodes", "gpu-1", "gpu-2"),
        "fleet_teams is set, and no host is a GPU node; list hosts under gpu_nodes",
    ),
    (
        "classes of traffic that share addresses",
        lambda d: d.fleet.update(fleet_traffic={"a": ["10.0.0.0/8"], "b": ["10.9.0.0/16"], "c": "rest"}),
        "fleet_traffic: 10.0.0.0/8 of a and 10.9.0.0/16 of b share addresses; a packet has one class",
    ),
    ("too many nodes", lambda d: d.fleet.update(fleet_planned_nodes=2), "is 2, but the inventory has 3 nodes"),
    ("unknown play group", lambda d: d.patterns.append("gpu_nodes:!gpus"), "a play is for 'gpus'"),
]


def test_a_clean_inventory_has_no_problem() -> None:
    assert Data().problems() == []


def test_single_members_are_accepted_when_asked_for() -> None:
    data = Data()
    drop(data, "etcd", "etcd-2", "etcd-3")
    drop(data, "kube_apiserver", "api-2")
    data.fleet.update(fleet_allow_single_members=True, fleet_planned_nodes=10)
    assert data.problems() == []


def test_teams_that_fit_are_accepted() -> None:
    data = Data()
    with_teams(data)
    assert data.problems() == []


def test_groups_of_a_site_are_left_alone() -> None:
    data = Data()
    data.groups |= {name: ["gpu-1"] for name in ("gpu_nodes_west", "etcd_a", "etcd2", "rack7", "nodes_of_row_3")}
    data.group_files |= {f"group_vars/{name}.yml": name for name in ("gpu_nodes_east", "etcd2", "site")}
    assert data.problems() == []


def test_wrong_types_are_left_to_the_roles_check() -> None:
    data = Data()
    data.fleet.update(fleet_planned_nodes="many", fleet_allow_single_members="no")
    assert data.problems() == []


def test_what_cannot_be_resolved_is_left_to_the_roles_check() -> None:
    data = Data()
    with_teams(data)
    data.addresses["gpu-1"] = data.pod_ranges["gpu-1"] = data.places["gpu-1"] = data.expects["gpu-2"] = UNRESOLVED
    assert data.problems() == []


def test_a_range_of_hosts_without_values_is_told_the_formulas_once() -> None:
    data = Data()
    for number in range(3, 203):
        add(data, f"gpu-{number}", "gpu_nodes")
        data.addresses[f"gpu-{number}"] = f"gpu-{number}"
    addresses, ranges = data.problems()
    assert len(addresses.hosts) == len(ranges.hosts) == 200
    assert addresses.fix.endswith(
        "; for a range of hosts, in group_vars: "
        "ansible_host: \"{{ inventory_hostname | muster.fleet.nth_address('10.20.0.0/16') }}\""
    )
    assert ranges.fix.endswith(
        "; for a range of hosts, in group_vars: "
        'pod_network_range: "{{ inventory_hostname | muster.fleet.nth_range(fleet_pod_cidr, 24) }}"'
    )


@pytest.mark.parametrize(("spoil", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_each_rule_fires(spoil: Spoil, expected: str) -> None:
    data = Data()
    spoil(data)
    text = report("x", data.problems())
    assert re.search(expected, text), text


def test_report_is_one_line_a_problem_and_short() -> None:
    hosts = tuple(f"gpu-{number}" for number in range(1000))
    problem = Problem("is wrong", "do right", hosts, where="hosts.yml:3")
    assert report("Bad", [problem, problem]) == (
        "Bad: 1 problem.\n- hosts.yml:3, gpu-0 to gpu-999, 1,000 hosts: is wrong; do right"
    )


def test_the_same_problem_at_many_places_is_one_line() -> None:
    problems = [Problem("is wrong", "do right", (f"gpu-{n}",), where=f"hosts.yml:{n}") for n in range(1, 101)]
    problems += [Problem("is wrong", "do right", where="all.yml:1"), Problem("is wrong", "do it better", ("gpu-1",))]
    assert report("Bad", problems).splitlines()[1:] == [
        "- hosts.yml:1 and 99 more places, gpu-1 to gpu-100, 100 hosts: is wrong; do right",
        "- all.yml:1: is wrong; do right",
        "- gpu-1: is wrong; do it better",
    ]


def test_whole_groups_of_many_hosts_are_named_by_their_names() -> None:
    groups = {"etcd": ["e-1", "e-2"], "monitoring": [], "gpu_nodes": [f"gpu-{n}" for n in range(9)], "ungrouped": ["x"]}
    etcd, gpus = groups["etcd"], groups["gpu_nodes"]
    for hosts, said in (
        ([*etcd, *gpus, "x"], "all hosts"),
        (["localhost", *etcd, *gpus, "x"], "all hosts"),
        ([*gpus, *etcd], "all hosts of etcd, gpu_nodes"),
        (gpus[1:], "gpu-1 to gpu-8, 8 hosts"),
        ([*gpus, "e-1"], "e-1, gpu-0 to gpu-8, 10 hosts"),
        (etcd, "e-1, e-2"),
    ):
        assert Problem("is wrong", "do right", tuple(hosts)).line(groups) == f"{said}: is wrong; do right"


def test_it_is_known_whether_each_host_is_named() -> None:
    assert is_named_in_full([f"gpu-{n}" for n in range(100)])
    assert not is_named_in_full([f"gpu-{n}" for n in range(0, 100, 2)])


def test_one_bmc_may_have_several_machines() -> None:
    data = Data()
    data.bmc_addresses = {"gpu-1": "bmc.example.org", "gpu-2": "BMC.example.org"}
    data.bmc_systems = {"gpu-1": "1", "gpu-2": "2"}
    assert data.problems() == []


def test_the_plan_sees_a_range_over_hosts() -> None:
    data = Data()
    data.fleet["fleet_pod_cidr"] = "10.0.0.0/8"
    said = "have a fleet_address in fleet_pod_cidr 10.0.0.0/8, the first 10.20.0.1"
    for rules in (check, check_sizes):
        [problem] = [one for one in data.problems(rules) if one.message == said]
        assert set(problem.hosts) == set(data.addresses)
