"""A driver upgrade against a real API server and its policies: asked by the everyday admin, killed, given back.

Only here: RBAC and the gate's policies take what an upgrade asks for as the everyday admin, and gives back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.fleet.driver_upgrade import book
from gpu_burnin.fleet.driver_upgrade.book import Outcome, Run, Step
from gpu_burnin.fleet.driver_upgrade.course import Found, Upgrade
from gpu_burnin.fleet.driver_upgrade.plan import HostView, plan
from gpu_burnin.fleet.repair.cluster import Cluster
from tests.integration.gate import held_node, merge
from tests.integration.kube import Client, Server
from tests.integration.ledger import LEDGER, NAMES, change

OLD, NEW = "575.57.08", "580.105.08"
WHO = "ann@example.com"


class Killed(BaseException):
    """SIGKILL, as far as Python can have it."""


class Host:
    """A node of the real cluster; `follow` is what the admitter does with what is asked."""

    def __init__(self, server: Server, provisioner: Client, admitter: Client, folder: Path) -> None:
        self.name, self.folder = held_node(server), folder
        self.provisioner, self.admitter = provisioner, admitter
        made = {"apiVersion": NAMES.api_version, "kind": "NodeAdmission", "metadata": {"name": self.name}, "spec": {}}
        assert provisioner.request("POST", LEDGER, made).status == 201
        self.api = KubeApi(server.kubeconfig(WHO, ["muster:admins"]))
        self.now_s = 0.0
        self.on_poll: Callable[[], None] = lambda: None

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.provisioner.request("GET", f"{LEDGER}/{self.name}").body["spec"])

    def follow(self) -> None:
        asked = self.spec
        state, code = ("quarantined", "QUARANTINED_BY_PERSON") if "quarantine" in asked else ("ready", "PASS")
        state, code = ("repairing", "REPAIRING") if "repair" in asked else (state, code)
        status = {"state": state, "code": code, "message": code, "since": "2026-11-22T16:00:00Z"}
        reply = change(self.admitter, self.name, {"status": status}, "/status")
        assert reply.status == 200, reply.message
        if state == "ready":
            labels = {"muster.node-restriction.kubernetes.io/ready": "true"}
            reply = merge(self.admitter, self.name, {"metadata": {"labels": labels}, "spec": {"taints": None}})
            assert reply.status == 200, reply.message

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.on_poll()
        self.follow()

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.api, NAMES, now_s=lambda: self.now_s, sleep=self.sleep)

    def view(self) -> HostView:
        record = self.cluster.records()[self.name]
        return HostView(
            self.name, "nvidia", NEW, OLD, f"asks for driver {NEW}", record=record, pods=self.cluster.pods(self.name)
        )

    def upgrade(self, run: Run | None = None) -> Upgrade:
        book.write_run(self.folder, run or Run(f"run-{time.monotonic_ns()}", NEW, (self.name,), (1,)))
        return Upgrade(
            node=self.name,
            directory=self.folder,
            cluster=self.cluster,
            now=lambda: datetime.now(UTC),
            now_s=lambda: self.now_s,
            sleep=self.sleep,
            drain_timeout_s=60,
            admission_timeout_s=60,
        )


@pytest.fixture
def host(ledger: Server, provisioner: Client, admitter: Client, tmp_path: Path) -> Host:
    return Host(ledger, provisioner, admitter, tmp_path)


def finish(upgrade: Upgrade) -> book.Entry:
    upgrade.change({"working": []})
    upgrade.test(Found(NEW))
    return upgrade.admit("PASS", "")


def test_an_admin_may_ask_and_take_back_all_that_an_upgrade_needs(host: Host) -> None:
    upgrade = host.upgrade()
    assert upgrade.begin(OLD).outcome is Outcome.UNDER_WAY
    assert host.spec["quarantine"]["who"] == WHO and "repair" not in host.spec
    assert upgrade.change({"working": []}).step is Step.DRIVER
    assert {verb: host.spec[verb]["who"] for verb in ("repair", "quarantine")} == {"repair": WHO, "quarantine": WHO}
    done = finish(upgrade)
    assert (done.outcome, done.why) == (Outcome.DONE, "")
    assert {"repair", "quarantine"}.isdisjoint(host.spec)


def test_what_a_killed_run_has_asked_the_next_one_takes_back(host: Host) -> None:
    def kill() -> None:
        raise Killed

    host.on_poll = kill
    with pytest.raises(Killed):
        host.upgrade().begin(OLD)
    assert host.spec["quarantine"]["who"] == WHO
    host.on_poll = lambda: None
    upgrade = host.upgrade()
    upgrade.begin(OLD)
    assert finish(upgrade).outcome is Outcome.DONE
    assert {"repair", "quarantine"}.isdisjoint(host.spec)


def test_a_failure_stays_in_quarantine_with_its_reason_until_a_run_ends_well(host: Host) -> None:
    upgrade = host.upgrade()
    upgrade.begin(OLD)
    upgrade.fail("the module does not load: " + "x" * 2000)
    asked = host.spec
    assert "repair" not in asked
    assert asked["quarantine"]["why"].startswith(f"driver upgrade to {NEW} failed: the module does not load")
    again = host.upgrade()
    again.begin(OLD)
    assert finish(again).outcome is Outcome.DONE and "quarantine" not in host.spec


def test_a_quarantine_that_the_same_admin_asks_for_meanwhile_stays(host: Host) -> None:
    upgrade = host.upgrade()
    upgrade.begin(OLD)
    asked = {"who": WHO, "why": "loud fan", "since": "2026-11-22T16:30:00Z"}
    admin = host.api
    admin.patch(
        f"{LEDGER}/{host.name}", [{"op": "add", "path": "/spec/quarantine", "value": asked}], "quarantine it by hand"
    )
    done = finish(upgrade)
    assert done.why == f"it stays out of work: quarantine by {WHO} (loud fan)"
    assert host.spec["quarantine"]["why"] == "loud fan" and "repair" not in host.spec


def test_of_three_hosts_the_one_with_a_job_comes_last_and_the_job_ends_first(
    ledger: Server, provisioner: Client, admitter: Client, root: Client, tmp_path: Path
) -> None:
    """Nothing is done to its host before the job has ended by itself, and each is back at work before the next.

    One after the other they are taken here; that the playbook does so is for tests/unit/collection to show.
    """
    hosts = {host.name: host for host in (Host(ledger, provisioner, admitter, tmp_path) for _ in range(3))}
    for host in hosts.values():
        host.follow()
    busy, *idle = hosts
    with job(root, busy) as path:
        run = plan([host.view() for host in hosts.values()], {}, "", 1, "run-3")
        assert (run.hosts, run.batches) == ((*idle, busy), (1, 1, 1))
        seen: list[tuple[frozenset[str], bool]] = []

        def look() -> None:
            out = frozenset(name for name, host in hosts.items() if "quarantine" in host.spec)
            at_work = root.request("GET", path).status == 200
            seen.append((out, at_work))
            if out == {busy} and hosts[busy].now_s > 30:  # it has saved its checkpoint
                root.request("DELETE", f"{path}?gracePeriodSeconds=0")

        for name in run.hosts:
            hosts[name].on_poll = look
            upgrade = hosts[name].upgrade(run)
            assert upgrade.begin(OLD).outcome is Outcome.UNDER_WAY
            assert (root.request("GET", path).status == 200) is (name != busy)
            assert finish(upgrade).outcome is Outcome.DONE
    assert {out for out, _ in seen if out} == {frozenset({name}) for name in hosts}
    assert sum(at_work for out, at_work in seen if out == {busy}) > 10, (
        "its host was not asked for while the job was on it"
    )


@contextmanager
def job(root: Client, node: str) -> Iterator[str]:
    """A pod on the node that keeps its host until its next checkpoint; its path."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    assert root.request("POST", "/api/v1/namespaces/default/serviceaccounts", account).status in (201, 409)
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train", "annotations": {NAMES.hold_until: "checkpoint"}},
        "spec": {"nodeName": node, "automountServiceAccountToken": False, "containers": [{"name": "c", "image": "i"}]},
    }  # fmt: skip
    pods = "/api/v1/namespaces/default/pods"
    reply = root.request("POST", pods, pod)
    assert reply.status == 201, reply.message
    try:
        yield f"{pods}/train"
    finally:
        root.request("DELETE", f"{pods}/train?gracePeriodSeconds=0")
