"""One queue over two places: a cloud that a program switches, and a rack whose machines a BMC switches by Redfish.

Only here: both providers in one scaler, and jobs that stay whole in the place that has room for them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.machine_power import Supply, machines_path
from gpu_burnin.api.names import LEAF_LABEL, RACK_LABEL
from gpu_burnin.api.record import Place
from gpu_burnin.scaler.requests import API
from tests.integration.gate import numbers
from tests.integration.jobs_stack import NAMES, Jobs
from tests.integration.kube import MERGE_PATCH, until
from tests.integration.scaler_queue import Machines, gang, queues_open
from tests.integration.scaler_site import scaler
from tests.support.bmc import PASSWORD, USER, FakeBmc, fake_bmc

TEAM = "spread"
CLOUD, RACK = Place("cloud-r1", "cloud", "zone-a"), Place("rack-r1", "rack", "feed-a")
# A request that no place can serve is made again at once, and not after a minute.
RETRY = {"backoffLimitCount": 1000, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1}


@dataclass
class TwoPlaces(Machines):
    """The program's machines, and the UUIDs of those of the rack; `bmc_orders` are its BMC's, each with a name."""

    bmc: FakeBmc = field(kw_only=True)
    rack: dict[str, str] = field(kw_only=True)
    bmc_orders: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = {found: name for name, found in self.rack.items()}
        self.bmc.before = lambda order, machine: self.bmc_orders.append((order, names[machine]))

    @property
    def on(self) -> set[str]:
        """The machines whose power is on, in both places."""
        return super().on | {name for name, found in self.rack.items() if self.bmc.state(found) == "On"}

    def redfish(self) -> dict[str, str]:
        """How the scaler reaches the rack."""
        secret = self.folder / "bmc-password"
        secret.write_text(f"{PASSWORD}\n")
        return {"user": USER, "password_file": str(secret), "ca_file": str(self.bmc.ca_file)}


@pytest.fixture(scope="module")
def places(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoPlaces]:
    folder = tmp_path_factory.mktemp("places")
    rack = {f"rack-{next(numbers)}": str(uuid.uuid4()) for _ in range(2)}
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        fake_bmc(folder, monkeypatch, power="Off", machines=tuple(rack.values())) as bmc,
    ):
        made = TwoPlaces(jobs.server, folder, bmc=bmc, rack=rack)
        levels = (LEAF_LABEL, RACK_LABEL)
        with queues_open(jobs, made, {TEAM: "quick"}, nodes=4, levels=levels, retry=RETRY):
            made.add(*(f"cloud-{next(numbers)}" for _ in range(2)), place=CLOUD)
            for name, found in rack.items():
                made.add(name, supply=Supply(address=bmc.address, system=found, uuid=found), place=RACK)
            yield made


def hold(jobs: Jobs, machine: str, ask: dict[str, str] | None) -> None:
    """A person keeps the scaler's hands off a machine, or (None) no more."""
    reply = jobs.root.request("PATCH", machines_path(NAMES, machine), {"spec": {"hold": ask}}, MERGE_PATCH)
    assert reply.status == 200, reply.message


def nodes_of(jobs: Jobs, job: str) -> set[str]:
    """The nodes that a job's pods are bound to."""
    return {node for pod, node in jobs.bound(TEAM).items() if pod.startswith(f"{job}-")}


def end(jobs: Jobs, job: str) -> None:
    """Have all pods of a job end well."""
    for pod in jobs.bound(TEAM):
        if pod.startswith(f"{job}-"):
            jobs.ended(TEAM, pod)


def refusals(jobs: Jobs) -> list[str]:
    """What requests of the team were refused for."""
    conditions = [
        one
        for request in jobs.items(f"{API}/namespaces/{TEAM}/provisioningrequests")
        for one in request.get("status", {}).get("conditions", [])
    ]
    return [one["message"] for one in conditions if one["type"] == "Failed" and one["status"] == "True"]


def waits(jobs: Jobs, job: str) -> bool:
    """Whether the queue has no room for the job."""
    conditions: list[dict[str, Any]] = [
        one
        for work in jobs.workloads(TEAM)
        if work["metadata"]["name"].startswith(f"job-{job}-")
        for one in work.get("status", {}).get("conditions", [])
    ]
    return any(one["type"] == "QuotaReserved" and one["status"] == "False" for one in conditions)


@pytest.mark.soak
def test_jobs_of_one_queue_go_to_the_place_that_has_room_for_them(
    jobs: Jobs, places: TwoPlaces, tmp_path: Path
) -> None:
    cloud, rack = {*places.machines} - {*places.rack}, {*places.rack}
    kept = min(cloud), min(rack)
    for name in kept:
        hold(jobs, name, {"who": "break-glass", "why": "cable", "since": "2026-11-27T12:00:00.000Z"})
    # Longer than a job takes to follow another on the same nodes.
    process = scaler(places, tmp_path, "scaler-1", places.redfish(), idle_s=20)
    process.start()
    try:
        # One machine in each place: two, but not together.
        gang(jobs, TEAM, "first", 2, LEAF_LABEL)
        until("the refusal", lambda: any("fit into no one leaf of 2" in one for one in refusals(jobs)), 60)
        assert not places.on
        # The cloud cannot hold it, the rack can.
        hold(jobs, kept[1], None)
        until("the first job", lambda: nodes_of(jobs, "first") == rack, 90)
        jobs.running(TEAM)
        assert (places.on, places.orders()) == (rack, [])
        assert sorted(places.bmc_orders) == [("On", name) for name in sorted(rack)]
        # The rack cannot hold it, the cloud can.
        hold(jobs, kept[0], None)
        gang(jobs, TEAM, "second", 2, LEAF_LABEL)
        until("the second job", lambda: nodes_of(jobs, "second") == cloud, 90)
        jobs.running(TEAM)
        # Nobody has room, until the first has ended; then its nodes do, and nothing is switched.
        gang(jobs, TEAM, "third", 2, LEAF_LABEL)
        until("the queue's being full", lambda: waits(jobs, "third"), 60)
        assert not nodes_of(jobs, "third")
        end(jobs, "first")
        until("the third job", lambda: nodes_of(jobs, "third") == rack, 90)
        assert sorted(places.orders()) == [f"create {name}" for name in sorted(cloud)]
        assert len(places.bmc_orders) == len(rack)
        # Each goes by its own provider and by no other.
        for job in ("second", "third"):
            end(jobs, job)
        until("the end of the machines", lambda: not places.on, 120)
        assert sorted(places.orders()[len(cloud) :]) == [f"delete {name}" for name in sorted(cloud)]
        assert sorted(places.bmc_orders[len(rack) :]) == [("GracefulShutdown", name) for name in sorted(rack)]
    except TimeoutError as error:
        checks = [one["status"].get("admissionChecks") for one in jobs.workloads(TEAM)]
        raise AssertionError(f"{error}: {checks}: {process.log.read_text()[-3000:]}") from error
    finally:
        process.kill()
