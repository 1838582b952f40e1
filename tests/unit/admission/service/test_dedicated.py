"""Dedicated nodes as the service brings them about: from configuration to taints, over leaders, and what is short."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.decide.maintenance import BEGUN
from gpu_burnin.admission.jobs_config import JobsConfig, QueueConfig
from gpu_burnin.admission.service import term as terms
from gpu_burnin.admission.service.budgets import Budgets
from gpu_burnin.admission.service.cache import Nodes, Pods, Records
from gpu_burnin.admission.service.dedicated import AGAIN, MOVES_WITHIN, Dedicated
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.names import TEAM_LABEL
from gpu_burnin.api.record import Hardware, Place
from tests.support.admission_helpers import make_node
from tests.support.admitter_helpers import ASK, NAMES, Fleet, Working, until, working
from tests.support.fake_api import FakeApi

MODEL = "h100-sxm5-80gb"
NODES = ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]
EIGHT = Hardware(gpus=8, model=MODEL)


def jobs(**gpus: int) -> JobsConfig:
    queues = {team: QueueConfig() for team in ("audio", "vision")}
    return JobsConfig(queues, {team: {MODEL: count} for team, count in gpus.items()})


def prove(fleet: Fleet, *names: str) -> None:
    """In racks of two."""
    for name in names:
        rack = (int(name.partition("-")[2]) + 1) // 2
        fleet.provision(name, hardware=EIGHT, place=Place(rack=f"r{rack}"))
        fleet.register(name)
        fleet.publish(name)


def a_pod(name: str, node: str) -> dict[str, Any]:
    metadata = {"namespace": "audio", "name": name, "uid": f"u-{name}"}
    containers = [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": containers}, "status": {"phase": "Running"}}


def teams(api: FakeApi) -> dict[str, str]:
    """The team of each Node that has one, where label, taint and record agree on it."""
    found = {}
    for name, node in api.nodes.items():
        label = (node["metadata"].get("labels") or {}).get(TEAM_LABEL, "")
        taints = [t for t in node["spec"].get("taints") or [] if t["key"] == NAMES.team]
        record = (api.objects["nodeadmissions"][name].get("status") or {}).get("team", "")
        if label == record and [t["value"] for t in taints if t["effect"] == "NoSchedule"] == (
            [label] if label else []
        ):
            found |= {name: label} if label else {}
        else:
            found[name] = f"label {label}, taints {taints}, record {record}"
    return found


def figures(admitter: Working) -> list[str]:
    """What the metrics say of teams."""
    page = admitter.service.metrics.text().decode()
    lines = re.findall(
        rf'^muster_admitter_dedicated_gpus(_?\w*){{model="{MODEL}",team="(\w+)"}} (.+)$', page, re.MULTILINE
    )
    return [" ".join(filter(None, (name.strip("_"), team, value))) for name, team, value in lines]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fleet is looked at so often that nobody waits for it."""
    monkeypatch.setattr(terms, "TICK_S", 0.05)
    monkeypatch.setattr(terms, "SCHEDULE_EVERY_S", 0.1)


@pytest.mark.slow
def test_teams_get_nodes_keep_them_over_leaders_and_give_them_back(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    prove(fleet, *NODES)
    settings: dict[str, Any] = {"joins_per_s": 1000, "max_unready_share": 1.0}
    with working(api, tmp_path, jobs=jobs(), **settings):
        until("the admissions", lambda: all(map(fleet.ready, NODES)))
    with working(api, tmp_path, jobs=jobs(audio=16), **settings) as admitter:
        racks = {"gpu-1": "audio", "gpu-2": "audio"}, {"gpu-3": "audio", "gpu-4": "audio"}
        until("the team's rack", lambda: teams(api) in racks)
        given = teams(api)
        lines = admitter.lines("transition")
        assert {line["node"] for line in lines if line["code"] == "DEDICATED"} == set(given)
        until("the figures", lambda: figures(admitter) == ["audio 16.0", "wanted audio 16.0"])
    # The next leader has it from the records: nothing moves, and a Node that is made anew gets its taint back.
    first, second = sorted(given)
    api.put("pods", a_pod("train-0", first))
    fresh = make_node(second)
    fresh["metadata"] |= {"uid": "another", "annotations": api.nodes[second]["metadata"]["annotations"]}
    api.put_node(fresh)
    before = len(api.writes())
    with working(api, tmp_path, jobs=jobs(audio=16), **settings):
        until("its admission", lambda: TEAM_LABEL in (api.nodes[second]["metadata"].get("labels") or {}))
        until("its taint", lambda: fleet.taints(second) == {"team:NoSchedule"})
        assert teams(api) == given
    assert {path for path in api.writes()[before:] if "/nodes/" in path and second not in path} == set()
    # The team is gone: its idle node is given back, the other one once its work has ended.
    with working(api, tmp_path, jobs=jobs(), **settings):
        until("what is idle", lambda: teams(api) == {first: "audio"})
        api.remove("pods", "audio/train-0")
        until("the rest", lambda: teams(api) == {})


@pytest.mark.slow
def test_a_fleet_without_jobs_gives_back_what_teams_had(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    prove(fleet, "gpu-1")
    with working(api, tmp_path, jobs=jobs(audio=8)):
        until("the team's node", lambda: teams(api) == {"gpu-1": "audio"})
    with working(api, tmp_path):
        until("its end", lambda: teams(api) == {})


@pytest.mark.slow
def test_a_shortage_is_told_once_and_so_is_its_end(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    prove(fleet, "gpu-1", "gpu-2")
    api.put("pods", a_pod("train-0", "gpu-2"))
    with working(api, tmp_path, jobs=jobs(audio=16), max_unready_share=1.0) as admitter:
        until("the idle node", lambda: teams(api) == {"gpu-1": "audio"})
        lacks = f"audio lacks 8 of 16 GPUs of {MODEL}: no node is idle and ready, 1 of the model are busy"
        until("the sentence", lambda: any(text.startswith(lacks) for text in admitter.messages()))
        until("the event", lambda: "MusterTeamShort" in str(api.objects.get("events")))
        api.remove("pods", "audio/train-0")
        until("the other node", lambda: teams(api) == {"gpu-1": "audio", "gpu-2": "audio"})
        until("the end", lambda: any("has all GPUs" in text for text in admitter.messages()))
    assert len([text for text in admitter.messages() if "audio lacks 8" in text]) == 1


@pytest.fixture
def dedicated(api: FakeApi, tmp_path: Path) -> Dedicated:
    """Of eight nodes at work, of which audio wants all; at most a quarter at once."""
    records, nodes, pods = Records(NAMES), Nodes(lambda node: node), Pods(NAMES.hold_until)
    for number in range(8):
        name = f"gpu-{number}"
        nodes.put({"metadata": {"name": name, "resourceVersion": "1"}})
        put(records, name, "1")
    budgets = Budgets(records, 5, 0.25, 0.05, lambda fleet: 1)
    metrics = Metrics()
    recorder = EventRecorder(KubeApi(api.kubeconfig(tmp_path / "kubeconfig")), metrics)
    asked: list[str] = []
    return Dedicated(
        {"audio": {MODEL: 64}}, records, nodes, pods, budgets, {}, asked.append, lambda: "", Journal(), recorder
    )


def put(records: Records, name: str, version: str, spec: dict[str, Any] | None = None, **status: Any) -> None:
    hardware = {"gpus": 8, "model": MODEL}
    records.put(
        {
            "metadata": {"name": name, "resourceVersion": version},
            "spec": {"hardware": hardware, **(spec or {})},
            "status": {"state": "ready", "code": "PASS", "accepted": {}, **status},
        }
    )


NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_no_more_move_at_once_than_the_brake_allows_and_none_while_it_is_reached(dedicated: Dedicated) -> None:
    dedicated.choose(NOW)
    assert len(dedicated.moves) == 2
    for number in range(2):
        accepted = {"sequence": 1}
        put(dedicated.records, f"gpu-{7 - number}", "2", state="suspect", code="AGENT_SILENT", accepted=accepted)
    dedicated.moves.clear()
    dedicated.choose(NOW)
    assert dedicated.moves == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "held", "code": "HELD_BY_PERSON"},
        {"state": "testing"},
        {"code": BEGUN},
        {"request": {"id": "x", "level": "quick", "since": "2026-11-22T11:59:00Z", "why": "age"}},
        {"spec": {"hold": ASK}},
    ],
)
def test_what_is_not_idle_and_ready_is_not_chosen(dedicated: Dedicated, changes: dict[str, Any]) -> None:
    for number in range(7):
        put(dedicated.records, f"gpu-{number}", "2", **changes)
    dedicated.choose(NOW)
    assert dedicated.moves == {"gpu-7": "audio"}


def test_busy_and_absent_nodes_are_not_chosen_nor_any_in_a_pause(dedicated: Dedicated) -> None:
    for number in range(6):
        dedicated.pods.put(a_pod(f"train-{number}", f"gpu-{number}"))
    dedicated.nodes.drop("gpu-6")
    dedicated.choose(NOW)
    assert dedicated.moves == {"gpu-7": "audio"}
    dedicated.paused = lambda: "ann: storm"
    dedicated.choose(NOW)
    assert dedicated.moves == {}


def test_what_does_not_move_makes_room_for_others(dedicated: Dedicated) -> None:
    """Something stands in the way of the first two that is seen at these nodes alone."""
    dedicated.choose(NOW)
    first = set(dedicated.moves)
    dedicated.choose(NOW + MOVES_WITHIN / 2)
    assert set(dedicated.moves) == first, "the leader has not come to them yet"
    dedicated.choose(NOW + MOVES_WITHIN)
    second = set(dedicated.moves)
    assert len(first) == len(second) == 2 and not first & second
    for name in second:
        put(dedicated.records, name, "2", team="audio")
    dedicated.wanted = {"audio": {MODEL: 32}}
    dedicated.choose(NOW + MOVES_WITHIN + AGAIN)
    assert set(dedicated.moves) == first


def test_a_fleet_without_teams_has_no_figures(dedicated: Dedicated) -> None:
    dedicated.choose(NOW)
    assert dedicated.shares
    dedicated.wanted = {}
    dedicated.choose(NOW)
    assert (dedicated.shares, dedicated.moves) == ((), {})
    assert replace(dedicated, wanted={"audio": {}}).wanted
