"""The own Node over TLS: the client, the agent's watch and writes, and the gate towards the cluster."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.agent_note import AgentNote, Maintenance, note_text, read_note
from gpu_burnin.api.heartbeat import Heartbeat
from gpu_burnin.node.api import ApiRefused, NodeApi, NotYet
from gpu_burnin.node.cluster_gate import ClusterGateClosed, check_cluster
from gpu_burnin.node.watch.cluster import Backoff, Watcher, Writer
from gpu_burnin.settings.config import Config, PublishConfig
from tests.support.clocks import PATIENCE_S, HandClock, wait_until
from tests.support.fake_api import FakeApi, Refused, refusing
from tests.support.report_helpers import BOOT
from tests.support.tls_pairs import make_pair, server_context

OTHER_BOOT = "99999999-2222-3333-4444-555555555555"
PREFLIGHT = [{"key": "muster.dev/preflight", "effect": effect} for effect in ("NoSchedule", "NoExecute")]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("pki")
    return make_pair(directory, "server"), make_pair(directory, "kubelet")


@pytest.fixture
def api(pairs: tuple[Path, Path]) -> Iterator[FakeApi]:
    made = FakeApi(server_context(*pairs))
    yield made
    made.close()


@pytest.fixture
def config(config: Config, api: FakeApi, pairs: tuple[Path, Path]) -> Config:
    return replace(config, publish=PublishConfig(f"https://127.0.0.1:{api.server.server_port}", *pairs))


def put(api: FakeApi, *, boot: str = BOOT, taints: Any = (), name: str = "gpu-1", **annotations: str) -> None:
    named = {f"muster.dev/{key}": value for key, value in annotations.items()}
    api.put_node(
        {
            "metadata": {"name": name, "annotations": named},
            "spec": {"taints": list(taints)},
            "status": {"nodeInfo": {"bootID": boot}},
        }
    )


def agent_note(api: FakeApi) -> AgentNote | None:
    text = api.nodes["gpu-1"]["metadata"]["annotations"].get("muster.dev/agent")
    return None if text is None else read_note(text)


class TestClient:
    def test_annotations_are_set_and_removed_and_others_kept(self, api: FakeApi, config: Config) -> None:
        put(api, evidence="old", other="kept")
        NodeApi(config).annotate({"muster.dev/evidence": None, "muster.dev/agent": "new"})
        assert NodeApi(config).get()["metadata"]["annotations"] == {
            "muster.dev/other": "kept",
            "muster.dev/agent": "new",
        }

    def test_only_the_own_node_is_listed_and_watched(self, api: FakeApi, config: Config) -> None:
        put(api)
        put(api, name="gpu-2")
        client = NodeApi(config)
        found = client.listed()
        assert found.node is not None and found.node["metadata"]["name"] == "gpu-1"
        put(api, name="gpu-2", request="theirs")
        put(api, request="ours")
        changes = client.watch(found.version, 5.0)
        change = next(changes)
        assert change.node is not None and change.node["metadata"]["annotations"] == {"muster.dev/request": "ours"}
        api.remove("nodes", "gpu-1")
        assert next(changes).node is None
        assert client.listed().node is None

    def test_a_bookmark_is_no_node(self, api: FakeApi, config: Config) -> None:
        put(api)
        api.bookmark_s = 0.05
        client = NodeApi(config)
        version = client.listed().version
        change = threading.Timer(0.3, lambda: put(api, request="ours"))
        change.start()
        found = next(client.watch(version, 5.0))
        assert found.node is not None and found.node["metadata"]["annotations"] == {"muster.dev/request": "ours"}

    @pytest.mark.parametrize(("status", "kind"), [(403, ApiRefused), (401, ApiRefused), (404, NotYet), (503, NotYet)])
    def test_refusals_are_final_or_may_pass(
        self, status: int, kind: type[Exception], api: FakeApi, config: Config
    ) -> None:
        api.before_read = refusing(status, "no")
        for ask in (NodeApi(config).get, NodeApi(config).listed, lambda: next(NodeApi(config).watch("1", 1.0))):
            with pytest.raises(kind) as caught:
                ask()
            assert caught.value.status == status  # type: ignore[attr-defined]


class TestHeartbeat:
    BEAT = Heartbeat(BOOT, "2026-11-27T02:00:00.000Z", "2026-11-27T03:00:00.000Z")

    def test_the_first_makes_the_object_and_the_next_are_one_patch_each(self, api: FakeApi, config: Config) -> None:
        client = NodeApi(config)
        client.renew(self.BEAT)
        client.renew(replace(self.BEAT, renew_time="2026-11-27T03:01:00.000Z"))
        path = "/apis/muster.dev/v1/agentheartbeats"
        asked = [(method, where) for method, where, _ in api.requests]
        assert asked == [("PATCH", f"{path}/gpu-1"), ("POST", path), ("PATCH", f"{path}/gpu-1")]
        kept = api.objects["agentheartbeats"]["gpu-1"]
        assert (kept["kind"], kept["spec"]["bootID"]) == ("AgentHeartbeat", BOOT)
        assert kept["spec"]["renewTime"] == "2026-11-27T03:01:00.000Z"

    @pytest.mark.parametrize(("status", "kind"), [(403, ApiRefused), (404, NotYet), (503, NotYet)])
    def test_a_refusal_says_of_what(self, status: int, kind: type[Exception], api: FakeApi, config: Config) -> None:
        api.before_write = refusing(status, "no")
        with pytest.raises(kind, match="AgentHeartbeat") as caught:
            NodeApi(config).renew(self.BEAT)
        assert caught.value.status == status  # type: ignore[attr-defined]


@dataclass
class Heard:
    """What a watcher tells."""

    nodes: list[Any] = field(default_factory=list)
    troubles: list[tuple[str, bool]] = field(default_factory=list)

    def watcher(self, config: Config) -> Watcher:
        return Watcher(
            NodeApi(config), self.nodes.append, lambda *trouble: self.troubles.append(trouble), random.Random(1)
        )


def request_of(node: Any) -> str:
    return str((node["metadata"]["annotations"] or {}).get("muster.dev/request"))


class TestWatcher:
    @pytest.mark.slow
    def test_a_cut_watch_goes_on_also_with_a_cluster_that_was_restored(self, api: FakeApi, config: Config) -> None:
        """Its versions count from an older one: a watch from the newer would hear nothing until they catch up."""
        put(api)
        heard, watching = Heard(), 0
        watcher = heard.watcher(config)

        def asks(*, again: bool) -> None:
            nonlocal watching
            # List and watch have one path: each second request is a watch.
            wait_until(lambda: len(api.requests) == watching + 2 * again)
            watching = len(api.requests)

        stop = threading.Event()
        thread = threading.Thread(target=watcher.run, args=(stop,), daemon=True)
        thread.start()
        asks(again=True)
        put(api, request="one")
        wait_until(lambda: request_of(heard.nodes[-1]) == "one")
        api.restore(7, **{"muster.dev/request": "of the backup"})
        asks(again=True)
        assert request_of(heard.nodes[-1]) == "of the backup"
        put(api, request="two")
        wait_until(lambda: request_of(heard.nodes[-1]) == "two")
        asks(again=False)
        stop.set()
        api.cut_watches()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert heard.troubles == []

    def test_a_version_that_is_too_old_is_listed_again_without_a_word(self, api: FakeApi, config: Config) -> None:
        put(api)
        heard = Heard()
        watcher = heard.watcher(config)
        api.oldest = 10_000
        assert watcher.once() < 1.0
        assert heard.troubles == []
        assert [node["metadata"]["name"] for node in heard.nodes] == ["gpu-1"]

    def test_a_server_that_lists_and_refuses_to_watch_is_not_hurried(self, api: FakeApi, config: Config) -> None:
        heard, asked = Heard(), 0
        watcher = heard.watcher(config)

        def refuse_watches(path: str) -> None:
            nonlocal asked
            asked += 1
            if asked % 2 == 0:
                raise Refused(503, "overloaded")

        api.before_read = refuse_watches
        waits = [watcher.once() for _ in range(4)]
        assert waits == sorted(waits) and waits[-1] >= 4.0
        assert heard.nodes == [None] * 4 and len(heard.troubles) == 4

    def test_without_certificate_it_waits_in_peace(self, config: Config, tmp_path: Path) -> None:
        bare = replace(config, publish=replace(config.publish, client_cert=tmp_path / "none.pem"))
        heard = Heard()
        assert heard.watcher(bare).once() > 0.0
        assert [certificate for _, certificate in heard.troubles] == [False]


class TestWriter:
    def writer(self, config: Config, troubles: list[str]) -> Writer:
        return Writer(NodeApi(config), lambda why, _: troubles.append(why), random.Random(1))

    def test_it_writes_what_differs_and_nothing_else(self, api: FakeApi, config: Config) -> None:
        put(api, agent="same")
        writer = self.writer(config, [])
        writer.want({"muster.dev/agent": "same", "muster.dev/evidence": "new"})
        assert writer.missing() == {}, "nothing is known of the Node yet"
        writer.found(api.nodes["gpu-1"])
        assert writer.once()
        assert api.bodies[-1][1] == {"metadata": {"annotations": {"muster.dev/evidence": "new"}}}
        assert writer.missing() == {}
        writer.once()
        assert len(api.writes()) == 1

    def test_what_somebody_else_changed_is_put_right(self, api: FakeApi, config: Config) -> None:
        put(api)
        writer = self.writer(config, [])
        writer.want({"muster.dev/agent": "mine"})
        writer.found(api.nodes["gpu-1"])
        writer.once()
        put(api, agent="theirs")
        writer.found(api.nodes["gpu-1"])
        writer.once()
        assert api.nodes["gpu-1"]["metadata"]["annotations"]["muster.dev/agent"] == "mine"

    def test_a_server_that_refuses_is_asked_again_later(self, api: FakeApi, config: Config) -> None:
        put(api)
        troubles: list[str] = []
        writer = self.writer(config, troubles)
        writer.want({"muster.dev/agent": "mine"})
        writer.found(api.nodes["gpu-1"])

        api.before_write = refusing(503, "overloaded")
        assert not writer.once()
        assert "overloaded" in troubles[0]
        api.before_write = lambda path: None
        assert writer.once()

    def test_waits_grow_to_a_bound_and_differ(self) -> None:
        backoff = Backoff(random.Random(1))
        waits = [backoff.next_s() for _ in range(12)]
        assert waits[0] <= 1.0
        assert all(30.0 <= wait <= 60.0 for wait in waits[8:])
        assert len(set(waits[8:])) == 4
        backoff.good()
        assert backoff.next_s() <= 1.0


class Clock(HandClock):
    """`then` is done at the first sleep."""

    def __init__(self, then: Any = None) -> None:
        super().__init__()
        self.then = then

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if self.then:
            self.then()


class TestClusterGate:
    def ask(self, config: Config, root: Path, tmp_path: Path, clock: Clock | None = None) -> str:
        clock = clock or Clock()
        return check_cluster(config, 5.0, root, tmp_path / "run" / "cluster-knows", clock, clock.sleep)

    @pytest.mark.parametrize(
        ("boot", "taints", "says"),
        [
            (BOOT, (), "knows of boot"),
            (OTHER_BOOT, PREFLIGHT, "tainted"),
            ("", (), "never reported"),
        ],
    )
    def test_it_opens_where_no_pod_can_start_unknown(
        self, boot: str, taints: Any, says: str, api: FakeApi, config: Config, root: Path, tmp_path: Path
    ) -> None:
        put(api, boot=boot, taints=taints)
        assert says in self.ask(config, root, tmp_path)
        assert api.writes() == []

    @pytest.mark.parametrize("taints", [(), PREFLIGHT[:1]])
    def test_it_stays_closed_in_a_boot_that_the_cluster_does_not_know(
        self, taints: Any, api: FakeApi, config: Config, root: Path, tmp_path: Path
    ) -> None:
        put(api, boot=OTHER_BOOT, taints=taints)
        with pytest.raises(ClusterGateClosed, match="has not tainted the Node") as caught:
            self.ask(config, root, tmp_path)
        assert caught.value.exit_code == 1
        note = agent_note(api)
        assert note is not None and note.boot_id == BOOT, "the admitter hears of the boot"
        assert len(api.writes()) == 1, "once is enough"

    def test_it_opens_when_the_taint_comes(self, api: FakeApi, config: Config, root: Path, tmp_path: Path) -> None:
        window = Maintenance("azure", "scheduled")
        put(api, boot=OTHER_BOOT, agent=note_text(AgentNote(OTHER_BOOT, maintenance=window)))

        def taint() -> None:
            note = agent_note(api)
            assert note is not None and (note.boot_id, note.maintenance) == (BOOT, window)
            put(api, boot=OTHER_BOOT, taints=PREFLIGHT)

        assert "tainted" in self.ask(config, root, tmp_path, Clock(taint))
        api.close()
        assert "knows" in self.ask(config, root, tmp_path), "a kubelet that is restarted in this boot asks nobody"

    def test_what_was_known_of_another_boot_does_not_count(
        self, api: FakeApi, config: Config, root: Path, tmp_path: Path
    ) -> None:
        put(api)
        self.ask(config, root, tmp_path)
        (root / "proc/sys/kernel/random/boot_id").write_text(OTHER_BOOT + "\n")
        with pytest.raises(ClusterGateClosed):
            self.ask(config, root, tmp_path)

    def test_a_node_that_is_not_known_may_start(self, api: FakeApi, config: Config, root: Path, tmp_path: Path) -> None:
        assert "no Node" in self.ask(config, root, tmp_path)
        bare = replace(config, publish=replace(config.publish, client_cert=tmp_path / "none.pem"))
        assert "no certificate" in self.ask(bare, root, tmp_path)

    @pytest.mark.parametrize(("status", "opens"), [(401, True), (403, False)])
    def test_kubelet_may_start_to_replace_a_certificate_that_is_not_taken(
        self, status: int, opens: bool, api: FakeApi, config: Config, root: Path, tmp_path: Path
    ) -> None:
        put(api, boot=OTHER_BOOT)
        api.before_read = refusing(status, "no")
        if opens:
            assert "does not take kubelet's certificate" in self.ask(config, root, tmp_path)
            api.before_read = lambda path: None
        with pytest.raises((ClusterGateClosed, ApiRefused)):
            self.ask(config, root, tmp_path)

    def test_a_cluster_that_does_not_answer_keeps_it_closed(
        self, api: FakeApi, config: Config, root: Path, tmp_path: Path
    ) -> None:
        put(api)
        api.close()
        with pytest.raises(ClusterGateClosed, match="does not answer"):
            self.ask(config, root, tmp_path)

    def test_a_broken_note_is_replaced(self, api: FakeApi, config: Config, root: Path, tmp_path: Path) -> None:
        put(api, boot=OTHER_BOOT, agent="{")
        with pytest.raises(ClusterGateClosed):
            self.ask(config, root, tmp_path)
        note = agent_note(api)
        assert note is not None and note.boot_id == BOOT
