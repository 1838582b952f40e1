"""What is kept of the cluster, and what a change of it is worth a look."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.admission.decide import trim_node
from gpu_burnin.admission.service.cache import Feed, Nodes, Pods, Records, pod_of
from gpu_burnin.api.names import Names
from tests.support.admission_helpers import make_node

HOLD = Names().hold_until


def a_pod(name: str = "job", node: str = "n1", **changes: Any) -> dict[str, Any]:
    """A pod with one GPU on a node."""
    limits = changes.pop("limits", {"nvidia.com/gpu": "1"})
    return {
        "metadata": {
            "namespace": "ml",
            "name": name,
            "uid": name,
            "resourceVersion": "1",
            **changes.pop("metadata", {}),
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": limits}}], **changes.pop("spec", {})},
        "status": {"phase": "Running", **changes.pop("status", {})},
    }


@pytest.mark.parametrize(
    ("limits", "gpus"),
    [
        ({"nvidia.com/gpu": "8"}, 8),
        ({"nvidia.com/mig-1g.10gb": "2"}, 2),
        ({"amd.com/gpu": "1"}, 1),
        ({"gpu.intel.com/i915": "1"}, 1),
        ({"nvidia.com/gpu": "1k"}, 1),
        ({"cpu": "4", "memory": "1Gi", "rdma/hca": "1"}, 0),
    ],
)
def test_gpus_of_a_pod(limits: dict[str, str], gpus: int) -> None:
    assert pod_of(a_pod(limits=limits), HOLD).gpus == gpus


def test_what_a_pod_says() -> None:
    owner = [{"kind": "Job", "name": "train", "controller": True}]
    metadata = {"ownerReferences": owner, "annotations": {HOLD: "checkpoint"}, "deletionTimestamp": "x"}
    pod = pod_of(a_pod(metadata=metadata, status={"phase": "Failed"}), HOLD)
    assert (pod.owner, pod.hold_until, pod.leaving, pod.ended, pod.daemon) == (
        "Job/train",
        "checkpoint",
        True,
        True,
        False,
    )
    containers = [{"resources": {"requests": {"nvidia.com/gpu": "4"}}}]
    assert pod_of(a_pod(limits={}, spec={"initContainers": containers}), HOLD).gpus == 4
    assert pod_of(a_pod(limits={}, spec={"resourceClaims": [{"name": "gpu"}]}), HOLD).gpus == 1


def test_pods_by_node() -> None:
    pods = Pods(HOLD)
    daemon = {"ownerReferences": [{"kind": "DaemonSet", "name": "agent", "controller": True}]}
    assert pods.put(a_pod()) == "n1"
    assert pods.put(a_pod()) == ""
    assert pods.put(a_pod("agent", limits={}, metadata=daemon)) == ""
    assert pods.put(a_pod("exporter", metadata=daemon)) == "n1"
    assert [pod.name for pod in pods.on("n1")] == ["job", "exporter"] and not pods.idle("n1")
    assert pods.put(a_pod(status={"phase": "Succeeded"})) == "n1"
    assert pods.drop("ml/exporter") == "n1"
    assert pods.idle("n1") and pods.known() == {"ml/job"}


def test_a_list_takes_away_what_is_not_in_it_and_may_be_older() -> None:
    nodes, looked = Nodes(trim_node), []  # type: ignore[var-annotated]
    feed = Feed(nodes, looked.append)
    for name in ("a", "b"):
        feed.put({**make_node(name), "metadata": {"name": name, "resourceVersion": "50"}})
    looked.clear()
    # A watch that is late, and then an etcd that was restored.
    feed.put({**make_node("a", boot="late"), "metadata": {"name": "a", "resourceVersion": "49"}})
    assert looked == []
    feed.begin()
    feed.put({**make_node("a", boot="restored"), "metadata": {"name": "a", "resourceVersion": "30"}})
    feed.end()
    node = nodes.get("a")
    assert looked == ["a", "b"] and nodes.known() == {"a"}
    assert node is not None and node["status"]["nodeInfo"]["bootID"] == "restored"
    assert node["metadata"]["resourceVersion"] == "30"


def test_a_record_that_is_not_understood_is_kept_and_told_when_it_is_looked_at() -> None:
    records = Records(Names())
    odd = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": {}, "status": {"state": "odd", "use": "x"}}
    assert records.put(odd) == "a"
    assert records.summaries["a"].state == "new" and records.summaries["a"].use is None


def test_the_boot_of_a_node_is_that_of_its_newest_version() -> None:
    nodes = Nodes(trim_node)
    for version, boot in (("7", "b-1"), ("9", "b-2"), ("8", "late")):
        node = make_node(boot=boot)
        nodes.put({**node, "metadata": {**node["metadata"], "resourceVersion": version}})
    name = node["metadata"]["name"]
    assert nodes.boot_of(name) == "b-2"
    nodes.drop(name)
    assert nodes.boot_of(name) is None


def test_an_object_that_is_known_is_not_packed_again() -> None:
    """The watch brings each of our own writes once more."""
    trimmed: list[str] = []

    def trim(node: Any) -> Any:
        trimmed.append(node["metadata"]["resourceVersion"])
        return node

    nodes = Nodes(trim)
    for version in ("5", "5", "4", "6"):
        nodes.put({"metadata": {"name": "n1", "resourceVersion": version}})
    assert trimmed == ["5", "6"]


@pytest.mark.parametrize("late", [True, False], ids=["answer after the watch", "answer before the watch"])
def test_what_was_written_is_not_looked_at_for_it(late: bool) -> None:
    """A write of ours has two versions: the Node's, whose answer is not kept, and its status'."""
    nodes = Nodes(lambda node: node)
    looked: list[str] = []
    feed = Feed(nodes, looked.append)

    def node(version: int) -> dict[str, Any]:
        return {"metadata": {"name": "n1", "resourceVersion": str(version)}, "spec": {"of": version}}

    feed.put(node(5))
    looked.clear()
    nodes.begin_writing("n1")
    feed.put(node(6))
    if late:
        feed.put(node(7))
    nodes.wrote(node(7))
    assert not nodes.end_writing("n1")
    feed.put(node(7))
    assert looked == []
    feed.put(node(8))
    assert looked == ["n1"]


@pytest.mark.parametrize("wrote", [True, False])
def test_what_others_write_meanwhile_is_looked_at(wrote: bool) -> None:
    nodes = Nodes(lambda node: node)
    looked: list[str] = []
    feed = Feed(nodes, looked.append)
    feed.put({"metadata": {"name": "n1", "resourceVersion": "5"}})
    looked.clear()
    nodes.begin_writing("n1")
    feed.put({"metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {"foreign": True}})
    if wrote:
        nodes.wrote({"metadata": {"name": "n1", "resourceVersion": "6"}})
    assert looked == [] and nodes.end_writing("n1")
    # An etcd that was restored is no echo of a write, whatever its versions.
    nodes.begin_writing("n1")
    feed.begin()
    feed.put({"metadata": {"name": "n1", "resourceVersion": "3"}, "spec": {}})
    feed.end()
    assert looked == ["n1"]
