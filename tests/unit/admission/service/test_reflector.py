"""List and watch: what the cache has is what the cluster has, through cuts, too old versions and outages."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_burnin.admission.client import NODES, KubeApi
from gpu_burnin.admission.service.cache import Feed, Nodes
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.reflector import Reflector
from tests.support.admission_helpers import make_node
from tests.support.fake_api import FakeApi, Refused


@dataclass
class Running:
    """A reflector of nodes at work; `looked` are the names that were said to have changed, `said` its sentences."""

    reflector: Reflector
    store: Nodes
    looked: list[str]
    said: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def until(self, *names: str) -> None:
        """Wait until exactly these names have been told since the last call."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.looked) >= len(names), 10), self.looked
            assert sorted(self.looked) == sorted(names)
            self.looked.clear()


@pytest.fixture
def running(api: FakeApi, tmp_path: Path) -> Iterator[Running]:
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"), retries=0)
    store, looked = Nodes(lambda node: node), []  # type: ignore[var-annotated]
    found = Running(
        Reflector(kube, NODES, "nodes", Feed(store, lambda name: look(name)), lambda text: say(text), Metrics()),
        store,
        looked,
    )
    found.reflector.wait = lambda seconds: None

    def look(name: str) -> None:
        with found.changed:
            looked.append(name)
            found.changed.notify_all()

    def say(text: str) -> None:
        with found.changed:
            found.said.append(text)
            found.changed.notify_all()

    api.page = 2
    for name in ("a", "b", "c"):
        api.put_node(make_node(name))
    thread = threading.Thread(target=found.reflector.run, daemon=True)
    thread.start()
    found.until("a", "b", "c")
    assert found.reflector.synced.wait(10)
    yield found
    found.reflector.stop()
    kube.hang_up()
    thread.join(10)
    assert not thread.is_alive()


def test_changes_come_and_what_does_not_matter_does_not(api: FakeApi, running: Running) -> None:
    api.put_node(make_node("a"))
    api.put_node(make_node("b", boot="other"))
    api.remove("nodes", "c")
    api.put_node(make_node("d"))
    running.until("b", "c", "d")
    assert running.store.known() == {"a", "b", "d"}
    node = running.store.get("a")
    assert node is not None and node["metadata"]["resourceVersion"] == api.nodes["a"]["metadata"]["resourceVersion"]


def test_a_cut_watch_goes_on_from_where_it_was(api: FakeApi, running: Running) -> None:
    api.cut_watches()
    api.put_node(make_node("b", boot="other"))
    running.until("b")
    assert running.reflector.metrics.value("lists", resource="nodes") == 1


def test_a_cluster_that_was_restored_is_listed_anew_and_believed(api: FakeApi, running: Running) -> None:
    """Else a watch from the version of before would hear nothing until the cluster has caught up."""
    api.put_node(make_node("b", boot="other"))
    running.until("b")
    api.restore(7, note="of the backup")
    running.until("a", "b", "c")
    node = running.store.get("a")
    assert node is not None and node["metadata"]["annotations"] == {"note": "of the backup"}
    assert len(running.said) == 1 and "its etcd was restored to an older state" in running.said[0]
    api.put_node(make_node("c", boot="newer"))
    running.until("c")
    assert running.reflector.metrics.value("lists", resource="nodes") == 2


def test_a_version_that_is_too_old_has_it_list_again(api: FakeApi, running: Running) -> None:
    with api._changed:
        api.objects["nodes"].pop("a")
        api.version += 10
        api.oldest = api.version
    api.cut_watches()
    running.until("a")
    assert running.reflector.metrics.value("lists", resource="nodes") == 2 and running.store.known() == {"b", "c"}


def test_an_outage_is_told_once_and_its_end(api: FakeApi, running: Running) -> None:
    refusals = 5

    def away(path: str) -> None:
        nonlocal refusals
        refusals -= 1
        if refusals >= 0:
            raise Refused(503, f"the server is unavailable ({refusals})")

    api.before_read = away
    api.cut_watches()
    with running.changed:
        assert running.changed.wait_for(lambda: running.said, 10)
    api.put_node(make_node("a", boot="other"))
    running.until("a")
    assert len(running.said) == 2 and "unavailable" in running.said[0] and running.said[1].endswith("answers again")
    assert running.reflector.metrics.value("watch_restarts", resource="nodes") >= 4


def test_an_object_that_cannot_be_taken_in_ends_nothing(api: FakeApi, running: Running) -> None:
    api.put_node({"metadata": {"name": "e"}, "spec": None, "status": {}})
    api._changes.append((api.version + 1, "nodes", "ADDED", {"metadata": {}}))
    api.put_node(make_node("a", boot="other"))
    running.until("a", "e")
    assert "cannot be read" in running.said[0]


def test_a_missing_resource_says_what_brings_it(api: FakeApi, kube: KubeApi) -> None:
    api.unknown.add("nodeadmissions")
    said: list[str] = []
    reflector = Reflector(
        kube,
        "/apis/muster.dev/v1/nodeadmissions",
        "NodeAdmissions",
        Feed(Nodes(dict), lambda name: None),
        said.append,
        Metrics(),
        missing="the CRD is missing; run site.yml",
    )
    reflector.wait = lambda seconds: reflector.stop()
    reflector.run()
    assert [text.partition(";")[0] for text in said] == ["the CRD is missing"]
