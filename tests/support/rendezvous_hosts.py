"""Nodes that meet for a test: their keys, what they sign, and what a member knows of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpu_burnin.admission.sshsig import signature_holds
from gpu_burnin.api import fabric_view, rendezvous
from gpu_burnin.api.fabric_documents import Signed, parse_signed
from gpu_burnin.api.fabric_note import FabricAnswer, Part, fabric_text, read_fabric_request
from gpu_burnin.api.fabric_view import MemberView, Outcome
from gpu_burnin.api.rendezvous import FabricTest, Kind, Member, Nic, Rendezvous
from gpu_burnin.fabric import verify
from gpu_burnin.node.fabric.own import Own
from tests.support.ssh_signature import public_line, sign

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
RUN = "6f1d9c0e-5a6b-4c3d-8e2f-000000000001"
SECRET = bytes(range(32))


@dataclass(frozen=True)
class Host:
    """A host of the fabric with a key of its own."""

    number: int
    private: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    @property
    def name(self) -> str:
        """gpu-1, gpu-2..."""
        return f"gpu-{self.number}"

    @property
    def key(self) -> str:
        """`ssh-ed25519 AAAA...`."""
        return public_line(self.private)

    @property
    def boot_id(self) -> str:
        """Of the boot in which tests are made."""
        return f"0b1c2d3e-0000-4000-8000-{self.number:012d}"

    @property
    def member(self) -> Member:
        """As a member with two rails."""
        return Member(self.name, self.boot_id, tuple(Nic(rail, f"198.51.{rail}.{self.number}") for rail in (0, 1)))

    def own(self, state_dir: Path) -> Own:
        """What it knows of itself. Nothing is signed with a file of a key here."""
        return Own(self.name, self.key, self.boot_id, Path("/no/key"), state_dir)

    def signed(self, statement: bytes, namespace: str = rendezvous.NAMESPACE) -> Signed:
        """A statement with its signature."""
        return Signed(statement, sign(statement, self.private, namespace))

    def answer(self, text: str, now: datetime, outcome: Outcome | None = Outcome.OK) -> str:
        """Its answer to a request on its Node. An outcome of None: it is still at work."""
        request = read_fabric_request(text)
        test = rendezvous.parse_test(request.test.encode())
        if not request.offer:
            met = rendezvous.rendezvous_of(test, now, 20001, SECRET)
            offer = self.signed(met.canonical()).document().decode() if test.names[0] == self.name else ""
            return fabric_text(FabricAnswer(request.id, Part.READY, self.boot_id, offer=offer))
        if outcome is None:
            return fabric_text(FabricAnswer(request.id, Part.RUNNING, self.boot_id))
        digest = parse_signed(request.offer.encode()).digest
        view = _view(self, digest, run=test.run, test=test.test, outcome=outcome, bytes_per_s=None)
        signed = self.signed(view.canonical(), fabric_view.NAMESPACE).document().decode()
        return fabric_text(FabricAnswer(request.id, Part.DONE, self.boot_id, view=signed))

    def view(self, offer: Signed, **changes: Any) -> bytes:
        """The file of its view of a test in which nothing was wrong."""
        view = _view(self, offer.digest, **changes)
        return self.signed(view.canonical(), fabric_view.NAMESPACE).document()


def _view(host: Host, digest: str, **changes: Any) -> MemberView:
    view = MemberView(
        run=RUN,
        test=7,
        rendezvous=digest,
        member=host.name,
        boot_id=host.boot_id,
        version="1.0",
        outcome=Outcome.OK,
        bytes_per_s=1e9,
        rails=(),
        peers=(),
        detail="",
    )
    return replace(view, **changes)


ONE, TWO, THREE = Host(1), Host(2), Host(3)
KEYS = {host.name: host.key for host in (ONE, TWO, THREE)}
TEST = FabricTest(
    run=RUN,
    test=7,
    kind=Kind.PAIR,
    rails=(0, 1),
    members=(ONE.member, TWO.member),
    seconds=1.0,
    size_bytes=1 << 20,
    seed=5,
    valid_s=120.0,
)
MADE = rendezvous.rendezvous_of(TEST, NOW, 20001, SECRET)
OFFER = ONE.signed(MADE.canonical())


def offered(data: bytes, test: FabricTest, keys: Mapping[str, str], now: datetime) -> verify.Offered:
    """verify.offered, by the admitter's verifier of signatures."""
    return verify.offered(data, test, keys, now, signature_holds)


def result_of(
    offer: verify.Offered, views: Mapping[str, bytes], keys: Mapping[str, str], boots: Mapping[str, str]
) -> verify.Verified:
    """verify.result_of, by the same."""
    return verify.result_of(offer, views, keys, boots, signature_holds)


def made(**changes: Any) -> Rendezvous:
    """The rendezvous with some fields changed."""
    return replace(MADE, **changes)
