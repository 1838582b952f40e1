"""A real etcd of three members under a writer: one is lost and replaced, and no acknowledged write with it.

Only here: members join and vote, killed at each step, while somebody writes.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import replace as etcd_replace
from ansible_collections.muster.fleet.plugins.module_utils.etcd.replace import Step
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

from .etcd_cluster import JOIN, NO_TOOLS, Cluster, etcd_cluster, healthy, tools
from .etcd_writer import written
from .kube import until

ALL = [Step.REMOVE, Step.PREPARE, Step.ADD, Step.START, Step.CATCH_UP, Step.PROMOTE, Step.FINISH]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not tools():
        pytest.skip(NO_TOOLS)
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as made:
        yield made


@dataclass
class Host:
    """A member's machine, as roles/etcd and the module have it, without systemd."""

    cluster: Cluster
    name: str

    def has_data(self) -> bool:
        folder = self.cluster.data_dir(self.name)
        return folder.is_dir() and any(folder.iterdir())

    def running(self) -> bool:
        process = self.cluster.parts[self.name].running
        return process is not None and process.poll() is None

    def joining(self) -> bool:
        return self.cluster.joining(self.name)

    def stop(self) -> None:
        self.cluster.parts[self.name].kill()

    def clean(self) -> None:
        folder = self.cluster.data_dir(self.name)
        folder.rename(folder.with_name(f"data.replaced-{time.time_ns()}"))

    def prepare(self) -> None:
        part = self.cluster.parts[self.name]
        part.command = [*part.command, *JOIN]

    def start(self) -> None:
        self.cluster.parts[self.name].start()

    def finish(self) -> None:
        part = self.cluster.parts[self.name]
        part.command = part.command[: -len(JOIN)]


def view(cluster: Cluster, name: str) -> etcd_replace.Cluster:
    return etcd_replace.Cluster(name, cluster.peers, cluster.apis(5.0))


def replacement(
    cluster: Cluster, name: str, *, confirmed: bool = False, settle_s: float = 60
) -> etcd_replace.Replacement:
    """`settle_s` ends as soon as all is well: a short one is for what never will be."""
    return etcd_replace.Replacement(view(cluster, name), Host(cluster, name), confirmed, 120, settle_s)


def lose(cluster: Cluster, name: str) -> None:
    """Kill -9, and an empty disk."""
    cluster.parts[name].kill()
    shutil.rmtree(cluster.data_dir(name))


@pytest.mark.parametrize("which", ["the first", "the leader", "a follower"])
def test_a_lost_member_is_replaced_and_no_write_is_lost(cluster: Cluster, which: str) -> None:
    leader = cluster.leader()
    follower = next(name for name in reversed(cluster.clients) if name != leader)
    name = {"the first": "etcd-1", "the leader": leader, "a follower": follower}[which]
    with written(cluster) as writer:
        began = time.monotonic()
        lose(cluster, name)
        steps = replacement(cluster, name).run()
        took_s = time.monotonic() - began
        seen = len(writer.acknowledged)
        until("writes after it", lambda: len(writer.acknowledged) > seen + 20)
    print(
        f"{which} ({name}): {len(writer.acknowledged)} acknowledged, 0 lost, longest gap {writer.longest_gap_s:.2f} s, "
        f"replaced in {took_s:.1f} s"
    )
    assert [step for step in steps if step is not Step.CATCH_UP] == [step for step in ALL if step is not Step.CATCH_UP]
    healthy(cluster)
    assert replacement(cluster, name).run() == []


class Killed(Exception):
    """The run ended here."""


def test_killed_before_each_step_it_is_run_again(cluster: Cluster) -> None:
    with written(cluster):
        for last in [step for step in ALL if step is not Step.CATCH_UP]:
            lose(cluster, "etcd-2")
            run = replacement(cluster, "etcd-2")

            def kill(step: Step, last: Step = last) -> None:
                if step is last:
                    raise Killed

            run.tell = kill
            with pytest.raises(Killed):
                run.run()
            left = replacement(cluster, "etcd-2").run()
            assert (left[0], left[-1]) == (last, Step.FINISH)
            healthy(cluster)


def test_data_that_is_there_is_kept_until_it_is_given_up(cluster: Cluster) -> None:
    cluster.parts["etcd-3"].kill()
    for name in ("etcd-1", "etcd-2"):
        until("a leader of the others", lambda name=name: cluster.ctl(name, "get", "x").returncode == 0)  # type: ignore[misc]
    with pytest.raises(FleetError, match="-e confirm=etcd-3"):
        replacement(cluster, "etcd-3", settle_s=1).run()
    members = cluster.ctl("etcd-1", "member", "list").stdout
    assert "etcd-3" in members
    assert Step.CLEAN in replacement(cluster, "etcd-3", confirmed=True, settle_s=1).run()
    assert len(list(cluster.data_dir("etcd-3").parent.glob("data.replaced-*/member"))) == 1
    healthy(cluster)


def test_a_member_that_is_down_keeps_every_other_from_being_replaced(cluster: Cluster) -> None:
    lose(cluster, "etcd-2")
    cluster.parts["etcd-3"].kill()
    with pytest.raises(FleetError, match=r"would lose its quorum.*etcd-3 \("):
        replacement(cluster, "etcd-2", settle_s=1).run()
    cluster.parts["etcd-3"].start()
    until("etcd-3", lambda: cluster.ctl("etcd-3", "get", "x").returncode == 0)
    replacement(cluster, "etcd-2").run()
    healthy(cluster)


def test_a_build_of_another_minor_does_not_join(cluster: Cluster) -> None:
    """The members tell their version over their API."""
    there = view(cluster, "etcd-1")
    runs = str(there.apis["etcd-2"]("/version")["etcdserver"])
    etcd_replace.check_release(there, f"etcd Version: {runs}")
    with pytest.raises(FleetError, match=rf"names etcd 3\.99\.0 for etcd-1.*etcd-2 {re.escape(runs)}"):
        etcd_replace.check_release(there, "3.99.0")
