"""The main etcd is put back to a snapshot of before a fault and a hold, with the agent of the faulty node stopped.

On demand, by `make lab-operations`.

Only here: the whole playbook on hosts, with schedulers that place pods and kubelets that run them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.control_plane.operations import ansible_playbook, newest_snapshot, play, second_place
from tests.integration.fleet import API_SERVERS, XID_79, Fleet, run, wait_until
from tests.integration.lab_nodes import (
    admission,
    back,
    back_in_this_boot,
    create,
    is_in,
    is_open,
    job,
    now,
    phase,
    state,
)
from tests.lab import hosts
from tests.lab.paths import REPOSITORY

pytestmark = pytest.mark.soak

WATCH = "gpu-burnin-watch"


@pytest.fixture
def two_at_work(fleet: Fleet) -> Iterator[None]:
    """Both healthy nodes take work before and after."""
    for node in ("gpu-1", "gpu-2"):
        back(fleet, node)
    yield
    fleet.must("gpu-2", f"systemctl start {WATCH}")
    fleet.muster("resume")
    fleet.muster("node", "release", "gpu-1", "--reason", "the test is over")
    begun = now()
    hosts.reboot(fleet.lab, "gpu-2")
    back_in_this_boot(fleet, "gpu-2", begun)
    back(fleet, "gpu-1")


def test_known_faults_and_asks_stay_known(fleet: Fleet, two_at_work: None) -> None:
    place = second_place(fleet)
    play(["site.yml", "--limit", "etcd", *place], "backup-set-up")
    with job(fleet, "kept-by-restore", "gpu-1"):
        play(["playbooks/etcd_backup.yml", "--limit", "etcd", *place], "backup-before-fault")
        fleet.must("gpu-2", XID_79)
        wait_until("gpu-2 to be out", lambda: state(fleet, "gpu-2") == "quarantined", timeout_s=60)
        known = admission(fleet, "gpu-2")["status"]["highestSequence"]
        held = fleet.muster("node", "hold", "gpu-1", "--reason", "loud fan")
        assert held.rc == 0, held.out + held.err
        fleet.must("gpu-2", f"systemctl stop {WATCH}")

        asked = run([*ansible_playbook(), "playbooks/etcd_restore.yml", *newest_snapshot(fleet)], cwd=REPOSITORY)
        said = " ".join((asked.out + asked.err).split())
        assert asked.rc != 0 and "Nothing was done" in said
        assert "gpu-2: quarantined (XID_FATAL) would be ready" in said, said[-3000:]
        assert "gpu-1:" in said and "(loud fan) is carried over" in said, said[-3000:]

        play(["playbooks/etcd_restore.yml", *newest_snapshot(fleet), "-e", "confirm=lab-main"], "restore-with-faults")
        for host in API_SERVERS:
            fleet.must(host, "systemctl is-active kube-scheduler")
        # Nothing was ever placed on it: not in the first seconds either.
        assert not is_open(fleet, "gpu-2") and not is_open(fleet, "gpu-1")
        faulty = admission(fleet, "gpu-2")["status"]
        assert (faulty["code"], faulty["highestSequence"]) == ("LEDGER_RESTORED", known), faulty
        assert "RESTORED: etcd was restored to an older state; gpu-2" in " ".join(fleet.muster("status").out.split())
        made = create(fleet, "late", "gpu-2")
        assert made.rc == 0, made.err
        # The work of the node that a person holds goes on, and the ask says whose it was.
        wait_until("gpu-1 to be held", lambda: state(fleet, "gpu-1") == "held", timeout_s=60)
        hold = admission(fleet, "gpu-1")["spec"]["hold"]
        assert hold["who"] == "muster:provisioner" and "carried over the restore of etcd: loud fan" in hold["why"]
        assert phase(fleet, "kept-by-restore") == "Running"

        # As its page orders no more: a pause. The agent comes back, and what it knows takes its node out all the same.
        assert fleet.muster("pause", "--reason", "etcd restored").rc == 0
        fleet.must("gpu-2", f"systemctl start {WATCH}")
        wait_until("the XID to be known again", lambda: state(fleet, "gpu-2") == "quarantined", timeout_s=120)
        assert phase(fleet, "late") == "Pending"
        fleet.kubectl("delete", "pod", "late", "--now", "--ignore-not-found")
        assert fleet.muster("resume").rc == 0
        released = fleet.muster("node", "release", "gpu-1", "--reason", "it was the wrong one")
        assert released.rc == 0, released.out + released.err
        wait_until("gpu-1 to take work", lambda: is_in(fleet, "gpu-1"), timeout_s=120)
