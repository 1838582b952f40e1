"""The service as a whole against a fake API server: admission, revocation, trouble of one node, brakes, outages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.types import Verdict
from tests.support.admission_helpers import Signer
from tests.support.admitter_helpers import NAMES, Fleet, until, working
from tests.support.fake_api import FakeApi


@pytest.fixture
def fleet(api: FakeApi, signer: Signer) -> Fleet:
    return Fleet(api, signer)


def test_a_pass_lets_a_node_in_and_a_fail_takes_it_out(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.provision("gpu-1")
    fleet.register("gpu-1")
    with working(api, tmp_path) as admitter:
        until("the look", lambda: fleet.status("gpu-1"))
        assert not fleet.ready("gpu-1")
        fleet.publish("gpu-1")
        until("the admission", lambda: fleet.ready("gpu-1"))
        assert fleet.status("gpu-1")["state"] == "ready"
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
        until("the revocation", lambda: fleet.status("gpu-1")["state"] == "quarantined")
        until("the taint", lambda: "quarantine:NoSchedule" in fleet.taints("gpu-1"))
        assert not fleet.ready("gpu-1")
        changes = [(line["from"], line["to"]) for line in admitter.lines("transition")]
        assert changes[-1] == ("ready", "quarantined")
        until("the event", lambda: len(api.objects.get("events", {})) == len(changes))


def test_a_pod_that_holds_is_told_and_left_until_its_hold_is_gone(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    def pod(name: str, **annotations: str) -> None:
        metadata = {"namespace": "jobs", "name": name, "uid": f"uid-{name}", "annotations": annotations}
        api.put("pods", {"metadata": metadata, "spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running"}})

    def told() -> dict[str, str]:
        events = [(event["involvedObject"], event["message"]) for event in api.objects.get("events", {}).values()]
        return {about["name"]: message for about, message in events if about["kind"] == "Pod"}

    fleet.provision("gpu-1")
    fleet.register("gpu-1")
    fleet.publish("gpu-1")
    with working(api, tmp_path):
        until("the admission", lambda: fleet.ready("gpu-1"))
        pod("free")
        pod("train", **{NAMES.hold_until: "checkpoint"})
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
        until("the eviction", lambda: "jobs/free" not in api.objects["pods"])
        until("both events", lambda: set(told()) == {"free", "train"})
        assert "is left until its checkpoint, at most to" in told()["train"]
        assert "jobs/train" in api.objects["pods"]
        assert NAMES.leave in api.nodes["gpu-1"]["metadata"]["annotations"]
        pod("train")
        until("its eviction", lambda: "jobs/train" not in api.objects["pods"])
