"""The plan of a fleet: its figures at five sizes, and each value of an inventory that contradicts them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.cli.muster.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.plan import inventory, page, sizing, text
from gpu_burnin.fleet.plan.given import Addresses, Fault, Given, Monitoring, Pods, Setting
from gpu_burnin.fleet.plan.make import make
from gpu_burnin.fleet.plan.model import Figure, FleetPlan
from tests.support.page_reader import Parsed

# A fleet as the roles' defaults make it; what follows from the planned nodes is left to `given`.
DEFAULTS: Mapping[str, Any] = {
    "etcd_quota_bytes": 8 << 30,
    "kube_apiserver_audit_max_files": 10,
    "kube_apiserver_audit_max_size_mib": 100,
    "preflight_min_disk_free_bytes": 10 << 30,
    "admitter_joins_per_s": 5,
    "admitter_tests": {},
    "node_admission_evidence_ttl_s": 604800,
    "kube_controller_manager_kubelet_certificate_days": 30,
    "kubelet_max_pods": 110,
    "gpu_burnin_level": "standard",
    "gpu_burnin_extended_s": 7200,
    "gpu_burnin_power_waves": "granted",
    "gpu_burnin_wave_max_nodes": 1,
    "fleet_feed_limits": {},
    "gpu_burnin_expect": {"gpus": 8},
    "pki_leaf_days": 365,
    "pki_renew_before_days": 60,
}


def given(nodes: int, servers: int = 5, **settings: Any) -> Given:
    """An inventory of so many planned nodes, two of them system nodes, that is right but for these settings."""
    found = {name: (Setting(value, 1, "api-1", "all.yml:7"),) for name, value in {**DEFAULTS, **settings}.items()}
    return Given(
        name="test",
        planned_nodes=nodes,
        forks=20,
        service_cidr="10.96.0.0/16",
        groups={"kube_apiserver": servers, "etcd": 3, "etcd_events": 3, "gpu_nodes": nodes - 2, "system_nodes": 2},
        settings=found,
        certificates={"etcd": 8, "kubernetes": 16},
        addresses=(Addresses("etcd", 3, "10.0.0.1", "10.0.0.3"),),
        pods=Pods("10.64.0.0/11", 24, 8192),
    )


def figure(plan: FleetPlan, key: str) -> Figure:
    [found] = [figure for section in plan.sections for figure in section.figures if figure.key == key]
    return found


@pytest.mark.parametrize(
    ("nodes", "servers", "heap_gb", "reads", "disk_ms", "kubelets", "all_in_s", "play_s", "busy"),
    [
        # 5 s to start a batch, 272 s of a run without the waves, 28.02 s of a turn.
        (3, 2, 0.028, 400, 10, 6, 0.2, 305.0, 0.0045),
        (100, 2, 0.933, 400, 10, 200, 19.6, 3042.9, 0.439),
        (1000, 2, 9.33, 1500, 10, 2000, 199.6, 28485.9, 4.47),
        (1500, 2, 14.0, 1500, 2, 3000, 299.6, 42620.9, 6.71),
        (7500, 5, 70.0, 3000, 2, 15000, 1499.6, 212240.9, 33.6),
    ],
)
def test_the_figures_at_five_sizes(
    nodes: int,
    servers: int,
    heap_gb: float,
    reads: int,
    disk_ms: int,
    kubelets: int,
    all_in_s: float,
    play_s: float,
    busy: float,
) -> None:
    plan = make(given(nodes), gpu_watts=700)
    assert figure(plan, "api_servers").value == servers
    assert figure(plan, "heap_bytes").value == pytest.approx(heap_gb * 1e9, rel=0.01)
    assert figure(plan, "kube_apiserver_max_requests_inflight").value == reads
    assert figure(plan, "local_ssd_max_p99_ms").value == disk_ms
    assert figure(plan, "kubelet").value == kubelets
    assert figure(plan, "kubelet_renewals_per_day").value == pytest.approx(kubelets / 24)
    assert figure(plan, "join_100_percent_s").value == pytest.approx(all_in_s)
    assert figure(plan, "play_s").value == pytest.approx(play_s, rel=0.001)
    assert figure(plan, "busy_nodes").value == pytest.approx(busy, rel=0.01)
    assert figure(plan, "swing_w").value == 5600
    assert all(figure.source for section in plan.sections for figure in section.figures)


@pytest.mark.parametrize(("nodes", "servers"), [(100, 2), (1500, 2), (7500, 5), (7500, 10)])
def test_measured_terms_grow_with_the_nodes_and_say_how_they_were_measured(nodes: int, servers: int) -> None:
    plan = make(given(nodes, servers))
    memory, cores = figure(plan, "least_memory_bytes"), figure(plan, "lease_cores")
    each = sizing.HEAP_OF_OBJECTS_BYTES + sizing.HEAP_OF_CLIENTS_BYTES / servers
    assert memory.value == pytest.approx(sizing.MEMORY_TO_HEAP * (sizing.HEAP_OF_SERVER_BYTES + nodes * each), abs=1)
    assert cores.value == pytest.approx(nodes / 10 * sizing.LEASE_CPU_S)
    assert f"of {nodes:,} nodes in each of {servers}" in memory.source
    # As it was measured: 3.9 GiB of one server with 2,500 nodes and all their watches.
    assert sizing.least_memory_bytes(2500, 1) == pytest.approx(4026 * 2**20, rel=0.05)
    assert all("measured" in one.source for one in (memory, cores))


def test_more_api_servers_hold_fewer_watches_and_the_same_objects() -> None:
    of_five, of_ten = (sizing.least_memory_bytes(7500, servers) for servers in (5, 10))
    assert of_five - of_ten == pytest.approx(sizing.MEMORY_TO_HEAP * 7500 * sizing.HEAP_OF_CLIENTS_BYTES / 10)
    assert of_ten > sizing.MEMORY_TO_HEAP * 7500 * sizing.HEAP_OF_OBJECTS_BYTES


def test_memory_of_no_server_is_that_of_those_that_are_wanted() -> None:
    assert "in each of 5," in figure(make(given(7500, 0)), "least_memory_bytes").source


@pytest.mark.parametrize("nodes", [3, 100, 1000, 1500])
def test_the_defaults_fit_up_to_1500_nodes(nodes: int) -> None:
    assert make(given(nodes)).problems == ()


@pytest.mark.parametrize(
    ("nodes", "settings", "says"),
    [
        (
            1500,
            {"kube_apiserver_max_requests_inflight": 400},
            "is 400 on api-1, but 1,500 planned nodes want at least 1",
        ),
        (1500, {"kube_apiserver_max_mutating_requests_inflight": "200"}, "is 200 on api-1"),
        (1500, {"kube_apiserver_max_requests_inflight": "many"}, "is 'many' on api-1, which is no number"),
        (100, {"kube_apiserver_goaway_chance": 0}, "is 0 on api-1, but 5 API servers want 0.001"),
        (1001, {"local_ssd_max_p99_ms": 10}, "is 10 ms on api-1, but 1,001 planned nodes want at most 2 ms"),
        (200, {"api_loadbalancer_max_connections": 1999}, "want at least 3,200"),
        (1000, {"kube_scheduler_api_qps": 50}, "kube_scheduler_api_qps is 50"),
        (1000, {"kube_controller_manager_api_burst": 100}, "kube_controller_manager_api_burst is 100"),
        (100, {"kube_apiserver_planned_nodes": 99}, "kube_apiserver_planned_nodes is 99 on api-1, but 100 nodes"),
        (7500, {"etcd_quota_bytes": 1 << 30, "admitter_tests": {"nodes": 40}}, "give at least 1.802 GiB"),
        (100, {"kube_apiserver_extra_args": {"watch-cache": "False"}}, "turns watch caches off on api-1"),
        (100, {"kube_apiserver_extra_args": {"watch-cache-sizes": "pods#9,nodes#0"}}, "turns watch caches off"),
        (100, {"kube_apiserver_audit_max_files": 0}, "is 0 on api-1: kube-apiserver then removes no file"),
        (
            100,
            {"kube_apiserver_audit_max_files": 200},
            "the audit log of api-1 may take 19.73 GiB by kube_apiserver_audit_max_files and "
            "kube_apiserver_audit_max_size_mib, but preflight_min_disk_free_bytes asks for 10 GiB alone; give "
            "preflight_min_disk_free_bytes at least 21181235200",
        ),
        (100, {"pki_renew_before_days": 365}, "pki_renew_before_days is 365, which is not less than"),
        (100, {"admitter_tests": {"nodez": 3}}, "admitter_tests cannot be read"),
        (100, {"admitter_tests": {"standard_every_s": 561600}}, "evidence ends after 6 d 7 h to 7 d, by the node"),
        (1000, {"admitter_tests": {"hours": ["22:00-06:00"]}}, "set nodes: 14 in admitter_tests"),
        (7500, {}, "take 34 nodes at once while they may begin, and 8 are allowed; set nodes: 34 in admitter_tests"),
        (1000, {"admitter_tests": {"share": 0.002}}, "set share: 0.006 in admitter_tests"),
    ],
)
def test_a_value_that_contradicts_the_plan_is_named_with_its_place(
    nodes: int, settings: dict[str, Any], says: str
) -> None:
    [problem] = make(given(nodes, **settings)).problems
    assert says in problem.line
    assert problem.line.startswith("all.yml:7: ") and problem.fix


@pytest.mark.parametrize(
    "settings",
    [
        {"kube_apiserver_max_requests_inflight": 5000},
        {"local_ssd_max_p99_ms": 1},
        {"kube_apiserver_planned_nodes": 2000},
        {"kube_apiserver_extra_args": {"watch-cache-sizes": "pods#10"}},
        {"admitter_tests": {"nodes": 0}},
    ],
)
def test_more_than_the_plan_asks_is_no_problem(settings: dict[str, Any]) -> None:
    assert make(given(100, **settings)).problems == ()


def test_the_audit_log_has_a_bound_beside_the_disk_that_is_asked_for() -> None:
    audit = figure(make(given(100)), "audit_bytes")
    assert (audit.value, audit.shown, audit.given) == (1258291200, "1.172 GiB", "10 GiB free on /")


def test_each_value_of_a_variable_is_compared() -> None:
    mixed = given(1500)
    values = (Setting(2, 3, "etcd-1"), Setting(10, 1, "events-1", "hosts.yml:9"))
    mixed = replace(mixed, settings={**mixed.settings, "local_ssd_max_p99_ms": values})
    plan = make(mixed)
    [problem] = plan.problems
    assert problem.line.startswith("hosts.yml:9: local_ssd_max_p99_ms is 10 ms on events-1")
    assert figure(plan, "local_ssd_max_p99_ms").given == "2 ms and 10 ms"


def test_what_is_not_known_is_said_and_never_guessed() -> None:
    bare = Given(name="", planned_nodes=10, forks=20, unknown={"gpu_burnin_level": "'x' is undefined"})
    plan = make(bare)
    for key in ("play_s", "evidence_ttl_s", "join_100_percent_s", "kubelet_renewals_per_day", "pod_ranges"):
        assert (figure(plan, key).value, figure(plan, key).shown) == (None, "not known")
    assert [problem.line for problem in plan.problems] == [
        "gpu_burnin_level cannot be resolved ('x' is undefined); correct what it is made of"
    ]
    assert figure(make(given(100)), "swing_w").value is None


def test_no_waves_swing_no_power_and_take_no_turns() -> None:
    plan = make(given(100, gpu_burnin_power_waves="never"), gpu_watts=700)
    assert [figure(plan, key).value for key in ("waves_s", "swinging_nodes", "swing_w")] == [0.0, 0, 0]
    assert figure(plan, "play_s").value == 300 + 5 * 5


def test_more_nodes_that_swing_shorten_the_play_and_raise_the_swing() -> None:
    limited = {"gpus": 4, "power_limit_w": 600}
    plan = make(given(100, gpu_burnin_wave_max_nodes=20, gpu_burnin_expect=limited))
    assert figure(plan, "swing_w").value == 20 * 4 * 600
    assert figure(plan, "play_s").value == pytest.approx(5 * 5 + 271.98 + 5 * 28.02, rel=0.001)


def test_feeds_with_limits_of_their_own_swing_beside_each_other() -> None:
    plan = make(given(100, fleet_feed_limits={"a": 2, "b": 7}), gpu_watts=700)
    assert figure(plan, "swinging_nodes").value == 10 and figure(plan, "swing_w").value == 10 * 8 * 700
    assert "turns of 10 (fleet_feed_limits and gpu_burnin_wave_max_nodes)" in figure(plan, "play_s").source


@pytest.mark.parametrize(
    ("place", "swinging"),
    [({"feed": "a"}, 2), ({"feed": "b"}, 7), ({"feed": "c"}, 1), ({"rack": "r1"}, 1), ({}, 1), ("no place", 1)],
)
def test_limits_of_feeds_at_which_no_node_stands_let_none_swing(place: object, swinging: int) -> None:
    plan = make(given(100, fleet_feed_limits={"a": 2, "b": 7}, fleet_place=place))
    assert figure(plan, "swinging_nodes").value == swinging


@pytest.mark.parametrize("wrong", [{"fleet_feed_limits": {"a": 0}}, {"gpu_burnin_wave_max_nodes": 0}])
def test_limits_that_are_none_are_not_planned_with(wrong: dict[str, Any]) -> None:
    found = figure(make(given(100, **wrong)), "play_s")
    assert found.value is None and "fleet_feed_limits or gpu_burnin_wave_max_nodes is not known" in found.source


def test_monitoring_that_keeps_less_than_a_day_is_a_problem() -> None:
    need = Monitoring(series=3_000_000, samples_per_s=1e5, disk_bytes=1 << 33, memory_bytes=1 << 34, days=0.4)
    kept = {"fleet_monitoring_disk_gib": 8, "fleet_monitoring_retention_days": 30}
    plan = make(replace(given(100, **kept), monitoring=need))
    assert [problem.message for problem in plan.problems] == [
        "fleet_monitoring_disk_gib 8 keeps 0.4 days of 3,000,000 series"
    ]
    assert make(replace(given(100, **kept), monitoring=replace(need, days=2.0))).problems == ()


@pytest.mark.parametrize("width", [80, 100, 120])
def test_text_keeps_to_its_width_and_ends_with_the_problems(width: int) -> None:
    shown = text.render(make(given(7500)), width).splitlines()
    longer = [line for line in shown if len(line) > width]
    # A name of a variable that is wider than its column is not broken.
    assert all(line.split()[-1].strip("();").startswith(("kube_", "api_", "gpu_")) for line in longer)
    assert shown[0] == "test, 7,500 planned nodes: 1 problem"
    assert "1 problem:" in shown and shown[-1].endswith("lengthen a period")
    assert text.render(make(given(100))).splitlines()[0] == "test, 100 planned nodes: the inventory fits the plan"


def test_the_page_has_every_figure_and_loads_nothing() -> None:
    plan = make(replace(given(7500), name="<b>east</b>"))
    parsed = Parsed(page.render(plan))
    words = " ".join(" ".join(parsed.words).split())
    for section in plan.sections:
        assert section.title in words
        assert all(figure.name in words and figure.shown in words for figure in section.figures)
    assert all(problem.message in words and problem.fix in words for problem in plan.problems)
    assert "<b>east</b>" in words
    assert not {"script", "iframe", "img"} & {name for name, _ in parsed.elements}
    assert "It fits" in " ".join(Parsed(page.render(make(given(100)))).words)


def test_the_command_prints_json_writes_the_page_and_ends_with_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = given(100)
    monkeypatch.setattr(inventory, "read", lambda path: answer)
    shown = tmp_path / "plan.html"
    done = CliRunner().invoke(cli, ["plan", "-i", "inv", "--json", "--gpu-watts", "700", "--html", str(shown)])
    found = json.loads(done.stdout)
    assert (done.exit_code, found["schema"], found["holds"]) == (0, "muster-fleet-plan/v1", True)
    servers = found["sections"]["control_plane"]["figures"]["api_servers"]
    assert (servers["value"], servers["given"], servers["unit"]) == (2, "5", "1")
    assert shown.read_text().startswith("<!DOCTYPE html>")
    answer = replace(answer, faults=(Fault("too few", "add some"),))
    done = CliRunner().invoke(cli, ["plan", "-i", "inv"])
    assert done.exit_code == 1 and done.stdout.endswith("- too few; add some\n")


def test_the_columns_of_all_sections_are_below_each_other() -> None:
    """A table that is as wide as its words need has columns of its own."""
    shown = page.render(make(given(100)))
    assert shown.count('<table class="stack figures">') == shown.count("<table") > 3
    assert ".figures { table-layout: fixed;" in shown


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            "[WARNING]: other\n[ERROR]: Files cannot be read: 2 problems.\n- a.yml:1: one\n- b.yml:2: two\n\nmore",
            "Files cannot be read: 2 problems. - a.yml:1: one - b.yml:2: two",
        ),
        ("  \nansible is lost\n", "ansible is lost"),
        ("", "ansible said nothing"),
    ],
)
def test_all_that_ansible_refuses_is_told(output: str, line: str) -> None:
    assert inventory._why(output) == line


def test_an_inventory_that_is_not_there_is_a_mistake_of_the_caller(tmp_path: Path) -> None:
    with pytest.raises(GpuBurninError, match="does not exist; give the inventory") as raised:
        inventory.read(tmp_path / "none")
    assert raised.value.exit_code == 2


def test_static_routes_are_weighed_and_bgp_is_advised() -> None:
    found = figure(make(given(7500)), "route_bytes")
    assert found.value == 72 * 7500**2 and found.shown == "527.3 KiB on each node, 3.772 GiB for all"
    assert found.given == "static" and "pod_network_routing: bgp is advised from 1,000 nodes on" in found.source
    by_bgp = figure(make(given(7500, pod_network_routing="bgp")), "route_bytes")
    assert (by_bgp.value, by_bgp.shown, by_bgp.given) == (0, "do not grow", "bgp")
    routers = figure(make(given(7500, pod_network_manage_routes=False)), "route_bytes")
    assert (routers.value, routers.given) == (0, "routers")
