"""A real etcd of three members under a writer goes from 3.6 to 3.7 and down again: no acknowledged write is lost.

Only here: two minors of etcd form one cluster, on the way up, on the way down and in the middle.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.etcd.minor import Action, Members, prepare
from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import ask

from gpu_burnin.fleet.mirror.programs import ETCD_VERSION
from tests.lab.binaries import NEXT_ETCD, NEXT_ETCD_VERSION

from .etcd_cluster import NO_TOOLS, Cluster, etcd_cluster, healthy, tool, tools
from .etcd_writer import written
from .kube import until

OLD, NEW = ETCD_VERSION, NEXT_ETCD_VERSION


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not tools() or not tool(NEXT_ETCD).exists():
        pytest.skip(NO_TOOLS)
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as made:
        yield made


def members(cluster: Cluster) -> Members:
    return Members(cluster.apis(5.0))


def reported(cluster: Cluster, what: str) -> set[str]:
    """What the members say of themselves."""
    return {str(api("/version")[what]) for api in members(cluster).apis.values()}


def change(cluster: Cluster, version: str, only: tuple[str, ...] = ()) -> list[Action]:
    """As the playbook does: have the cluster accept the minor, then another binary on one member after the other."""
    done = []
    binary = {OLD: tool("etcd"), NEW: tool(NEXT_ETCD)}[version]
    for name in only or tuple(cluster.clients):
        done.append(prepare(members(cluster), version.rpartition(".")[0], 60))
        part = cluster.parts[name]
        assert part.running is not None
        part.running.terminate()
        part.running.wait()
        part.command = [str(binary), *part.command[1:]]
        part.start()
        healthy(cluster)
    return done


def wait_for(cluster: Cluster, minor: str) -> None:
    """The leader looks at the members' versions every few seconds."""
    until(f"the cluster's version {minor}", lambda: reported(cluster, "etcdcluster") == {f"{minor}.0"}, 60)


def test_the_binaries_are_what_they_are_called() -> None:
    if not tools():
        pytest.skip(NO_TOOLS)
    assert (str(ask(tool("etcd"))), str(ask(Path(tool(NEXT_ETCD))))) == (OLD, NEW)


def test_up_and_down_again_under_a_writer(cluster: Cluster) -> None:
    with written(cluster) as writer:
        assert change(cluster, NEW) == [Action.NONE] * 3
        wait_for(cluster, "3.7")
        up = len(writer.acknowledged)
        assert reported(cluster, "etcdserver") == {NEW}
        healths = {name: etcd_api.probe(url, cluster.api_credentials, []) for name, url in cluster.clients.items()}
        assert [name for name, health in healths.items() if health.leads] == [cluster.leader()]
        # The first asks for it, the others find it asked for.
        assert change(cluster, OLD) == [Action.ENABLE, Action.NONE, Action.NONE]
        wait_for(cluster, "3.6")
        assert reported(cluster, "etcdserver") == {OLD}
    print(
        f"{OLD} -> {NEW} -> {OLD}: {up} and {len(writer.acknowledged) - up} writes acknowledged, 0 lost, "
        f"longest gap {writer.longest_gap_s:.2f} s"
    )


def test_half_of_the_way_up_may_be_taken_back(cluster: Cluster) -> None:
    with written(cluster):
        change(cluster, NEW, ("etcd-2",))
        assert change(cluster, OLD, ("etcd-2",)) == [Action.NONE]
    assert reported(cluster, "etcdserver") == {OLD}


def test_half_of_the_way_down_may_be_taken_back(cluster: Cluster) -> None:
    with written(cluster):
        change(cluster, NEW)
        wait_for(cluster, "3.7")
        assert change(cluster, OLD, ("etcd-1",)) == [Action.ENABLE]
        assert change(cluster, NEW, ("etcd-1",)) == [Action.CANCEL]
        wait_for(cluster, "3.7")
        change(cluster, OLD)
        wait_for(cluster, "3.6")


def test_a_member_of_the_older_minor_is_not_accepted_without_asking(cluster: Cluster) -> None:
    """What the playbook's step is for: without it the old binary ends at once."""
    change(cluster, NEW)
    wait_for(cluster, "3.7")
    part = cluster.parts["etcd-3"]
    assert part.running is not None
    new = part.command
    part.running.terminate()
    part.running.wait()
    part.command = [str(tool("etcd")), *new[1:]]
    part.start()
    until("the old binary to end", lambda: part.running is not None and part.running.poll() is not None, 30)
    assert 'version "3.7.0" is not supported' in part.log.read_text().replace("\\", "")
    part.command = new
    part.start()
    healthy(cluster)
