"""The control plane's rendered files: what they must and must not say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible_collections.muster.fleet.plugins.filter.endpoint import endpoint

ROLES = Path(__file__).resolve().parents[3] / "roles"
OURS = [
    "api_loadbalancer",
    "cluster_dns",
    "kube_apiserver",
    "kube_controller_manager",
    "kube_scheduler",
    "node_admission",
    "node_dns",
]


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def render(role: str, template: str, **variables: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROLES / role / "templates"), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["muster.fleet.endpoint"] = endpoint
    environment.filters["to_json"] = json.dumps
    return environment.get_template(template).render({**load(ROLES / role / "defaults/main.yml"), **variables})


AUDITED = {"kube_apiserver_domain": "muster.dev"}


def rbac(**variables: Any) -> dict[tuple[str, str], dict[str, Any]]:
    everywhere = {"kube_apiserver_domain": "muster.dev", "kube_apiserver_team_groups": []}
    everywhere |= {"kube_apiserver_enrolment": False, **variables}
    objects = yaml.safe_load_all(render("kube_apiserver", "rbac.yaml.j2", **everywhere))
    return {(item["kind"], item["metadata"]["name"]): item for item in objects}


def apiserver_unit(**variables: Any) -> str:
    plain = {
        "kube_apiserver_address": "198.18.7.31",
        "kube_apiserver_max_requests_inflight": 400,
        "kube_apiserver_max_mutating_requests_inflight": 200,
        "kube_apiserver_goaway_chance": 0,
        "kube_apiserver_service_account_issuer": "https://x",
        "fleet_service_cidr": "198.19.128.0/20",
        "fleet_api_server_port": 6443,
        "fleet_gang": "kueue",
        "kube_apiserver_enrolment": False,
        "__kube_apiserver_etcd": {"etcd-1": "https://198.18.7.11:2379", "etcd-2": "https://198.18.7.12:2379"},
        "__kube_apiserver_etcd_events": {"ev-1": "https://198.18.7.21:2379", "ev-2": "https://198.18.7.22:2379"},
    }
    return render("kube_apiserver", "kube-apiserver.service.j2", **{**plain, **variables})


@pytest.mark.parametrize("role", OURS)
def test_every_default_is_specified_with_the_same_value(role: str) -> None:
    defaults = load(ROLES / role / "defaults/main.yml")
    entries = load(ROLES / role / "meta/argument_specs.yml")["argument_specs"].values()
    options = [item for entry in entries for item in entry.get("options", {}).items()]
    for name, option in options:
        assert option.get("default") == defaults.get(name), name
    assert {name for name, _ in options} >= set(defaults)


def test_events_go_to_their_own_etcd() -> None:
    flag = "--etcd-servers-overrides=/events#https://198.18.7.21:2379;https://198.18.7.22:2379 "
    assert flag in apiserver_unit()
    assert "--etcd-servers=https://198.18.7.11:2379,https://198.18.7.12:2379 " in apiserver_unit()
    assert "overrides" not in apiserver_unit(__kube_apiserver_etcd_events={})


def test_the_gate_is_checked_before_each_start() -> None:
    unit = apiserver_unit(kube_apiserver_feature_gates={"Other": False})
    assert "ExecStartPre=/usr/bin/sha256sum --check --strict --quiet /etc/kubernetes/admission/SHA256SUMS\n" in unit
    assert "--feature-gates=ManifestBasedAdmissionControlConfig=true,Other=false " in unit


def controller_manager_unit(gang: str, *, enrolment: bool = False) -> str:
    given = {f"kube_controller_manager_api_{name}": 1 for name in ("qps", "burst")}
    given |= {"fleet_gang": gang, "fleet_enrolment": enrolment}
    return render("kube_controller_manager", "kube-controller-manager.service.j2", **given)


def test_tokens_are_taken_and_made_only_where_machines_enrol() -> None:
    assert "bootstrap-token" not in apiserver_unit() and "token-cleaner" not in controller_manager_unit("kueue")
    assert "--enable-bootstrap-token-auth=true " in apiserver_unit(kube_apiserver_enrolment=True)
    cleaned = controller_manager_unit("kueue", enrolment=True)
    assert "--controllers=*,token-cleaner-controller " in cleaned
    role = ("Role", "muster:enrolment-tokens")
    assert rbac()[role]["rules"] == []
    [rule] = rbac(kube_apiserver_enrolment=True)[role]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["create", "delete"])


def test_without_native_gangs_nothing_alpha_runs() -> None:
    scheduler = render("kube_scheduler", "kube-scheduler.service.j2", fleet_gang="kueue")
    for unit in (apiserver_unit(), controller_manager_unit("kueue"), scheduler):
        assert "Workload" not in unit and "runtime-config" not in unit and "GangScheduling" not in unit


@pytest.mark.parametrize(("gang", "made"), [("native", "true"), ("ending", "false")])
def test_native_gangs_are_served_and_enforced_also_when_no_more_are_made(gang: str, made: str) -> None:
    server = apiserver_unit(fleet_gang=gang, kube_apiserver_feature_gates={"Other": True})
    gates = "ManifestBasedAdmissionControlConfig=true,GenericWorkload=true,WorkloadWithJob=true,Other=true"
    assert f"--feature-gates={gates} " in server and "--runtime-config=scheduling.k8s.io/v1alpha2=true " in server
    manager = controller_manager_unit(gang)
    assert f"--feature-gates=GenericWorkload=true,WorkloadWithJob={made} " in manager
    scheduler = render("kube_scheduler", "kube-scheduler.service.j2", fleet_gang=gang)
    assert "--feature-gates=GenericWorkload=true,GangScheduling=true " in scheduler


def test_extra_flags_come_last_but_one_and_hardening_can_be_emptied() -> None:
    unit = apiserver_unit(kube_apiserver_extra_args={"v": 4}, kube_apiserver_unit_hardening=[])
    assert unit.index("--v=4") > unit.index("--goaway-chance")
    assert "ProtectSystem" not in unit and "ProtectSystem=strict" in apiserver_unit()


def test_only_kubelets_are_signed() -> None:
    unit = controller_manager_unit("kueue").replace("--cluster-signing-duration", "")
    flags = {word.split("=")[0] for word in unit.split() if word.startswith("--cluster-signing")}
    assert flags == {
        f"--cluster-signing-kubelet-{kind}-{part}-file" for kind in ("client", "serving") for part in ("cert", "key")
    }


def test_the_everyday_admin_holds_no_dangerous_verb() -> None:
    rules = rbac()["ClusterRole", "muster:admin"]["rules"]
    verbs = {verb for rule in rules for verb in rule["verbs"]}
    assert not verbs & {"*", "impersonate", "escalate", "bind", "approve", "sign"}
    resources = {resource for rule in rules if "" in rule.get("apiGroups", []) for resource in rule["resources"]}
    assert not resources & {"*", "nodes/proxy", "nodes/status", "serviceaccounts/token", "pods/binding"}
    assert all("*" not in rule.get("apiGroups", []) for rule in rules)


def test_further_api_groups_are_added() -> None:
    rules = rbac(kube_apiserver_admin_api_groups=["kueue.x-k8s.io"])["ClusterRole", "muster:admin"]["rules"]
    assert any("kueue.x-k8s.io" in rule.get("apiGroups", []) for rule in rules)


def test_without_teams_there_is_nothing_of_theirs() -> None:
    found = rbac(kube_apiserver_teams=False)
    assert found.keys() == {key for key in rbac() if not key[1].startswith("muster:team-")} != rbac().keys()
    assert not any(
        "kueue" in group for item in found.values() for rule in item.get("rules", []) for group in groups(rule)
    )
    policy = yaml.safe_load(render("kube_apiserver", "audit-policy.yaml.j2", kube_apiserver_teams=False, **AUDITED))
    with_teams = yaml.safe_load(render("kube_apiserver", "audit-policy.yaml.j2", **AUDITED))
    more = [rule for rule in with_teams["rules"] if rule not in policy["rules"]]
    assert [(rule["level"], rule["resources"][0]["resources"][0]) for rule in more] == [("Request", "pods/attach")]


def groups(rule: dict[str, Any]) -> list[str]:
    found: list[str] = rule.get("apiGroups", [])
    return found


def test_a_member_of_a_team_holds_no_right_that_leads_out_of_it() -> None:
    rules = rbac()["ClusterRole", "muster:team-member"]["rules"]
    verbs = {verb for rule in rules for verb in rule["verbs"]}
    assert verbs == {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
    written = {name for rule in rules if "update" in rule["verbs"] for name in rule["resources"]}
    assert written == {"configmaps", "jobs", "jobsets", "persistentvolumeclaims", "pods", "secrets", "services"}
    assert {group for rule in rules for group in groups(rule)} == {
        "",
        "batch",
        "events.k8s.io",
        "jobset.x-k8s.io",
        "kueue.x-k8s.io",
    }
    reader = rbac()["ClusterRole", "muster:team-reader"]["rules"]
    assert {verb for rule in reader for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not {"workloads", "secrets"} & {name for rule in reader for name in rule["resources"]}
    bound = rbac(kube_apiserver_team_groups=["oidc: v"])["ClusterRoleBinding", "muster:team-reader"]["subjects"]
    assert [(one["kind"], one["name"]) for one in bound] == [("Group", "muster:users"), ("Group", "oidc: v")]


def test_strangers_are_anonymous_for_health_only() -> None:
    anonymous = yaml.safe_load(render("kube_apiserver", "authentication.yaml.j2"))["anonymous"]
    assert [condition["path"] for condition in anonymous["conditions"]] == ["/livez", "/readyz", "/healthz"]


def test_the_balancer_verifies_each_server() -> None:
    text = render(
        "api_loadbalancer",
        "haproxy.cfg.j2",
        api_loadbalancer_bind_address="::",
        fleet_api_port=443,
        api_loadbalancer_metrics_port=8405,
        api_loadbalancer_max_connections=2000,
        __api_loadbalancer_ready_path="/readyz?exclude=etcd-override-0",
        __api_loadbalancer_servers={"api-1": "[2001:db8::31]:6443", "api-2": "198.18.7.32:6443"},
    )
    assert "verify required ca-file /etc/haproxy/kubernetes-ca.crt" in text
    assert "    server api-2 198.18.7.32:6443 verifyhost api-2 check-sni api-2\n" in text
    assert "    server api-1 [2001:db8::31]:6443 verifyhost api-1 check-sni api-1\n" in text
    assert "    bind [::]:443\n" in text
    assert "option httpchk GET /readyz?exclude=etcd-override-0\n" in text


def test_dns_can_be_closed_to_strangers() -> None:
    plain = {
        "cluster_dns_address": "198.18.7.31",
        "cluster_dns_domain": "cluster.local",
        "cluster_dns_metrics_port": 9153,
    }
    assert "acl" not in render("cluster_dns", "Corefile.j2", **plain)
    closed = render("cluster_dns", "Corefile.j2", **plain, cluster_dns_allowed_networks=["198.18.0.0/15"])
    assert "allow net 198.18.0.0/15\n        block\n" in closed


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _escapes(text: str) -> list[str]:
    """What of a YAML text adds an escape to something, which Ansible leaves as two characters."""
    return [one for one in _texts(yaml.safe_load(text)) if re.search(r"~ '[^'{}]*\\[nt0]", one)]


def test_no_expression_counts_on_an_escape_that_yaml_has_not_read() -> None:
    """A hash with two characters at its end, where a new line should be, is none."""
    assert _escapes("a: >-\n  {{ hash ~ '\\n' }}\n") and not _escapes('a: "{{ hash }}\\n"\n')
    roles = Path(__file__).parents[3] / "roles"
    paths = [path for kind in ("tasks", "vars", "defaults", "handlers") for path in roles.glob(f"*/{kind}/*.yml")]
    assert len(paths) > 100
    assert {str(path): found for path in paths if (found := _escapes(path.read_text()))} == {}
