"""The whole agent at work asks the API server for one list and one watch, however long nothing changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.evidence import Statement
from gpu_burnin.node.api import NodeApi
from gpu_burnin.node.watch import serve as agent_at_work
from gpu_burnin.node.watch.agent import Agent
from gpu_burnin.settings.config import Config, PublishConfig
from tests.support.agent_helpers import FakeSystem
from tests.support.clocks import PATIENCE_S
from tests.support.fake_api import FakeApi
from tests.support.report_helpers import HARDWARE, leave_run
from tests.support.tls_pairs import make_pair, server_context

# Three minutes: each takes a second at work.
TICKS = 200
LIST = WATCH = ("GET", "/api/v1/nodes")


class NoGpus:
    """A node whose NVML says nothing."""

    def __init__(self, *_arguments: object) -> None: ...

    def start(self) -> None: ...

    def ask(self) -> None: ...


@pytest.fixture
def api(tmp_path: Path, config: Config) -> Iterator[tuple[FakeApi, Config]]:
    pairs = make_pair(tmp_path, "server"), make_pair(tmp_path, "kubelet")
    made = FakeApi(server_context(*pairs))
    made.put_node({"metadata": {"name": "gpu-1", "annotations": {}}, "spec": {"taints": []}, "status": {}})
    yield made, replace(config, publish=PublishConfig(f"https://127.0.0.1:{made.server.server_port}", *pairs))
    made.close()


def requests_of(
    api: FakeApi, config: Config, root: Path, monkeypatch: pytest.MonkeyPatch, also: Callable[[], object]
) -> list[tuple[str, str]]:
    """What the agent asks for in TICKS of its seconds after its first words are on the Node; `also` is done in each."""
    stop, ticks = threading.Event(), [0]

    class Counted(Agent):
        def tick(self, now_s: float) -> None:
            super().tick(now_s)
            # The first list, watch and write take real time, and are waited for.
            if len(api.requests) >= 3:
                ticks[0] += 1
                also()
            if ticks[0] >= TICKS:
                stop.set()

    made = partial(Counted, root=root, leave=root / "leave.json", kernel=str(HARDWARE["kernel"]))
    for name, stand_in in {"Agent": made, "Gpus": NoGpus, "System": FakeSystem}.items():
        monkeypatch.setattr(agent_at_work, name, stand_in)
    monkeypatch.setattr(agent_at_work, "_follow", lambda *_: stop.wait())
    monkeypatch.setattr(agent_at_work, "_TICK_S", 0.002)
    late = threading.Timer(PATIENCE_S, stop.set)
    late.start()
    agent_at_work.serve(config, lambda *_said: None, stop)
    late.cancel()
    assert ticks[0] >= TICKS
    return [(method, path) for method, path, _ in api.requests]


def test_without_a_server_nobody_is_asked_and_that_is_said_once(
    root: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, said = threading.Event(), list[str]()
    made = partial(Agent, root=root, leave=root / "leave.json", kernel=str(HARDWARE["kernel"]))
    for name, stand_in in {"Agent": made, "Gpus": NoGpus, "System": FakeSystem}.items():
        monkeypatch.setattr(agent_at_work, name, stand_in)
    monkeypatch.setattr(agent_at_work, "_follow", lambda *_: stop.set())
    for way in ("Watcher", "Writer"):
        monkeypatch.setattr(getattr(agent_at_work, way), "run", lambda *_: pytest.fail("the cluster is asked"))
    agent_at_work.serve(replace(config, publish=PublishConfig()), lambda message, *_code: said.append(message), stop)
    assert [message for message in said if "cluster" in message] == [
        "publish.server is not set: no cluster hears of this node"
    ]


def test_three_quiet_minutes_cost_one_list_one_watch_and_one_write(
    api: tuple[FakeApi, Config], root: Path, statement: Statement, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_run(api[1], statement)
    asked = requests_of(*api, root, monkeypatch, lambda: None)
    assert sorted(asked) == sorted([LIST, WATCH, ("PATCH", "/api/v1/nodes/gpu-1")])


def test_one_that_polls_is_found(
    api: tuple[FakeApi, Config], root: Path, statement: Statement, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_run(api[1], statement)
    polls: list[Any] = []

    def poll() -> None:
        if len(polls) < 5:
            polls.append(NodeApi(api[1]).get())

    asked = requests_of(*api, root, monkeypatch, poll)
    assert asked.count(("GET", "/api/v1/nodes/gpu-1")) == 5
