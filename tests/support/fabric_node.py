"""A stand-in of what a node signs in tests between nodes.

It signs as a node does, by the key in its folder, and reaches no other node: what it finds stands in FOLDER/state. One
word: wrong or unreachable (it finds that), old (another version) or forged (signed with another key).
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpu_burnin.api import fabric_view, rendezvous
from gpu_burnin.api.fabric_documents import Signed, parse_signed
from gpu_burnin.api.fabric_view import MemberView, Outcome, RailView
from gpu_burnin.api.rendezvous import FabricTest, read_rendezvous, rendezvous_of
from tests.support.ssh_signature import public_line, sign

KEY, STATE = "key", "state"
_OUTCOMES = {"wrong": Outcome.WRONG, "unreachable": Outcome.UNREACHABLE}


def make(folder: Path) -> str:
    """A node's folder with a new key; the public half."""
    folder.mkdir(parents=True)
    private = Ed25519PrivateKey.generate()
    (folder / KEY).write_bytes(private.private_bytes_raw())
    return public_line(private)


def state_of(folder: Path) -> str:
    """What becomes of its tests."""
    path = folder / STATE
    return path.read_text() if path.exists() else ""


def offer(folder: Path, test: FabricTest) -> bytes:
    """The file that rank 0 makes."""
    made = rendezvous_of(test, datetime.now(UTC), 20001, secrets.token_bytes(32))
    return _signed(folder, made.canonical(), rendezvous.NAMESPACE)


def view(folder: Path, name: str, offered: bytes, keys: str, boot_id: str) -> bytes:
    """The file that a member makes of what it finds."""
    signed, state = parse_signed(offered), state_of(folder)
    met = read_rendezvous(signed, rendezvous.parse_keys(keys), lambda *_: True)
    outcome = _OUTCOMES.get(state, Outcome.OK)
    # Whoever meets a node that sends wrong bytes gets them.
    states = [state_of(folder.parent / other) for other in met.names]
    outcome = next((_OUTCOMES[one] for one in states if one in _OUTCOMES), outcome)
    rate = 1e9 if outcome is Outcome.OK else None
    found = MemberView(
        run=met.run,
        test=met.test,
        rendezvous=signed.digest,
        member=name,
        boot_id=boot_id,
        version="0.9" if state == "old" else "1.0",
        outcome=outcome,
        bytes_per_s=rate,
        rails=tuple(RailView(rail, outcome, rate) for rail in met.rails),
        peers=(),
        detail="" if outcome is Outcome.OK else f"{outcome} on all rails",
    )
    if state == "forged":
        key = Ed25519PrivateKey.generate()
        signature = sign(found.canonical(), key, fabric_view.NAMESPACE)
        return Signed(found.canonical(), signature).document()
    return _signed(folder, found.canonical(), fabric_view.NAMESPACE)


def _signed(folder: Path, statement: bytes, namespace: str) -> bytes:
    key = Ed25519PrivateKey.from_private_bytes((folder / KEY).read_bytes())
    return Signed(statement, sign(statement, key, namespace)).document()
