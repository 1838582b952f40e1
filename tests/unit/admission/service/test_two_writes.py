"""Between the ledger's write and the Node's a leader may die or be stopped: what the next one makes of it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import Conflict, KubeApi, node_path
from gpu_burnin.api.names import PAUSE, SYSTEM_NAMESPACE
from tests.support.admitter_helpers import ASK, NAMES, Fleet, Working, until, working
from tests.support.fake_api import FakeApi

NODE, RECORD = "/api/v1/nodes/gpu-1", "/apis/muster.dev/v1/nodeadmissions/gpu-1"


@pytest.fixture
def shut(api: FakeApi, fleet: Fleet, tmp_path: Path) -> dict[str, Any]:
    """A node whose ledger says `ready`, and that was never opened: the leader died between its two writes."""
    fleet.prove("gpu-1")
    before = copy.deepcopy(api.nodes["gpu-1"])
    with working(api, tmp_path, "first"):
        until("the admission", lambda: fleet.ready("gpu-1"))
    api.put_node(before)
    api.bodies.clear()
    return before


def test_the_next_leader_ends_what_was_begun(api: FakeApi, fleet: Fleet, shut: dict[str, Any], tmp_path: Path) -> None:
    with working(api, tmp_path, "second"):
        until("the admission", lambda: fleet.ready("gpu-1"))
    # The ledger says it already, so it was asked whether it still does.
    assert ("GET", RECORD) in [(method, path) for method, path, _ in api.requests]


def test_a_hold_that_came_between_is_seen_before_the_node_is_opened(
    api: FakeApi, fleet: Fleet, shut: dict[str, Any], tmp_path: Path
) -> None:
    opened: list[str] = []

    def hold(path: str) -> None:
        if path == RECORD and not opened:
            opened.append("asked")
            fleet.ask("gpu-1", hold=ASK)

    api.before_read = hold
    with working(api, tmp_path, "second"):
        until("the hold", lambda: fleet.status("gpu-1")["state"] == "held")
    assert opened and "preflight:NoSchedule" in fleet.taints("gpu-1")
    patches = [body for path, body in api.bodies if path == NODE]
    assert not any("preflight" not in str(op) for body in patches for op in body if op["path"] == "/spec/taints")


def test_the_patch_of_a_leader_that_wakes_meets_a_conflict(
    api: FakeApi, fleet: Fleet, shut: dict[str, Any], kube: KubeApi, tmp_path: Path
) -> None:
    """Nothing but the Node's version keeps it out: the next leader has changed it before it wrote `held`."""
    late = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": api.nodes["gpu-1"]["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/spec/taints", "value": []},
    ]
    fleet.ask("gpu-1", hold=ASK)
    with working(api, tmp_path, "second"):
        until("the hold", lambda: fleet.status("gpu-1")["state"] == "held")
        written = [path for path, _ in api.bodies if path in (NODE, f"{RECORD}/status")]
        assert written[0] == NODE
        with pytest.raises(Conflict):
            kube.patch(node_path("gpu-1"), late)
    assert "fenced" in api.nodes["gpu-1"]["metadata"]["annotations"][NAMES.admitted]


def test_a_pause_keeps_no_leader_from_keeping_a_node_out(
    api: FakeApi, fleet: Fleet, shut: dict[str, Any], tmp_path: Path
) -> None:
    pause: dict[str, Any] = {"metadata": {"namespace": SYSTEM_NAMESPACE, "name": PAUSE}}
    api.put("configmaps", {**pause, "data": {"who": "ada", "why": "power work", "until": ""}})
    fleet.ask("gpu-1", hold=ASK)
    with working(api, tmp_path, "second"):
        until("the hold", lambda: fleet.status("gpu-1")["state"] == "held")
        fleet.ask("gpu-1", hold=None)
        until("what waits", lambda: "power work" in str(fleet.status("gpu-1").get("next")))
        assert "preflight:NoSchedule" in fleet.taints("gpu-1")
        api.remove("configmaps", f"{SYSTEM_NAMESPACE}/{PAUSE}")
        until("the way back", lambda: fleet.status("gpu-1")["state"] == "ready")


def test_a_hold_that_comes_while_the_node_is_written_is_looked_at_next(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    """The watch brings it before the write is over, when what it says of this node is most often that write itself."""
    fleet.provision("gpu-1")
    fleet.register("gpu-1")
    fleet.publish("gpu-1")
    asked: list[str] = []
    with working(api, tmp_path) as admitter:

        def hold(path: str) -> None:
            if path != f"{NODE}/status" or asked:
                return
            asked.append(path)
            fleet.ask("gpu-1", hold=ASK)
            until("the watch", lambda: held_in_cache(admitter))

        api.before_write = hold
        until("the taint", lambda: asked and "preflight:NoSchedule" in fleet.taints("gpu-1"))
    assert fleet.status("gpu-1")["state"] == "held"


def held_in_cache(admitter: Working) -> bool:
    term = admitter.service.term
    record = term.records.get("gpu-1") if term is not None else None
    return record is not None and record.spec.hold is not None
