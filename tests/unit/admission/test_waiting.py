"""Waiting for nodes that the admitter lets in one after the other: its pace is no failure of theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission import waiting
from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.decide.outlook import waits_for
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.names import READY_LABEL, Names
from tests.support.admission_helpers import make_node
from tests.support.fake_api import FakeApi

NODES = ("gpu-1", "gpu-2", "gpu-3")
WAIT_S = 120.0
QUEUED = {"what": "let in", "why": "nodes are let in at 5 a second, and others are before it", "at": ""}


def entry(name: str, status: dict[str, Any]) -> dict[str, Any]:
    message = f"{name}: passed; it waits to be let in"
    seen = {"state": "new", "since": "2026-11-21T11:00:00Z", "code": "PASS", "message": message}
    spec = {
        "identity": {"hostKey": "ssh-ed25519 AAAA", "addresses": ["10.0.0.1"]},
        "hardware": {"gpus": 8},
        "evidence": {"level": "standard", "maxAgeSeconds": 604800.0},
    }
    return {"metadata": {"name": name}, "spec": spec, "status": {**seen, **status}}


class Admitter:
    """Lets in a node of the queue each `every_s`, and stops after `most`. Its time is that of who waits."""

    def __init__(self, api: FakeApi, every_s: float, most: int, names: tuple[str, ...] = NODES) -> None:
        self.api, self.every_s, self.queue, self.now_s = api, every_s, list(names[:most]), 0.0
        api.objects["nodeadmissions"] = {name: entry(name, {"next": QUEUED}) for name in names}
        for name in names:
            api.put_node(make_node(name))

    def sleep(self, seconds: float) -> None:
        before, self.now_s = self.now_s, self.now_s + seconds
        if self.now_s // self.every_s > before // self.every_s and self.queue:
            name = self.queue.pop(0)
            self.api.objects["nodeadmissions"][name] = entry(name, {"state": "ready"})
            node = make_node(name, labels={READY_LABEL: "true"})
            node["spec"]["taints"] = []
            self.api.put_node(node)

    def waited_for(self, folder: Path, *others: str) -> tuple[dict[str, str], dict[str, str]]:
        """How each node stands, and what is missing."""
        expect = [*self.api.objects["nodeadmissions"], *others]
        api = KubeApi(self.api.kubeconfig(folder / "kubeconfig"))
        found, missing = waiting.wait_for(
            api, Names(), expect, {}, expect, WAIT_S, clock=lambda: self.now_s, sleep=self.sleep
        )
        return {one.name: one.state for one in found}, missing


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "POLL_S", 25.0)


def test_the_queue_is_what_the_pace_of_the_admitter_makes() -> None:
    assert waits_for("gpu-1", "", Budget.JOIN, QUEUED["why"], opens=False) == (QUEUED["what"], QUEUED["why"])


def test_nodes_that_wait_for_their_turn_are_waited_for_while_turns_go_on(api: FakeApi, tmp_path: Path) -> None:
    admitter = Admitter(api, every_s=100, most=3)
    found, missing = admitter.waited_for(tmp_path)
    assert (found, missing) == (dict.fromkeys(NODES, "ready"), {})
    assert admitter.now_s > 2 * WAIT_S


def test_a_queue_that_stands_still_is_told_after_the_time_without_a_turn(api: FakeApi, tmp_path: Path) -> None:
    admitter = Admitter(api, every_s=100, most=1)
    found, missing = admitter.waited_for(tmp_path)
    assert found["gpu-1"] == "ready" and list(missing) == ["gpu-2", "gpu-3"]
    assert (
        "next: let in (nodes are let in at 5 a second" in missing["gpu-2"] and "no admitter leads" in missing["gpu-2"]
    )
    assert 100 + WAIT_S <= admitter.now_s < 100 + WAIT_S + 2 * 25


def test_a_node_that_never_came_is_told_when_the_queue_is_over(api: FakeApi, tmp_path: Path) -> None:
    admitter = Admitter(api, every_s=50, most=2, names=NODES[:2])
    found, missing = admitter.waited_for(tmp_path, "gpu-9")
    assert found["gpu-2"] == "ready" and list(missing) == ["gpu-9"]
    assert admitter.now_s < 100 + WAIT_S + 2 * 25


def test_a_look_that_takes_long_is_not_begun_again_at_once(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitter, sleeps = Admitter(api, every_s=1000, most=0), list[float]()
    read = waiting.read

    def slowly(*args: Any) -> Any:
        admitter.now_s += 60
        return read(*args)

    monkeypatch.setattr(waiting, "read", slowly)
    monkeypatch.setattr(admitter, "sleep", sleeps.append)
    admitter.waited_for(tmp_path)
    assert sleeps == [60.0]
