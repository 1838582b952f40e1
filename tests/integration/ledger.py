"""Entries of the ledger (NodeAdmissions) on a real API server, as their writers make and change them."""

from __future__ import annotations

from typing import Any

from gpu_burnin.admission.client import admissions_path
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Hardware, Identity, NodeAdmission, Place, Spec, document
from tests.integration.gate import numbers
from tests.integration.kube import MERGE_PATCH, Client, Reply

NAMES = Names()
LEDGER = admissions_path(NAMES)
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJAmHXklaux7lqpKcV5gDZka5HDeDLI27rIyqJDQAkfk"


def entry(provisioner: Client, spec: Spec | None = None) -> str:
    """A node's entry, as the provisioner makes it."""
    name = f"led-{next(numbers)}"
    made = document(NodeAdmission(name, spec or Spec(Identity(KEY, "machine"), Hardware(8), place=Place("r1"))), NAMES)
    reply = provisioner.request("POST", LEDGER, made)
    assert reply.status == 201, reply.message
    return name


def change(client: Client, name: str, body: dict[str, Any], subresource: str = "") -> Reply:
    """A merge patch of an entry."""
    return client.request("PATCH", f"{LEDGER}/{name}{subresource}", body, MERGE_PATCH)
