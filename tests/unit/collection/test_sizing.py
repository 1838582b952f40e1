"""What roles take from the size of a fleet: the defaults as they render are those of the plan's formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter import planned_targets as targets_filter
from ansible_collections.muster.fleet.plugins.filter import sizing as sizing_filter
from ansible_collections.muster.fleet.plugins.filter.sizing import sizing
from jinja2 import StrictUndefined
from jinja2.nativetypes import NativeEnvironment

from gpu_burnin.fleet.plan.sizing import SIZES

ROLES = Path(__file__).resolve().parents[3] / "roles"
# By the nodes that are planned, as docs/decisions (30 and 32) and the roles' pages promise them.
TABLE = {
    3: (400, 200, 10, 2000, 50, 100),
    100: (400, 200, 10, 2000, 50, 100),
    999: (400, 200, 10, 15984, 50, 100),
    1000: (1500, 500, 10, 16000, 200, 400),
    1001: (1500, 500, 2, 16016, 200, 400),
    1500: (1500, 500, 2, 24000, 200, 400),
    2999: (1500, 500, 2, 47984, 200, 400),
    7500: (3000, 1000, 2, 120000, 200, 400),
}
VARIABLES = (
    ("kube_apiserver", "kube_apiserver_max_requests_inflight"),
    ("kube_apiserver", "kube_apiserver_max_mutating_requests_inflight"),
    ("local_ssd", "local_ssd_max_p99_ms"),
    ("api_loadbalancer", "api_loadbalancer_max_connections"),
    ("kube_scheduler", "kube_scheduler_api_qps"),
    ("kube_scheduler", "kube_scheduler_api_burst"),
    ("kube_controller_manager", "kube_controller_manager_api_qps"),
    ("kube_controller_manager", "kube_controller_manager_api_burst"),
)


def rendered(role: str, name: str, **variables: Any) -> Any:
    defaults = yaml.safe_load((ROLES / role / "defaults/main.yml").read_text())
    environment = NativeEnvironment(undefined=StrictUndefined)
    environment.filters["muster.fleet.sizing"] = sizing
    if "kube_apiserver_planned_nodes" in defaults and "fleet_planned_nodes" in variables:
        planned = environment.from_string(defaults["kube_apiserver_planned_nodes"]).render(variables)
        variables["kube_apiserver_planned_nodes"] = planned
    return environment.from_string(defaults[name]).render(variables)


@pytest.mark.parametrize("nodes", TABLE)
@pytest.mark.parametrize("given", [int, str])
def test_roles_render_the_sizes_of_the_plan(nodes: int, given: type) -> None:
    fleet = {"fleet_planned_nodes": given(nodes), "api_loadbalancer_local": False}
    found = tuple(rendered(role, name, **fleet) for role, name in VARIABLES)
    assert found == (*TABLE[nodes], *TABLE[nodes][-2:])


@pytest.mark.parametrize(("servers", "chance"), [(1, 0), (2, 0.001), (5, 0.001)])
def test_clients_spread_where_there_is_another_server(servers: int, chance: float) -> None:
    groups = {"kube_apiserver": [f"api-{n}" for n in range(servers)]}
    assert rendered("kube_apiserver", "kube_apiserver_goaway_chance", groups=groups) == chance


@pytest.mark.parametrize(("value", "of"), [("many", "client_qps"), (None, "client_qps"), (3, "client_qbs")])
def test_a_wrong_question_is_refused(value: Any, of: str) -> None:
    with pytest.raises(AnsibleFilterError, match=r"'many'; correct|None; correct|'client_qbs'; choose from"):
        sizing(value, of)


def test_the_documentation_names_each_size() -> None:
    options = yaml.safe_load(sizing_filter.DOCUMENTATION)["options"]
    assert options["of"]["choices"] == list(SIZES)


def test_targets_are_of_the_plan_and_not_of_today() -> None:
    groups = {"all": ["api-1", "gpu-1", "mon-1"], "gpu_nodes": ["gpu-1"], "kube_apiserver": ["api-1"]}
    jobs = {"node": groups["all"], "gpu": ["gpu-1"], "prometheus": ["mon-1"]}
    assert targets_filter.planned_targets(jobs, groups, "7500") == {
        "node": 7502,
        "gpu": 7500,
        "prometheus": 1,
        "apiserver": 1,
        "node_dns": 0,
    }
    # With a name server on each node.
    assert targets_filter.planned_targets({**jobs, "node_dns": ["gpu-1"]}, groups, "7500")["node_dns"] == 7500
