"""What a member of a test between nodes has found itself, signed with its SSH host key. Standard library only."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from gpu_burnin.api.evidence import one_line
from gpu_burnin.api.fabric_documents import (
    BOOT_ID,
    Holds,
    RendezvousError,
    Signed,
    Why,
    check,
    check_unlike,
    parsed,
    reason,
)
from gpu_burnin.api.rendezvous import Rendezvous, is_uuid
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import to_json

SCHEMA = "muster-fabric-view/v1"
NAMESPACE = "muster-fabric-view"
_MOST_ELEMENTS = 1 << 40
_SHA256 = re.compile(r"[0-9a-f]{64}")
_WORD = re.compile(r"[!-~]{1,64}")


class Outcome(StrEnum):
    """What a member has found. That a test was slow is judged later, from all of them."""

    OK = "ok"
    WRONG = "wrong"
    UNREACHABLE = "unreachable"
    # Small messages come through, and large ones do not.
    MTU = "mtu"
    STALLED = "stalled"


@dataclass(frozen=True, slots=True)
class RailView:
    """One rail alone. `loopback`: whether the member's own NIC gave back what it was sent, without a cable; None: not
    tried."""

    rail: int
    outcome: Outcome
    bytes_per_s: float | None = None
    loopback: bool | None = None


@dataclass(frozen=True, slots=True)
class WrongElement:
    """The first element that was another than the only right one. `kind` is what it shows, in one word."""

    position: int
    expected: str
    got: str
    kind: str


@dataclass(frozen=True, slots=True)
class PeerView:
    """What a member has found of another one."""

    rank: int
    name: str
    outcome: Outcome
    wrong_elements: int = 0
    first_wrong: WrongElement | None = None
    bytes_per_s: float | None = None
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class MemberView:
    """What a member signs. `rendezvous` is the SHA-256 of rank 0's statement: the view is of that meeting alone."""

    run: str
    test: int
    rendezvous: str
    member: str
    boot_id: str
    version: str
    outcome: Outcome
    bytes_per_s: float | None
    rails: tuple[RailView, ...]
    peers: tuple[PeerView, ...]
    detail: str
    schema: str = SCHEMA

    def canonical(self) -> bytes:
        """The bytes that are signed: JSON, keys sorted, no spaces, ASCII."""
        return canonical_json(to_json(self))

    @property
    def fault_found(self) -> bool:
        """Whether anything in it is another than right."""
        of_rails = any(rail.outcome is not Outcome.OK or rail.loopback is False for rail in self.rails)
        return self.outcome is not Outcome.OK or of_rails


def read_view(
    signed: Signed, member: str, meeting: Signed, rendezvous: Rendezvous, key: str, holds: Holds
) -> MemberView:
    """What `member`, whose pinned key is `key`, has signed of this meeting. Raises RendezvousError."""
    if not holds(signed.statement, signed.signature, key, NAMESPACE):
        raise RendezvousError(
            Why.SIGNATURE,
            f"{member}: its view is not signed by its pinned host key as a view; compare the key of the host with the "
            "pinned one, and test again",
        )
    try:
        view = parse_view(signed.statement)
    except ValueError as error:
        raise RendezvousError(
            Why.FORM,
            f"{member}: its view cannot be read ({reason(error)}); install the same gpu-burnin there, and test again",
        ) from error
    known = {one.name: one for one in rendezvous.members}
    differing = [
        f"{what} {got} and not {wanted}"
        for what, got, wanted in (
            ("run", view.run, rendezvous.run),
            ("test", view.test, rendezvous.test),
            ("member", view.member, member),
            ("rendezvous", view.rendezvous, meeting.digest),
            ("boot", view.boot_id, known[member].boot_id if member in known else "one of a member"),
        )
        if got != wanted
    ]
    if differing:
        raise RendezvousError(Why.OTHER, f"{member}: its view is of {differing[0]}, so it is of no use; test again")
    ranks = {rank: name for rank, name in enumerate(rendezvous.names) if name != member}
    strangers = [peer for peer in view.peers if ranks.get(peer.rank) != peer.name]
    if strangers or not {rail.rail for rail in view.rails} <= set(rendezvous.rails):
        raise RendezvousError(
            Why.FORM,
            f"{member}: its view is of peers or rails that the test does not have; install the same gpu-burnin there, "
            "and test again",
        )
    return view


def parse_view(data: bytes) -> MemberView:
    """A view in canonical form. Raises ValueError."""
    view = parsed(MemberView, SCHEMA, data)
    check(is_uuid(view.run), "run is not a UUID")
    check(_SHA256.fullmatch(view.rendezvous), "rendezvous is not a SHA-256 in hex")
    check(BOOT_ID.fullmatch(view.boot_id), "boot_id is not of its form")
    check(_WORD.fullmatch(view.version), "version is not of its form")
    for detail in (view.detail, *(peer.detail for peer in view.peers)):
        check(detail == one_line(detail) and detail.isprintable(), "detail is not one line of its length")
    check_unlike((rail.rail for rail in view.rails), "rail")
    check_unlike((peer.rank for peer in view.peers), "rank")
    of_parts = (*(rail.bytes_per_s for rail in view.rails), *(peer.bytes_per_s for peer in view.peers))
    for rate in (view.bytes_per_s, *of_parts):
        check(rate is None or 0 < rate < math.inf, "a bytes_per_s is no rate")
    for peer in view.peers:
        wrong = peer.first_wrong
        check(0 <= peer.wrong_elements <= _MOST_ELEMENTS, "wrong_elements is no number of elements")
        check(wrong is None or 0 <= wrong.position <= _MOST_ELEMENTS, "a position is none")
        words = (wrong.expected, wrong.got, wrong.kind) if wrong else ()
        check(all(_WORD.fullmatch(word) for word in words), "a value is none")
    check(view.canonical() == data, "it is not in canonical form")
    return view
