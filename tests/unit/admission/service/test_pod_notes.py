"""Pods of teams hear from the admitter that their node asks them to leave; all others from their node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.decide.draining import leave_annotation, pod_notes
from gpu_burnin.admission.jobs_config import JobsConfig, QueueConfig
from gpu_burnin.admission.service.cache import Pods
from gpu_burnin.admission.service.pod_notes import PodNotes
from gpu_burnin.admission.view import Pod
from gpu_burnin.api.record import DrainRequest
from gpu_burnin.types import Verdict
from tests.support.admitter_helpers import NAMES, Fleet, until, working
from tests.support.fake_api import FakeApi, Refused, refusing

ASK = DrainRequest("2026-11-22T11:00:00Z", "2026-11-29T12:00:00Z", "XID 79 on GPU-1")
TEXT = leave_annotation(ASK)
JOBS = JobsConfig({"vision": QueueConfig()})
HOLD = {NAMES.hold_until: "checkpoint"}


def a_pod(namespace: str, name: str, node: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": namespace, "name": name, "uid": f"u-{namespace}-{name}"}
    if annotations is not None:
        metadata["annotations"] = annotations
    containers = [{"name": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}, "status": {"phase": "Running"}}


@pytest.mark.parametrize(
    ("changes", "leave", "notes"),
    [
        ({}, ASK, [TEXT]),
        ({"leave": TEXT}, ASK, []),
        ({"leave": "an older ask"}, ASK, [TEXT]),
        ({"leave": TEXT}, None, [""]),
        ({}, None, []),
        ({"namespace": "other"}, ASK, []),
        ({"ended": True}, ASK, []),
        ({"leaving": True}, ASK, []),
        ({"daemon": True}, ASK, []),
    ],
)
def test_who_is_told_what(changes: dict[str, Any], leave: DrainRequest | None, notes: list[str]) -> None:
    pod = Pod(**{"namespace": "vision", "name": "train-0", "uid": "u", "gpus": 8, **changes})
    assert pod_notes([pod], leave, {"vision"}) == tuple((pod, note) for note in notes)
    assert pod_notes([pod], leave, ()) == ()


def leave_of(api: FakeApi, key: str) -> str:
    return str((api.objects["pods"][key]["metadata"].get("annotations") or {}).get(NAMES.leave, ""))


def test_a_team_hears_of_the_ask_and_of_its_end(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    api.put("pods", a_pod("vision", "train-0", "gpu-1", HOLD))
    api.put("pods", a_pod("other", "train-1", "gpu-1", HOLD))
    with working(api, tmp_path, jobs=JOBS):
        until("the admission", lambda: fleet.ready("gpu-1"))
        assert not leave_of(api, "vision/train-0")
        person = {"who": "ada", "why": "loud fan", "since": "2026-11-22T12:00:00Z"}
        fleet.ask("gpu-1", quarantine=person)
        until("the ask", lambda: leave_of(api, "vision/train-0"))
        assert json.loads(leave_of(api, "vision/train-0")) == fleet.status("gpu-1")["leave"]
        node_note = api.nodes["gpu-1"]["metadata"]["annotations"][NAMES.leave]
        assert leave_of(api, "vision/train-0") == node_note and not leave_of(api, "other/train-1")
        assert api.objects["pods"]["vision/train-0"]["metadata"]["annotations"][NAMES.hold_until] == "checkpoint"
        fleet.ask("gpu-1", quarantine=None)
        until("the end of the ask", lambda: not leave_of(api, "vision/train-0"))
    # By a merge patch that holds for this pod alone, and names nothing but the annotation.
    bodies = [body for path, body in api.bodies if path == "/api/v1/namespaces/vision/pods/train-0"]
    assert {frozenset(body["metadata"]) for body in bodies} == {frozenset({"uid", "annotations"})}
    assert {frozenset(body["metadata"]["annotations"]) for body in bodies} == {frozenset({NAMES.leave})}


def test_a_fleet_without_teams_writes_no_pod(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    api.put("pods", a_pod("vision", "train-0", "gpu-1", HOLD))
    with working(api, tmp_path):
        until("the admission", lambda: fleet.ready("gpu-1"))
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
        until("the ask", lambda: NAMES.leave in api.nodes["gpu-1"]["metadata"]["annotations"])
    assert not [path for path in api.writes() if path.endswith("/pods/train-0")]


def test_work_leaves_though_it_cannot_be_told(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    api.put("pods", a_pod("vision", "train-0", "gpu-1", {}))

    def refuse(path: str) -> None:
        if path.endswith("/pods/train-0"):
            raise Refused(403, "pods is forbidden")

    api.before_write = refuse
    with working(api, tmp_path, jobs=JOBS) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
        until("the eviction", lambda: not api.objects["pods"])
        until("the sentence", lambda: [text for text in admitter.messages() if "tell pod vision/train-0" in text])


def test_a_pod_that_cannot_be_told_hides_nothing_from_the_others(api: FakeApi, tmp_path: Path) -> None:
    for name in ("train-0", "train-1"):
        api.put("pods", a_pod("vision", name, "gpu-1", {}))
    api.before_write = refusing(403, "a policy of others", of="train-0")
    pods = [Pod("vision", name, f"u-vision-{name}", gpus=8) for name in ("train-0", "train-1")]
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"), retries=0)
    notes = PodNotes(kube, NAMES, Pods(NAMES.hold_until), frozenset({"vision"}))
    with pytest.raises(ApiError, match="a policy of others"):
        notes.write(pods, ASK)
    assert not leave_of(api, "vision/train-0") and leave_of(api, "vision/train-1") == TEXT
