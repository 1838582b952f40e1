"""Who may do what, from RBAC's objects."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.fleet.jobs.rights import Holder, Rbac, abilities, holders

RBAC_GROUP = "rbac.authorization.k8s.io"


def rule(groups: str, resources: str, verbs: str, *names: str) -> dict[str, Any]:
    """A rule from words; core is the group without a name."""
    whole = {"apiGroups": ["" if one == "core" else one for one in groups.split()]}
    return {**whole, "resources": resources.split(), "verbs": verbs.split(), "resourceNames": list(names)}


def role(name: str, *rules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **fields.pop("metadata", {})}, "rules": list(rules), **fields}


def binding(name: str, role_name: str, *subjects: tuple[str, str], kind: str = "ClusterRole") -> dict[str, Any]:
    who = [{"kind": kind_, "name": name_, "namespace": "vision"} for kind_, name_ in subjects]
    metadata = {"name": name, "namespace": "vision"}
    return {"metadata": metadata, "roleRef": {"kind": kind, "name": role_name}, "subjects": who}


def found(rbac: Rbac, **members: list[str]) -> dict[str, Holder]:
    return {one.name: one for one in holders(rbac, members)}


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (rule("*", "*", "*"), ("everything",)),
        (rule("core", "users", "impersonate"), ("act as others",)),
        (rule(RBAC_GROUP, "rolebindings", "create"), ("give rights",)),
        (rule(RBAC_GROUP, "clusterroles", "bind"), ("give rights",)),
        (rule("core", "serviceaccounts/token", "create"), ("make tokens",)),
        (rule("core", "pods/exec", "get"), ("exec",)),
        (rule("core", "*/attach", "create"), ("exec",)),
        (rule("core", "pods/ephemeralcontainers", "patch"), ("add containers",)),
        (rule("core", "pods/portforward", "create"), ("port-forward",)),
        (rule("core", "secrets", "list"), ("read secrets",)),
        (rule("core", "secrets", "delete", "mine"), ("change secrets (some, by name)",)),
        (rule("batch", "jobs", "create"), ("run jobs",)),
        (rule("jobset.x-k8s.io", "jobsets", "create get"), ("run jobs", "read")),
        (rule("apps", "deployments", "create"), ("run pods",)),
        (rule("core", "pods/eviction", "create"), ()),
        (rule("core", "pods", "delete"), ("end work",)),
        (rule("core", "pods/log", "get"), ("read logs",)),
        (rule("core", "services", "patch"), ("change",)),
        (rule("core", "*", "get"), ("exec", "port-forward", "read secrets", "read logs", "read")),
        (rule("core", "nodes", "get list"), ()),
        (rule("other.io", "secrets", "*"), ()),
    ],
)
def test_a_rule_in_words(one: dict[str, Any], words: tuple[str, ...]) -> None:
    assert abilities([one], everywhere=False) == words


def test_the_kubelets_own_way_counts_only_where_it_leads() -> None:
    proxy = rule("core", "nodes/proxy", "get")
    assert abilities([proxy], everywhere=True) == ("reach pods by the kubelet",)
    assert abilities([proxy], everywhere=False) == ()


def test_people_come_first_and_those_with_most_before() -> None:
    reads = role("reads", rule("core", "pods", "get"))
    rbac = Rbac(
        roles=[role("own", rule("core", "secrets", "get"))],
        role_bindings=[
            binding("a", "reads", ("User", "alice"), ("Group", "oidc-vision"), ("ServiceAccount", "default")),
            binding("b", "own", ("User", "alice"), kind="Role"),
            binding("c", "not-there", ("User", "bob")),
        ],
        cluster_roles=[reads, role("cluster-admin", rule("*", "*", "*"))],
        cluster_role_bindings=[
            binding("d", "cluster-admin", ("Group", "system:masters")),
            binding("e", "reads", ("User", "muster:admitter"), ("Group", "muster:admins")),
        ],
    )
    said = found(rbac, **{"muster:admins": ["admin"], "system:masters": []})
    assert list(said) == [
        "system:masters",
        "alice",
        "muster:admins",
        "oidc-vision",
        "vision/default",
        "muster:admitter",
    ]
    assert said["alice"].can == ("read secrets", "read")
    assert [grant.role for grant in said["alice"].grants] == ["ClusterRole reads", "Role own"]
    assert said["muster:admins"].members == ("admin",) and said["oidc-vision"].members is None
    assert said["system:masters"].members == () and said["system:masters"].can == ("everything",)
    assert [name for name, one in said.items() if one.part] == ["muster:admitter"]
    assert said["muster:admins"].grants[0].everywhere and not said["alice"].grants[0].everywhere


def test_a_role_that_gathers_others_has_their_rules_before_its_controller_wrote_them() -> None:
    selector = {"clusterRoleSelectors": [{"matchLabels": {"to": "edit"}}, {"matchLabels": {}}]}
    part = role("part", rule("core", "pods/exec", "create"), metadata={"labels": {"to": "edit"}})
    rbac = Rbac(
        [],
        [binding("a", "edit", ("User", "alice"))],
        [role("edit", aggregationRule=selector), part, role("other", rule("*", "*", "*"))],
        [],
    )
    assert found(rbac)["alice"].can == ("exec",)
