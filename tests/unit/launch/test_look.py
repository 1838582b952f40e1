"""What the cluster says to a job before anything is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_burnin.admission.client import ApiError
from gpu_burnin.api.names import LEAF_LABEL, RACK_LABEL, Names
from gpu_burnin.launch import look
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.offer import Offer, check_quota, choose_level, choose_model
from gpu_burnin.launch.pod_options import Mount, Variables
from tests.unit.launch.cluster import H100, H200, KUEUE, Cluster, cluster, flavor, queue


def offer(of: Cluster | None = None) -> Offer:
    return look.look_at_offer((of or cluster()).api, "vision", Names())


def test_what_a_team_can_have() -> None:
    found = offer()
    assert found.own == {H100: 64, H200: 16}
    assert found.borrowed == {H100: 32, H200: 0}
    assert found.levels == (LEAF_LABEL, RACK_LABEL)


def test_a_team_of_no_cohort_borrows_nothing() -> None:
    made = cluster()
    made.objects[f"{KUEUE}/namespaces/vision/localqueues/default"]["spec"]["clusterQueue"] = "alone"
    assert (offer(made).own, offer(made).borrowed) == ({H100: 8}, {H100: 0})


def test_dedicated_nodes_and_the_cohorts_own_count() -> None:
    made = cluster()
    made.objects[f"{KUEUE}/clusterqueues/vision"] = queue(
        "vision", {f"{H100}-vision": {"nominalQuota": 16}, H100: {"nominalQuota": 0, "borrowingLimit": 40}}
    )
    made.objects[f"{KUEUE}/resourceflavors/{H100}-vision"] = flavor(f"{H100}-vision", H100)
    assert (offer(made).own, offer(made).borrowed) == ({H100: 16}, {H100: 32})
    made.objects[f"{KUEUE}/cohorts/fleet"] = queue("fleet", {H100: {"nominalQuota": 20}}, cohort=None)
    assert offer(made).borrowed == {H100: 40}


@pytest.mark.parametrize(("kind", "model"), [("h100", H100), (H200, H200), ("H200-SXM", H200)])
def test_a_kind_is_a_model_or_its_beginning(kind: str, model: str) -> None:
    assert choose_model(offer(), kind) == model


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: choose_model(offer(), "b200"), f"no GPUs of the kind 'b200'; those it has: {H100}, {H200}"),
        (lambda: choose_model(offer(), ""), "no GPUs of the kind ''"),
        (lambda: choose_model(offer(), "h"), f"the kind h can be {H100} or {H200}; give it in full"),
        (lambda: choose_model(offer(), None), f"vision has several kinds of GPU; name one: {H100}, {H200}"),
        (lambda: choose_model(Offer("vision", {}, {}), None), "vision has no GPUs"),
        (lambda: choose_level(offer(), "room"), "near is 'room', which is no level of this fleet; .*: leaf, rack"),
        (lambda: choose_level(Offer("vision", {}, {}), "rack"), "nodes have none here: fleet_place says where"),
        (
            lambda: check_quota(offer(), H100, 13, 8),
            r"13 nodes of 8 GPUs are 104 GPUs of h100-sxm5-80gb, and the team vision can have 96 at most "
            r"\(64 of its own, 32 borrowed\); ask for 12 nodes or fewer",
        ),
    ],
)
def test_what_cannot_be_had_is_said_with_what_can(ask: Callable[[], Any], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        ask()


def test_what_can_be_had_is_taken() -> None:
    check_quota(offer(), H100, 12, 8)
    assert choose_level(offer(), "rack") == RACK_LABEL and choose_level(offer(), None) is None


def test_who_may_not_is_told_where_he_may() -> None:
    made = cluster()
    look.check_rights(made.api, "vision")
    made.refused = {("vision", "jobsets"), ("audio", "configmaps")}
    with pytest.raises(LaunchError, match=r"may not make jobs in the namespace vision: .*; you may in: alone"):
        look.check_rights(made.api, "vision")
    made.forbidden = {f"{KUEUE}/clusterqueues"}
    with pytest.raises(LaunchError, match="ask who keeps fleet_teams to make you a member"):
        look.check_rights(made.api, "vision")


def test_a_namespace_without_a_queue_is_no_teams() -> None:
    with pytest.raises(LaunchError, match=r"the namespace kitchen is no team's: .*; the teams: vision, audio, alone"):
        look.look_at_offer(cluster().api, "kitchen", Names())
    made = cluster()
    del made.objects[f"{KUEUE}/clusterqueues/vision"]
    with pytest.raises(LaunchError, match="leads to the ClusterQueue vision, which is not there"):
        offer(made)


def test_gpus_of_a_node_are_those_that_nodes_have() -> None:
    made = cluster()
    assert look.gpus_of_a_node(made.api, offer(made), H100) == 8
    with pytest.raises(LaunchError, match=r"cannot be told \(none can be read\); give gpus_per_node"):
        look.gpus_of_a_node(made.api, offer(made), "b200-sxm-180gb")
    other = {**made.objects[f"/api/v1/nodes/{H100}-1"], "status": {"allocatable": {"nvidia.com/gpu": "4"}}}
    made.objects[f"/api/v1/nodes/{H100}-2"] = other
    with pytest.raises(LaunchError, match=r"cannot be told \(they differ: 4, 8\)"):
        look.gpus_of_a_node(made.api, offer(made), H100)
    made.forbidden = {"/api/v1/nodes"}
    with pytest.raises(LaunchError, match="none can be read"):
        look.gpus_of_a_node(made.api, offer(made), H100)


def test_a_flavor_says_what_its_nodes_have() -> None:
    made = cluster()
    made.forbidden = {"/api/v1/nodes"}
    sizes = {H100: "4", H200: "mixed"}
    for model, size in sizes.items():
        made.objects[f"{KUEUE}/resourceflavors/{model}"]["metadata"]["labels"] = {Names().gpus_per_node: size}
    assert look.gpus_of_a_node(made.api, offer(made), H100) == 4
    with pytest.raises(LaunchError, match=r"none can be read.*--gpus-per-node"):
        look.gpus_of_a_node(made.api, offer(made), H200)


def test_the_teams_image_is_the_default() -> None:
    made = cluster()
    assert look.default_image(made.api, "vision") is None
    made.objects["/api/v1/namespaces/vision/configmaps/muster-launch"] = {
        "metadata": {"name": "muster-launch"},
        "data": {"image": "registry.example/torch:2"},
    }
    assert look.default_image(made.api, "vision") == "registry.example/torch:2"


def test_a_priority_has_to_be_there() -> None:
    look.check_priority(cluster().api, "high")
    look.check_priority(cluster().api, None)
    with pytest.raises(LaunchError, match="there is no priority 'low'; those that there are: high"):
        look.check_priority(cluster().api, "low")


CLAIMS = "/api/v1/namespaces/vision/persistentvolumeclaims"


def claim(*modes: str, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "data"},
        "spec": {"accessModes": list(modes), **(spec or {})},
        "status": {"phase": "Bound", **status},
    }


@pytest.mark.parametrize(
    ("found", "read_only", "nodes", "words"),
    [
        (
            claim("ReadWriteOnce"),
            "data:/data",
            2,
            "is for one node .ReadWriteOnce., and the job has 2; name one that is",
        ),
        (claim("ReadWriteOnce"), True, 2, "is for one node .*; name one that is ReadWriteMany or ReadOnlyMany"),
        (claim("ReadOnlyMany"), False, 1, "can only be read; write data:/data:ro"),
        (claim("ReadWriteMany", phase="Lost"), False, 1, "has lost its volume"),
        (claim("ReadWriteMany", spec={"volumeMode": "Block"}), False, 1, "is a raw device"),
    ],
)
def test_a_claim_that_the_pods_cannot_have_is_refused(
    found: dict[str, Any], read_only: bool, nodes: int, words: str
) -> None:
    made = cluster()
    made.objects[f"{CLAIMS}/data"] = found
    with pytest.raises(LaunchError, match=f"the PersistentVolumeClaim data of vision {words}"):
        look.check_claims(made.api, "vision", [Mount("data", "/data", read_only)], nodes)


def test_a_claim_that_goes_is_refused() -> None:
    made = cluster()
    made.objects[f"{CLAIMS}/data"] = going = claim("ReadWriteMany")
    going["metadata"]["deletionTimestamp"] = "2026-11-27T18:00:00Z"
    with pytest.raises(LaunchError, match="is being deleted; name another one"):
        look.check_claims(made.api, "vision", [Mount("data", "/data")], 1)


@pytest.mark.parametrize(
    ("found", "read_only", "nodes"),
    [
        (claim("ReadWriteOnce"), False, 1),
        (claim("ReadWriteMany"), False, 64),
        (claim("ReadOnlyMany"), True, 64),
        # Bound to a volume that can do more than was asked for; and not bound yet.
        (claim("ReadWriteOnce", accessModes=["ReadWriteOnce", "ReadWriteMany"]), False, 64),
        (claim("ReadWriteMany", phase="Pending"), False, 64),
    ],
)
def test_a_claim_that_the_pods_can_have_is_taken(found: dict[str, Any], read_only: bool, nodes: int) -> None:
    made = cluster()
    made.objects[f"{CLAIMS}/data"] = found
    look.check_claims(made.api, "vision", [Mount("data", "/data", read_only)], nodes)


def test_a_claim_has_to_be_there() -> None:
    made = cluster()
    with pytest.raises(LaunchError, match="vision has no PersistentVolumeClaim sets; it has none: make one"):
        look.check_claims(made.api, "vision", [Mount("sets", "/data")], 1)
    made.objects[f"{CLAIMS}/data"] = claim("ReadWriteMany")
    with pytest.raises(LaunchError, match="no PersistentVolumeClaim sets; those that there are: data"):
        look.check_claims(made.api, "vision", [Mount("sets", "/data")], 1)


def test_what_variables_come_from_is_found_without_its_values() -> None:
    made = cluster()
    core = "/api/v1/namespaces/vision"
    made.objects[f"{core}/secrets/keys"] = {"metadata": {"name": "keys"}, "data": {"TOKEN": "c2VjcmV0"}}
    made.objects[f"{core}/configmaps/flags"] = {"metadata": {"name": "flags"}, "data": {"A": "1"}}
    asked = [Variables("", "keys"), Variables("", "flags"), Variables("secret", "keys")]
    assert look.find_variables(made.api, "vision", asked) == (
        Variables("secret", "keys"),
        Variables("configmap", "flags"),
        Variables("secret", "keys"),
    )
    with pytest.raises(LaunchError, match="vision has no Secret or ConfigMap nothing; make it with kubectl"):
        look.find_variables(made.api, "vision", [Variables("", "nothing")])
    with pytest.raises(LaunchError, match="vision has no ConfigMap keys"):
        look.find_variables(made.api, "vision", [Variables("configmap", "keys")])
    made.objects[f"{core}/configmaps/keys"] = {"metadata": {"name": "keys"}}
    with pytest.raises(LaunchError, match="a Secret and a ConfigMap keys; write secret/keys or configmap/keys"):
        look.find_variables(made.api, "vision", [Variables("", "keys")])


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("/apis/jobset.x-k8s.io/v1alpha2/namespaces/vision/jobsets/train", "job"),
        ("/api/v1/namespaces/vision/configmaps/train", "ConfigMap"),
    ],
)
def test_a_name_is_taken_once(path: str, what: str) -> None:
    made = cluster()
    look.check_free(made.api, "vision", "train")
    made.objects[path] = {"metadata": {"name": "train"}}
    with pytest.raises(LaunchError, match=f"vision has a {what} named train already; give another name, or delete it"):
        look.check_free(made.api, "vision", "train")


def test_other_errors_stay_what_they_are() -> None:
    made = cluster()
    made.forbidden = {f"{KUEUE}/clusterqueues"}
    with pytest.raises(ApiError, match="forbidden"):
        offer(made)
