"""The scaler on a real API server: who may say what of a machine, and machines that come and go while leaders die.

Only here: the rights and policies of machines by each identity, and a leader killed between an order and its record.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.api.machine_power import MachinePower, MachineSpec, Power, Supply, machine_document, machines_path
from gpu_burnin.api.names import PROVISIONER_USER, SCALER_LEASE, SCALER_USER, SYSTEM_NAMESPACE, Names
from gpu_burnin.cli.muster import main as muster
from tests.integration.admitter_fleet import admitters
from tests.integration.gate import kubelet, numbers, refused
from tests.integration.kube import MERGE_PATCH, Client, Server, api_server, apply_ledger, until
from tests.integration.ledger import LEDGER
from tests.integration.scaler_site import MODEL, Cloud, machines_known, scaler, wait_for_order

NAMES = Names()
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases"
TIME = "2026-11-27T12:00:00.000Z"
WISH = {"power": "off", "who": SCALER_USER, "why": "idle", "since": TIME}
KILLS, SOAK_KILLS = 4, 20


@pytest.fixture(scope="module")
def known(ledger: Server) -> Iterator[Server]:
    with machines_known(ledger) as server:
        yield server


@pytest.fixture
def machine(known: Server) -> str:
    name = f"mp-{next(numbers)}"
    made = machine_document(MachinePower(name, MachineSpec(Supply(address="10.0.0.1", uuid="u"), 8, MODEL)), NAMES)
    reply = known.client(PROVISIONER_USER).request("POST", machines_path(NAMES), made)
    assert reply.status == 201, reply.message
    return name


def client_of(server: Server, who: str, name: str) -> Client:
    found = {
        "root": lambda: server.client("break-glass", ["system:masters"]),
        "admin": lambda: server.client("ann", ["muster:admins"]),
        "kubelet": lambda: kubelet(server, name),
        "admitter": lambda: server.client("muster:admitter"),
        "provisioner": lambda: server.client(PROVISIONER_USER),
        "scaler": lambda: server.client(SCALER_USER),
    }
    return found[who]()


def change(client: Client, name: str, body: dict[str, Any], part: str = "") -> Any:
    return client.request("PATCH", f"{machines_path(NAMES, name)}{part}", body, MERGE_PATCH)


def test_the_scaler_says_what_is_wanted_and_what_it_saw(known: Server, machine: str) -> None:
    own = known.client(SCALER_USER)
    assert change(own, machine, {"spec": {"wanted": WISH}}).status == 200
    reply = change(own, machine, {"status": {"power": "off", "since": TIME}}, "/status")
    assert reply.status == 200 and reply.body["status"]["power"] == "off"
    assert change(own, machine, {"spec": {"wanted": None}}).status == 200


@pytest.mark.parametrize("who", ["root", "admin", "provisioner", "kubelet", "admitter"])
def test_nobody_else_says_what_is_wanted_or_what_was_seen(known: Server, machine: str, who: str) -> None:
    client = client_of(known, who, machine)
    for body, part, word in (
        ({"spec": {"wanted": WISH}}, "", "only the scaler writes what power is wanted"),
        ({"status": {"power": "off"}}, "/status", "only the scaler writes the status"),
    ):
        reply = change(client, machine, body, part)
        assert reply.status == 403 and (word in reply.message or "forbidden" in reply.message), reply.message


@pytest.mark.parametrize("who", ["root", "admin", "scaler", "kubelet"])
def test_nobody_but_the_provisioner_says_which_bmc_is_whose(known: Server, machine: str, who: str) -> None:
    body = {"spec": {"supply": {"provider": "redfish", "address": "10.0.0.2", "uuid": "other"}}}
    refused(
        change(client_of(known, who, machine), machine, body), "orbidden" if who == "kubelet" else "provisioner changes"
    )
    reply = client_of(known, who, machine).request("DELETE", machines_path(NAMES, machine))
    assert reply.status == 403


def test_a_machine_that_leaves_the_inventory_goes_with_what_was_wanted_of_it(known: Server, machine: str) -> None:
    assert change(known.client(SCALER_USER), machine, {"spec": {"wanted": WISH}}).status == 200
    for who in ("root", "admin", "scaler"):
        assert client_of(known, who, machine).request("DELETE", machines_path(NAMES, machine)).status == 403
    reply = known.client(PROVISIONER_USER).request("DELETE", machines_path(NAMES, machine))
    assert reply.status == 200, reply.message


def test_a_person_holds_and_releases_in_the_own_name(known: Server, machine: str) -> None:
    ann = client_of(known, "admin", machine)
    ask = {"who": "ann", "why": "cable", "since": TIME}
    for what in ("hold", "release"):
        assert change(ann, machine, {"spec": {what: ask}}).status == 200
        refused(change(ann, machine, {"spec": {what: {**ask, "who": "bob"}}}), "in the own name")
        refused(change(known.client(SCALER_USER), machine, {"spec": {what: None}}), "by a person")
        assert change(ann, machine, {"spec": {what: None}}).status == 200


def test_an_admin_holds_and_releases_machines_and_reads_what_was_done(known: Server, tmp_path: Path) -> None:
    machine = f"asked-{next(numbers)}"
    Cloud(known, tmp_path).add(machine)
    kubeconfig = str(known.kubeconfig("ann@example.com", ["muster:admins"]))

    def run(*words: str) -> Any:
        return CliRunner().invoke(muster.cli, [*words, "--kubeconfig", kubeconfig])

    done = run("machine", "hold", machine, "--reason", "cable")
    assert (done.exit_code, f"{machine}: the scaler leaves it as it is" in done.output) == (0, True), done.output
    own = known.client(SCALER_USER)
    status = {"power": "off", "failures": 2, "held": "LATE: late", "heldSince": TIME}
    changes = [{"at": TIME, "what": "failed", "message": "it does not take work", "who": SCALER_USER}]
    assert change(own, machine, {"status": {**status, "changes": changes}}, "/status").status == 200
    assert "ann@example.com holds it already: cable" in run("machine", "hold", machine, "--reason", "x").output
    done = run("machine", "release", machine, "--reason", "cable replaced")
    assert (done.exit_code, done.output) == (0, f"{machine}: the scaler may switch it again\n")
    spec = own.request("GET", machines_path(NAMES, machine)).body["spec"]
    assert "hold" not in spec and spec["release"]["who"] == "ann@example.com"
    done = run("machine", "hold", "nobody", "--reason", "x")
    assert done.exit_code == 2 and "nobody: it has no MachinePower" in done.output
    told = run("why", f"node/{machine}").output
    assert "machine failed: it does not take work" in told and "machine release: cable replaced" in told, told


def test_of_a_node_the_scaler_closes_the_door_and_opens_no_other(known: Server, tmp_path: Path) -> None:
    cloud = Cloud(known, tmp_path)
    name = f"door-{next(numbers)}"
    cloud.add(name)
    own, ann = known.client(SCALER_USER), client_of(known, "admin", name)

    def ask(client: Client, body: dict[str, Any]) -> Any:
        return client.request("PATCH", f"{LEDGER}/{name}", {"spec": body}, MERGE_PATCH)

    mine = {"who": SCALER_USER, "why": "powered off: idle", "since": TIME}
    for what in ("hold", "quarantine"):
        assert ask(own, {what: mine}).status == 200
        assert ask(own, {what: None}).status == 200
        assert ask(ann, {what: {**mine, "who": "ann"}}).status == 200
        refused(ask(own, {what: None}), f"takes back no {what} but its own")
        refused(ask(own, {what: mine}), f"takes back no {what} but its own")
        assert ask(ann, {what: None}).status == 200
        carried = {
            **mine,
            "who": PROVISIONER_USER,
            "why": f"{what} of {SCALER_USER}, carried over the restore of etcd: x",
        }
        assert ask(known.client(PROVISIONER_USER), {what: carried}).status == 200
        assert ask(own, {what: None}).status == 200
    for what in ("retest", "repair"):
        refused(ask(own, {what: mine}), "asks for no test and no repair")
    refused(ask(own, {"evidence": {"level": "extended"}}), "only the provisioner changes")


def test_the_lease_is_the_scalers(known: Server) -> None:
    lease = {"metadata": {"name": SCALER_LEASE, "namespace": SYSTEM_NAMESPACE}, "spec": {"holderIdentity": "x"}}
    refused(client_of(known, "root", "").request("POST", LEASES, lease), "only the scaler writes its Lease")
    assert known.client(SCALER_USER).request("POST", LEASES, lease).status in (201, 409)


def forget_leader(server: Server) -> None:
    """As if the dead leader's time were over: twelve seconds of each kill are only waiting."""
    own, path = server.client(SCALER_USER), f"{LEASES}/{SCALER_LEASE}"
    lease = own.request("GET", path)
    if lease.status == 200:
        spec = {**lease.body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        assert own.request("PUT", path, {**lease.body, "spec": spec}).status == 200


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """Machines that live, with an admitter beside them, on a server of their own: nodes of others would be in doubt."""
    with api_server(tmp_path / "api") as server:
        apply_ledger(server)
        made = Cloud(server, tmp_path)
        living = threading.Thread(target=made.live, daemon=True)
        # A test of an idle node would have no agent here to answer it.
        with machines_known(server), admitters(server, tmp_path, ["api-1"], joins_per_s=1000, tests={"nodes": 0}):
            living.start()
            yield made
            made.close()
            living.join(70)


@pytest.mark.parametrize("most", [KILLS, pytest.param(SOAK_KILLS, marks=pytest.mark.soak)])
def test_leaders_that_die_at_their_orders_leave_no_machine_that_no_record_names(
    cloud: Cloud, tmp_path: Path, most: int
) -> None:
    """Up and down by the spare nodes that are asked for, with a leader killed right after an order, each time."""
    names = [f"kill-{next(numbers)}" for _ in range(2)]
    cloud.add(*names)
    rng, kills = random.Random(most), 0
    began_s = time.monotonic()
    while kills < most:
        assert time.monotonic() < began_s + 900, f"{kills} kills only"
        # Down from where all are on, else up.
        spare = 0 if len(cloud.on) == 2 else 2
        process = scaler(cloud, tmp_path, f"scaler-{next(numbers)}", spare={MODEL: spare})
        count = len(cloud.orders())
        process.start()
        try:
            # There is none where a program of the killed one has brought about what is wanted now.
            kills += wait_for_order(cloud, count, 20)
            time.sleep(rng.uniform(0, 0.15))
        finally:
            process.kill()
            forget_leader(cloud.server)
        for name in cloud.on & {*names}:
            wish = cloud.power(name).spec.wanted
            assert wish is not None, name
    last = scaler(cloud, tmp_path, "scaler-last", spare={MODEL: 0})
    last.start()
    try:
        until("the end of all", lambda: not cloud.on, 120)
        until("the records", lambda: all(cloud.power(name).off for name in names), 60)
    finally:
        last.kill()
    assert all(cloud.power(name).status.power is Power.OFF for name in names)
    print(f"{kills} leaders killed in {time.monotonic() - began_s:.0f} s; orders: {len(cloud.orders())}")
