"""ProvisioningRequests: what is read of them, and what they are told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.admission.jobs.workload import read
from gpu_burnin.api.names import GPU_LABEL, READY_LABEL
from gpu_burnin.scaler.model import Answer, Asked, PodSet, Verdict
from gpu_burnin.scaler.requests import Asking, answer_patch, asking, pod_set, request_of, template_path
from gpu_burnin.scaler.stores import Askings, Machines
from tests.support.job_helpers import condition, workload

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


def item(*conditions: dict[str, Any], name: str = "muster.dev", **metadata: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "metadata": {
            "namespace": "vision",
            "name": "r",
            "resourceVersion": "7",
            "generation": 3,
            "creationTimestamp": "2026-11-27T11:00:00Z",
            "ownerReferences": [{"kind": "Workload", "name": "job-a"}],
            **metadata,
        },
        "spec": {"provisioningClassName": name, "podSets": [{"podTemplateRef": {"name": "t"}, "count": 4}]},
    }
    return {**made, "status": {"conditions": list(conditions)}} if conditions else made


def known(*conditions: dict[str, Any]) -> Asking:
    found = asking(item(*conditions), "muster.dev")
    assert found is not None
    return found


def test_only_those_of_our_class_are_ours() -> None:
    assert asking(item(), "other.example") is None
    assert asking(item(deletionTimestamp="2026-11-27T11:00:00Z"), "muster.dev") is None
    found = known()
    assert (found.key, found.workload, found.templates) == ("vision/r", "vision/job-a", (("t", 4),))
    assert template_path("vision", "t") == "/api/v1/namespaces/vision/podtemplates/t"


def test_of_a_template_gpus_labels_and_place_count() -> None:
    limits = {"limits": {"nvidia.com/gpu": "4"}}
    template = {
        "template": {
            "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}},
            "spec": {
                "nodeSelector": {READY_LABEL: "true", GPU_LABEL: "h100", "kubernetes.io/arch": "amd64"},
                "containers": [{"name": "a", "resources": limits}, {"name": "b", "resources": limits}],
            },
        }
    }
    assert pod_set(template, 3) == PodSet(3, 8, {READY_LABEL: "true", GPU_LABEL: "h100"}, "rack")
    with pytest.raises(KeyError):
        pod_set({}, 1)


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ((), Asked.OPEN),
        ((condition("Provisioned", status="False"),), Asked.OPEN),
        ((condition("Provisioned"),), Asked.PROVISIONED),
        ((condition("Provisioned"), condition("BookingExpired")), Asked.OVER),
        ((condition("Failed"),), Asked.OVER),
        ((condition("CapacityRevoked"),), Asked.OVER),
    ],
)
def test_its_conditions_say_where_it_stands(conditions: tuple[dict[str, Any], ...], state: Asked) -> None:
    assert request_of(known(*conditions), (), read(workload("1"))).state is state


def test_one_whose_job_is_gone_is_over_and_the_nodes_are_those_of_a_job_that_was_admitted() -> None:
    assert request_of(known(), (), None).state is Asked.OVER
    assert request_of(known(), (), read(workload("1"))).nodes == frozenset()
    begun = read(workload("1", conditions=[condition("Admitted")]))
    assert request_of(known(), (), begun).nodes == {"gpu-1"}


def test_pods_without_gpus_ask_for_nothing_and_a_template_that_is_gone_is_told() -> None:
    sets = (PodSet(3, 8), PodSet(1, 0), PodSet(0, 8))
    assert request_of(known(), sets, read(workload("1"))).pod_sets == (PodSet(3, 8),)
    assert "a PodTemplate that it names is not there" in request_of(known(), None, read(workload("1"))).problem


def test_an_answer_is_conditions_with_the_version_that_was_read() -> None:
    patch = answer_patch(known(), Answer("vision/r", Verdict.WAIT, "Starting", "gpu-1 comes"), NOW)
    assert patch[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert patch[1]["path"] == "/status"
    told = {one["type"]: one for one in patch[1]["value"]["conditions"]}
    assert (told["Accepted"]["status"], told["Provisioned"]["status"]) == ("True", "False")
    assert told["Provisioned"]["message"] == "gpu-1 comes" and told["Provisioned"]["observedGeneration"] == 3


def test_a_condition_that_holds_on_keeps_its_time() -> None:
    old = condition("Accepted", since="2026-11-27T11:00:00Z")
    patch = answer_patch(known(old), Answer("vision/r", Verdict.PROVISIONED, "Provisioned", "x"), NOW)
    assert patch[1]["path"] == "/status/conditions"
    told = {one["type"]: one for one in patch[1]["value"]}
    assert told["Accepted"]["lastTransitionTime"] == "2026-11-27T11:00:00Z"
    assert told["Provisioned"]["lastTransitionTime"] == "2026-11-27T12:00:00Z"


@pytest.mark.parametrize(("verdict", "kind"), [(Verdict.FAILED, "Failed"), (Verdict.EXPIRED, "BookingExpired")])
def test_an_end_is_a_condition_of_its_own(verdict: Verdict, kind: str) -> None:
    patch = answer_patch(known(condition("Accepted")), Answer("vision/r", verdict, "R", "why"), NOW)
    told = {one["type"]: one for one in patch[1]["value"]}
    assert told[kind]["status"] == "True" and told[kind]["message"] == "why" and "Accepted" in told


def test_a_store_keeps_what_is_newest_and_passes_over_what_is_none() -> None:
    store = Askings("muster.dev")
    assert store.put(item()) == "vision/r" and store.put(item()) == ""
    assert store.put(item(resourceVersion="6")) == ""
    broken = {**item(resourceVersion="9"), "spec": {"provisioningClassName": "muster.dev", "podSets": [{}]}}
    assert store.put(broken) == "vision/r" and store.get("vision/r") is None and store.known() == {"vision/r"}
    assert store.put(item(name="other", resourceVersion="10")) == ""


def test_a_machine_that_cannot_be_read_is_told_and_none() -> None:
    told: list[str] = []
    store = Machines(told.append)
    store.put({"metadata": {"name": "gpu-1", "resourceVersion": "1"}, "spec": {"gpus": "eight"}})
    assert store.get("gpu-1") is None and "gpu-1: its MachinePower cannot be read" in told[0]
    store.put({"metadata": {"name": "gpu-1", "resourceVersion": "2"}, "spec": {"gpus": 8}})
    assert store.all()["gpu-1"].spec.gpus == 8
    store.drop("gpu-1")
    assert store.known() == set()
