"""Machines that are switched on for a job and off after it: site.yml with `fleet_scale`, and BMCs that start hosts.

Only here: role scaler in a play, both checks of the queues on Kueue as the roles run it, a node that boots for a job
from its power on to its first container, and a fleet whose monitoring and whose playbooks know that off is not lost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.api.names import POWER_CHECK
from tests.lab import hosts
from tests.lab.fleet import PlaybookResult
from tests.support.bmc import PASSWORD, USER, FakeBmc, fake_bmc
from tests.support.bmc_hosts import BmcHosts

from .fleet import Fleet, wait_until
from .lab_jobs import ended, launch, where, why
from .lab_nodes import held
from .prometheus import query
from .role_verify import verify

pytestmark = pytest.mark.soak
NODES = ("gpu-1", "gpu-2", "gpu-3")
MODEL = "h100-sxm5-80gb"
SICK = "gpu-3"
# The same play as ever, on the hosts that the change is of.
LIMIT = ("--limit", "localhost,kube_apiserver,monitoring")


@dataclass
class Scaled:
    """The lab whose machines are switched; `orders` are those of their BMC, each with the node's name."""

    fleet: Fleet
    bmc: FakeBmc
    inventory: Path
    machines: dict[str, str]
    sick: str
    orders: list[tuple[str, str, float]] = field(default_factory=list)

    def site(self, log: str, *arguments: str, **variables: Any) -> PlaybookResult:
        """site.yml with the scaler's inventory beside the lab's."""
        return self.fleet.playbook("site.yml", "--inventory", str(self.inventory), *arguments, log=log, **variables)

    def power(self, node: str) -> dict[str, Any]:
        """Its MachinePower."""
        found: dict[str, Any] = self.fleet.get("machinepower", node)
        return found

    def off(self) -> set[str]:
        """The nodes whose machines are off, by the BMC and by what the scaler knows."""
        off = {node for node, machine in self.machines.items() if self.bmc.state(machine) == "Off"}
        return {node for node in off if self.power(node).get("status", {}).get("power") == "off"}


@pytest.fixture(scope="module")
def scaled(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scaled]:
    """The lab with the scaler and gpu-3 mended; at the end all is as site.yml left it at first, gpu-3 sick again."""
    folder = tmp_path_factory.mktemp("scaler")
    machines = BmcHosts(fleet.lab.name, NODES)
    gateway = fleet.addresses["api-1"].rpartition(".")[0] + ".1"
    sick = next(str(host.gpu_scenario) for host in fleet.lab.hosts if host.name == SICK)
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        fake_bmc(folder, monkeypatch, machines=tuple(machines.containers), address=gateway) as bmc,
    ):
        by_uuid = {uuid: container.removeprefix("muster-lab-") for uuid, container in machines.containers.items()}
        inventory = folder / "scaler.yml"
        inventory.write_text(yaml.safe_dump(document(bmc, by_uuid)))
        made = Scaled(fleet, bmc, inventory, {node: uuid for uuid, node in by_uuid.items()}, sick)

        def order(what: str, machine: str) -> None:
            made.orders.append((what, by_uuid[machine], time.monotonic()))
            machines.order(what, machine)

        bmc.before = order
        hosts.install_scenario(fleet.lab, SICK, "healthy-2gpu")
        hosts.reboot(fleet.lab, SICK)
        wait_until("gpu-3", lambda: states(fleet)[SICK] == "ready", timeout_s=240)
        try:
            yield made
        finally:
            for machine in made.machines.values():
                if bmc.state(machine) == "Off":
                    machines.order("On", machine)
            hosts.install_scenario(fleet.lab, SICK, sick)


def document(bmc: FakeBmc, nodes: dict[str, str]) -> dict[str, Any]:
    """What an inventory says beyond the lab's own."""
    powers = {
        node: {"fleet_power": {"address": bmc.address, "system": uuid, "uuid": uuid}} for uuid, node in nodes.items()
    }
    settings = {
        "fleet_scale": True,
        "fleet_scale_idle_s": 5,
        "scaler_bmc_user": USER,
        "scaler_bmc_password": PASSWORD,
        "scaler_bmc_ca_file": str(bmc.ca_file),
        "scaler_rules": {"settle_s": 1},
    }
    return {"all": {"vars": settings, "children": {"gpu_nodes": {"hosts": powers}}}}


def states(fleet: Fleet) -> dict[str, str]:
    """What the ledger says of each node."""
    items = fleet.get("nodeadmissions")["items"]
    return {one["metadata"]["name"]: str(one.get("status", {}).get("state")) for one in items}


def checks(fleet: Fleet) -> set[str]:
    """The checks of a team's queue."""
    spec = fleet.get("clusterqueue", "vision")["spec"]
    return {one["name"] for one in spec["admissionChecksStrategy"]["admissionChecks"]}


def missed(fleet: Fleet) -> list[dict[str, str]]:
    """The alerts of hosts that do not answer."""
    return query(fleet, 'ALERTS{alertname=~"MusterHostDown|MusterExporterDown|MusterPlaceDown"}')


def test_idle_machines_go_off_and_nobody_misses_them(scaled: Scaled) -> None:
    fleet = scaled.fleet
    on = scaled.site("scaler-on", *LIMIT)
    assert on.rc == 0, on.failures
    assert POWER_CHECK in checks(fleet)
    again = scaled.site("scaler-on-again", *LIMIT)
    assert (again.rc, again.changed) == (0, {}), again.failures
    verify(fleet, "scaler", scaled.inventory)

    wait_until("all machines to be off", lambda: scaled.off() == {*NODES}, timeout_s=240)
    assert sorted(one[:2] for one in scaled.orders) == [("GracefulShutdown", node) for node in NODES]
    assert set(states(fleet).values()) == {"held"}
    counted = json.loads(fleet.muster("status", "--json").out)["states"]
    assert (counted["off"], counted["held"]) == (3, 0), counted

    def known() -> bool:
        return {one["instance"] for one in query(fleet, "muster:off")} == {*NODES} and not query(
            fleet, 'up{job="node", instance=~"gpu-.*"} == 1'
        )

    wait_until("Prometheus to know them off", known, timeout_s=90)
    assert missed(fleet) == []
    looked = scaled.site("scaler-preflight", "--tags", "preflight")
    said = looked.log.read_text()
    assert looked.rc == 4 and "gpu-1" in said, (looked.rc, looked.failures)


def test_a_gang_gets_the_machines_that_it_waits_for_and_the_sick_one_is_left_out(
    scaled: Scaled, tmp_path: Path
) -> None:
    fleet = scaled.fleet
    assert scaled.off() == {*NODES}
    hosts.install_scenario(fleet.lab, SICK, scaled.sick)
    scaled.orders.clear()
    script = tmp_path / "short.py"
    # The job's work: long enough to be seen on its nodes.
    script.write_text("import time; time.sleep(10)")
    asked = time.monotonic()
    launch(fleet, "user-alice", script, "wakes", 2)
    # gpu-2 and gpu-3 are one rack, which is taken first.
    wait_until("the first orders", lambda: {node for _, node, _ in scaled.orders} == {"gpu-2", SICK}, timeout_s=60)
    ordered = scaled.orders[0][2]
    wait_until("gpu-2", lambda: states(fleet)["gpu-2"] == "ready", timeout_s=120)
    admitted = time.monotonic()
    wait_until("the third machine", lambda: ("On", "gpu-1") in {one[:2] for one in scaled.orders}, timeout_s=120)
    third = next(at for what, node, at in scaled.orders if node == "gpu-1")
    wait_until("both pods", lambda: where(fleet, "vision", "wakes") == {"gpu-1", "gpu-2"}, timeout_s=180)
    print(
        f"from the job to the power {ordered - asked:.1f} s, power to ready {admitted - ordered:.1f} s, the sick one "
        f"replaced after {third - ordered:.1f} s, from there to both pods {time.monotonic() - third:.1f} s"
    )
    assert "SICK" in str(scaled.power(SICK)["status"]), scaled.power(SICK)["status"]
    told = fleet.muster("why", f"node/{SICK}").out
    assert "machine failed" in told, told
    assert "wakes" in why(fleet, "user-alice", "vision/wakes")


def test_after_the_job_they_go_again_and_without_it_all_is_as_it_was(scaled: Scaled) -> None:
    fleet = scaled.fleet
    wait_until("the job's end", lambda: ended(fleet, "vision", "wakes"), timeout_s=60)
    wait_until("both to be off again", lambda: scaled.off() >= {"gpu-1", "gpu-2"}, timeout_s=240)
    # A spare is kept where one is asked for: those that are off come back for it.
    spare = scaled.site("scaler-spare", *LIMIT, fleet_scale_spare={MODEL: 2})
    assert spare.rc == 0, spare.failures
    wait_until("the spare", lambda: [states(fleet)[node] for node in NODES[:2]] == ["ready"] * 2, timeout_s=180)
    gone = fleet.playbook("site.yml", *LIMIT, log="scaler-off")
    assert gone.rc == 0, gone.failures
    assert POWER_CHECK not in checks(fleet)
    assert fleet.get("machinepowers")["items"] == []
    for host in ("api-1", "api-2"):
        left = "ls -d /etc/muster-scaler /etc/systemd/system/muster-scaler.service; systemctl is-active muster-scaler"
        assert fleet.ssh(host, left).out.split() == ["inactive"], host
    wait_until("gpu-3 to be held", lambda: held(fleet, SICK), timeout_s=240)
    assert [states(fleet)[node] for node in NODES] == ["ready", "ready", "quarantined"]
    # It was started anew, and shows for five minutes what it read before.
    wait_until("Prometheus to forget the scaler", lambda: not query(fleet, "muster_scaler_leader"), timeout_s=360)
