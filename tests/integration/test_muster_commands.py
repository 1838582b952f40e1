"""`muster node`, `pause`, `status` and `why` as an everyday admin, against a real API server and its policies.

Only here: the commands write with the rights of people, and read what the admitter's rights let it write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.api.names import ADMITTER_USER
from gpu_burnin.api.record import State, Status, Tested, Transition, status_document
from gpu_burnin.cli.muster import main as muster
from tests.integration.gate import held_node
from tests.integration.kube import MERGE_PATCH, Client, Server
from tests.integration.ledger import LEDGER, NAMES, entry

Muster = Callable[..., Result]
Tested.__test__ = False  # type: ignore[attr-defined]
XID = "XID 79 on GPU 3: GPU has fallen off the bus"


@pytest.fixture
def run(ledger: Server) -> Muster:
    """Runs a command as the everyday admin."""
    kubeconfig = ledger.kubeconfig("ann@example.com", ["muster:admins"])
    return lambda *words: CliRunner().invoke(muster.cli, [*words, "--kubeconfig", str(kubeconfig)])


def spec(client: Client, node: str) -> dict[str, dict[str, str]]:
    return dict(client.request("GET", f"{LEDGER}/{node}").body["spec"])


def test_an_admin_holds_and_releases_and_twice_is_once(run: Muster, provisioner: Client) -> None:
    node = entry(provisioner)
    for verb in ("hold", "quarantine", "retest"):
        first = run("node", verb, node, "--reason", "loud fan")
        assert first.exit_code == 0, first.output
        assert spec(provisioner, node)[verb]["who"] == "ann@example.com"
        assert "stands already" in run("node", verb, node, "--reason", "loud fan").stdout
    released = run("node", "release", node, "--reason", "new fan")
    assert released.exit_code == 0 and "could not be kept" not in released.stdout
    assert {"hold", "quarantine"}.isdisjoint(spec(provisioner, node))
    assert "Released: ann@example.com: new fan" in run("why", node).stdout.replace("\n", " ").replace("  ", "")


def test_a_node_s_kubelet_cannot_ask(ledger: Server, provisioner: Client) -> None:
    node = entry(provisioner)
    kubeconfig = ledger.kubeconfig(f"system:node:{node}", ["system:nodes"])
    done = CliRunner().invoke(muster.cli, ["node", "release", node, "--reason", "x", "--kubeconfig", str(kubeconfig)])
    assert done.exit_code != 0


def test_an_admin_pauses_and_resumes(run: Muster) -> None:
    assert run("pause", "--reason", "power works", "--until", "2h").exit_code == 0
    assert "PAUSED by ann@example.com until" in run("status").stdout
    assert run("resume").stdout.startswith("resumed: the pause of ann@example.com (power works)")
    assert "PAUSED" not in run("status").stdout


def test_status_and_why_read_what_the_admitter_writes(
    run: Muster, ledger: Server, provisioner: Client, admitter: Client
) -> None:
    node, now = held_node(ledger), datetime.now(UTC).replace(microsecond=0)
    made = {"apiVersion": NAMES.api_version, "kind": "NodeAdmission", "metadata": {"name": node}, "spec": {}}
    assert provisioner.request("POST", LEDGER, made).status == 201
    before, then = ((now - timedelta(seconds=s)).isoformat().replace("+00:00", "Z") for s in (9, 7))
    step = Transition(then, "ready", "quarantined", "XID_FATAL", XID, ADMITTER_USER)
    status = Status(State.QUARANTINED, then, "XID_FATAL", XID, transitions=(step,))
    status = replace(status, last_test=Tested(4, "watch", "FAIL", before, "XID_FATAL"))
    reply = admitter.request("PATCH", f"{LEDGER}/{node}/status", {"status": status_document(status)}, MERGE_PATCH)
    assert reply.status == 200, reply.message
    told = json.loads(run("status", "--json").stdout)
    assert next(row for row in told["waiting"] if row["name"] == node)["code"] == "XID_FATAL"
    why = json.loads(run("why", node, "--json").stdout)
    assert [one["what"] for one in why["chain"]] == ["xid", "quarantined"]
