"""The teams' objects, by value. That Kueue takes them so: tests/integration/test_teams.py."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import Fleet
from ansible_collections.muster.fleet.plugins.module_utils.jobs.objects import objects, quantity
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import Team

from gpu_burnin.api.names import Names

H100, H200 = "h100-sxm5-80gb", "h200-sxm"
FLEET = Fleet({H100: 512, H200: 64}, {H100: frozenset({8}), H200: frozenset({8})}, ("leaf", "rack"))
VISION = Team("vision", {H100: 256, H200: 0}, weight=2, members=("alice", "group:oidc-vision"))
TEXT = Team("text", {H100: 96}, weight=0.5, borrow=False)
AUDIO = Team("audio", {H100: 64}, dedicated=True)
OURS = {"app.kubernetes.io/managed-by": "muster"}
PREFIX = "muster.node-restriction.kubernetes.io"


def made(*teams: Team, fleet: Fleet = FLEET) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects(teams, fleet, Names())}


def quotas(queue: dict[str, Any]) -> list[dict[str, Any]]:
    (group,) = queue["spec"]["resourceGroups"]
    assert group["coveredResources"] == ["nvidia.com/gpu"]
    found: list[dict[str, Any]] = group["flavors"]
    return found


def quota(flavor: str, number: str, **limits: str) -> dict[str, Any]:
    return {"name": flavor, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": number, **limits}]}


def test_without_teams_there_is_nothing() -> None:
    assert objects([], FLEET, Names()) == []


def test_what_teams_share() -> None:
    all_of = made(VISION, TEXT, AUDIO)
    assert all_of["Topology", "fleet"] == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Topology",
        "metadata": {"name": "fleet", "labels": OURS},
        "spec": {
            "levels": [
                {"nodeLabel": f"{PREFIX}/leaf"},
                {"nodeLabel": f"{PREFIX}/rack"},
                {"nodeLabel": "kubernetes.io/hostname"},
            ]
        },
    }
    assert all_of["ResourceFlavor", H100]["spec"] == {
        "nodeLabels": {f"{PREFIX}/ready": "true", f"{PREFIX}/gpu": H100},
        "topologyName": "fleet",
    }
    assert all_of["AdmissionCheck", "verified"]["spec"] == {"controllerName": "muster.dev/verified"}
    assert [all_of["WorkloadPriorityClass", name]["value"] for name in ("low", "normal", "high")] == [-1000, 0, 1000]
    # 512 - 256 - 96 - 64: what no team has, whoever may borrow gets.
    assert quotas(all_of["Cohort", "fleet"]) == [quota(H100, "96"), quota(H200, "64")]


def test_a_flavor_says_how_many_gpus_its_nodes_have() -> None:
    label = Names().gpus_per_node
    mixed = Fleet(FLEET.gpus, {H100: frozenset({8}), H200: frozenset({4, 8})})
    all_of = made(VISION, AUDIO, fleet=mixed)
    found = {
        name: all_of["ResourceFlavor", name]["metadata"]["labels"][label] for name in (H100, H200, f"{H100}-audio")
    }
    assert found == {H100: "8", H200: "mixed", f"{H100}-audio": "8"}


def test_a_fleet_without_places_or_rest_has_a_flat_tree_and_an_empty_cohort() -> None:
    all_of = made(Team("a", {H100: 16}), fleet=Fleet({H100: 16}, {H100: frozenset({8})}))
    assert all_of["Topology", "fleet"]["spec"]["levels"] == [{"nodeLabel": "kubernetes.io/hostname"}]
    assert all_of["Cohort", "fleet"]["spec"] == {}


def test_a_team_that_borrows() -> None:
    all_of = made(VISION)
    assert all_of["ClusterQueue", "vision"] == {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": "vision", "labels": {**OURS, "muster.dev/team": "vision"}},
        "spec": {
            "cohortName": "fleet",
            "namespaceSelector": {"matchLabels": {"muster.dev/team": "vision"}},
            "queueingStrategy": "BestEffortFIFO",
            "resourceGroups": [
                {"coveredResources": ["nvidia.com/gpu"], "flavors": [quota(H100, "256"), quota(H200, "0")]}
            ],
            "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
            "preemption": {
                "reclaimWithinCohort": "Any",
                "borrowWithinCohort": {"policy": "Never"},
                "withinClusterQueue": "LowerPriority",
            },
            "fairSharing": {"weight": "2"},
            "admissionChecksStrategy": {"admissionChecks": [{"name": "verified"}]},
        },
    }
    assert all_of["LocalQueue", "default"]["metadata"] == {"name": "default", "labels": OURS, "namespace": "vision"}
    assert all_of["LocalQueue", "default"]["spec"] == {"clusterQueue": "vision"}


def test_a_team_that_does_not_borrow() -> None:
    queue = made(TEXT)["ClusterQueue", "text"]
    assert quotas(queue) == [quota(H100, "96", borrowingLimit="0")]
    assert queue["spec"]["fairSharing"] == {"weight": "500m"}


def test_a_team_with_nodes_of_its_own() -> None:
    all_of = made(AUDIO)
    assert quotas(all_of["ClusterQueue", "audio"]) == [
        quota(f"{H100}-audio", "64", borrowingLimit="0", lendingLimit="0")
    ]
    taint = {"key": "muster.dev/team", "value": "audio", "effect": "NoSchedule"}
    assert all_of["ResourceFlavor", f"{H100}-audio"]["spec"] == {
        "nodeLabels": {f"{PREFIX}/ready": "true", f"{PREFIX}/gpu": H100, f"{PREFIX}/team": "audio"},
        "topologyName": "fleet",
        "nodeTaints": [taint],
        "tolerations": [{**taint, "operator": "Equal"}],
    }
    # Nobody shares a model that a dedicated team alone has.
    assert ("ResourceFlavor", H100) not in all_of and all_of["Cohort", "fleet"]["spec"] == {}


def test_a_namespace_is_labelled_and_restricted() -> None:
    labels = made(VISION)["Namespace", "vision"]["metadata"]["labels"]
    modes = {"enforce": "restricted", "audit": "restricted", "warn": "restricted"}
    assert labels == {
        **OURS,
        "muster.dev/team": "vision",
        **{f"pod-security.kubernetes.io/{mode}": value for mode, value in modes.items()},
        **{f"pod-security.kubernetes.io/{mode}-version": "latest" for mode in modes},
    }


def test_members_are_users_and_groups() -> None:
    binding = made(VISION)["RoleBinding", "muster:team-members"]
    group = "rbac.authorization.k8s.io"
    assert binding["metadata"]["namespace"] == "vision"
    assert binding["roleRef"] == {"apiGroup": group, "kind": "ClusterRole", "name": "muster:team-member"}
    assert binding["subjects"] == [
        {"apiGroup": group, "kind": "User", "name": "alice"},
        {"apiGroup": group, "kind": "Group", "name": "oidc-vision"},
    ]


def test_limits_protect_nodes_and_etcd() -> None:
    all_of = made(VISION)
    assert all_of["LimitRange", "muster"]["spec"] == {
        "limits": [{"type": "Container", "defaultRequest": {"cpu": "500m", "memory": "1Gi"}}]
    }
    hard = all_of["ResourceQuota", "muster"]["spec"]["hard"]
    assert {"pods", "configmaps", "secrets", "count/jobs.batch", "count/jobsets.jobset.x-k8s.io"} <= set(hard)
    assert all(isinstance(most, str) for most in hard.values())
    # Each launch makes one of each; a namespace has ConfigMaps and Services of its own beside.
    launches = int(hard["count/jobsets.jobset.x-k8s.io"])
    assert launches < int(hard["configmaps"]) and launches < int(hard["services"]) and launches <= 5000


def test_another_domain_is_in_all_names() -> None:
    text = str(objects([AUDIO], FLEET, Names("example.org")))
    assert "example.org/team" in text and "example.org/verified" in text and "muster.dev" not in text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (8, "8"), (256, "256"), (1000, "1k"), (1500, "1500"), (60000, "60k"), (0.5, "500m"), (1.25, "1250m")],
)
def test_quantities_are_as_kubernetes_writes_them(number: float, text: str) -> None:
    assert quantity(number) == text
