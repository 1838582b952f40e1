"""The holds of `muster fabric run`, written to a real API server and its policies as an everyday admin.

Only here: the rights of people suffice to hold nodes, and to read which of them have work. The admitter's answer is
written with its own rights, and by this test.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpu_burnin.api.names import Names
from gpu_burnin.api.record import State, Status, status_document
from gpu_burnin.fleet.fabric.keep import InLedger
from gpu_burnin.fleet.repair.cluster import Cluster
from gpu_burnin.system.clock import parse_rfc3339
from tests.integration.kube import MERGE_PATCH, Client, Server
from tests.integration.ledger import LEDGER, NAMES, entry
from tests.support.clocks import wait_until

RUN = "6f1d9c0e-5a6b-4c3d-8e2f-000000000001"
ANN = "ann@example.com"


def hold_of(client: Client, node: str) -> dict[str, str] | None:
    found: dict[str, str] | None = client.request("GET", f"{LEDGER}/{node}").body["spec"].get("hold")
    return found


def test_an_admin_holds_nodes_for_a_run_until_a_time_and_gives_them_back(
    ledger: Server, provisioner: Client, admitter: Client
) -> None:
    node, other = entry(provisioner), entry(provisioner)
    since = datetime.now(UTC).replace(microsecond=0)
    status = Status(State.READY, since.isoformat().replace("+00:00", "Z"))

    def stands(state: State) -> None:
        document = {"status": status_document(replace(status, state=state))}
        reply = admitter.request("PATCH", f"{LEDGER}/{node}/status", document, MERGE_PATCH)
        assert reply.status == 200, reply.message

    stands(State.READY)
    cluster = Cluster.of(ledger.kubeconfig(ANN, ["muster:admins"]), NAMES.domain)
    keep = InLedger(cluster, Names(NAMES.domain), RUN)
    taken: list[Mapping[str, str]] = []
    thread = threading.Thread(target=lambda: taken.append(keep.take([node, other], 300.0)))
    thread.start()
    wait_until(lambda: hold_of(provisioner, node) is not None)
    stands(State.HELD)
    thread.join()
    # The other one has not been let in yet: its own burn-in comes first, and it is not touched.
    assert taken == [{other: "it is new: its own burn-in comes first"}]
    hold = hold_of(provisioner, node)
    assert hold is not None and (hold["who"], hold["why"]) == (ANN, f"fabric run {RUN}")
    assert timedelta(hours=1) < parse_rfc3339(hold["until"]) - since < timedelta(hours=2)
    assert hold_of(provisioner, other) is None
    keep.release({})
    assert hold_of(provisioner, node) is None
