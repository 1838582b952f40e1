"""How the members of a test between nodes meet: a statement of rank 0, signed with its SSH host key.

The controller makes a FabricTest. Rank 0 makes a Rendezvous of it: the same terms, a port and an id that whoever
connects has to prove. What each member then finds it signs too (api/fabric_view.py). Each has a namespace of its own,
so that neither passes for the other, nor evidence for one of them. Standard library only.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from gpu_burnin.api.evidence import MAX_SKEW_S, public_key
from gpu_burnin.api.fabric_documents import (
    BOOT_ID,
    NAME,
    Holds,
    RendezvousError,
    Signed,
    Why,
    check,
    check_unlike,
    parsed,
    reason,
)
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import parse_rfc3339, rfc3339
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.known_hosts import EVIDENCE_KEY_TYPE

TEST_SCHEMA = "muster-fabric-test/v1"
SCHEMA = "muster-fabric-rendezvous/v1"
NAMESPACE = "muster-fabric-rendezvous"
SECRET_BYTES = 32
# Where the members listen: below NodePorts (30000 and more) and what Linux gives to connections (32768 and more).
FIRST_PORT, LAST_PORT = 20000, 29999
MOST_MEMBERS = 1024
MOST_VALID_S = 3600.0
_MOST_RAILS = 64
_MOST_SIZE_BYTES = 1 << 40


class Kind(StrEnum):
    """What a test is. All are exact collectives over all NICs at once; `rail` tests each rail for itself too."""

    PAIR = "pair"
    RAIL = "rail"
    GROUP = "group"
    XOR = "xor"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface of the fabric. All NICs of one rail are on leaf switches of that rail."""

    rail: int
    address: str


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a test, in the boot in which it was planned."""

    name: str
    boot_id: str
    nics: tuple[Nic, ...]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is agreed: the members by rank, and what they run. `rails` are those tested one by one after all together.

    `valid_s` is how long a rendezvous may be joined.
    """

    run: str
    test: int
    kind: Kind
    rails: tuple[int, ...]
    members: tuple[Member, ...]
    seconds: float
    size_bytes: int
    seed: int
    valid_s: float

    def canonical(self) -> bytes:
        """The bytes that are written and signed: JSON, keys sorted, no spaces, ASCII."""
        return canonical_json(to_json(self))

    @property
    def names(self) -> tuple[str, ...]:
        """The members' names by rank."""
        return tuple(member.name for member in self.members)

    def same_terms(self, other: Terms) -> bool:
        """Whether the other one agrees to the same."""
        return all(getattr(self, one.name) == getattr(other, one.name) for one in fields(Terms))


@dataclass(frozen=True, kw_only=True)
class FabricTest(Terms):
    """The controller's file for rank 0."""

    schema: str = TEST_SCHEMA


@dataclass(frozen=True, kw_only=True)
class Rendezvous(Terms):
    """What rank 0 signs. `id` is 32 random bytes in base64, from which connections are authenticated: a secret."""

    made_at: str
    expires_at: str
    port: int
    id: str = field(repr=False)
    schema: str = SCHEMA

    @property
    def secret(self) -> bytes:
        """The bytes of `id`."""
        return base64.b64decode(self.id, validate=True)

    @property
    def made(self) -> datetime:
        """`made_at` as an aware datetime."""
        return parse_rfc3339(self.made_at)

    @property
    def deadline(self) -> datetime:
        """After it no clock that is right by MAX_SKEW_S takes it: so long a used id has to be kept."""
        return parse_rfc3339(self.expires_at) + timedelta(seconds=MAX_SKEW_S)


def rendezvous_of(test: FabricTest, now: datetime, port: int, secret: bytes) -> Rendezvous:
    """What rank 0 offers to meet by."""
    terms = {one.name: getattr(test, one.name) for one in fields(Terms)}
    return Rendezvous(
        **terms,
        made_at=rfc3339(now),
        expires_at=rfc3339(now + timedelta(seconds=test.valid_s)),
        port=port,
        id=base64.b64encode(secret).decode("ascii"),
    )


def parse_test(data: bytes) -> FabricTest:
    """The controller's file. Raises ValueError."""
    test = parsed(FabricTest, TEST_SCHEMA, data)
    _check_terms(test)
    return test


def keys_text(keys: Mapping[str, str]) -> str:
    """The file of the members' pinned host keys, which parse_keys reads."""
    return "".join(f"{name} {key}\n" for name, key in keys.items())


def parse_keys(text: str) -> Mapping[str, str]:
    """The key of each member as `ssh-ed25519 BASE64`. Raises ValueError."""
    found: dict[str, str] = {}
    owners: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            name, kind, blob = words
            key = public_key(f"{kind} {blob}")
        except (ValueError, GpuBurninError):
            raise ValueError(f"line {number} is not NAME {EVIDENCE_KEY_TYPE} KEY") from None
        if kind != EVIDENCE_KEY_TYPE or not NAME.fullmatch(name):
            raise ValueError(f"line {number} is not NAME {EVIDENCE_KEY_TYPE} KEY")
        if name in found:
            raise ValueError(f"{name} stands twice")
        if key in owners:
            raise ValueError(f"{owners[key]} and {name} have the same key")
        found[name], owners[key] = key, name
    return found


def read_rendezvous(signed: Signed, keys: Mapping[str, str], holds: Holds) -> Rendezvous:
    """What the rank 0 that the statement names has signed with its pinned key. Raises RendezvousError."""
    try:
        made = parsed(Rendezvous, SCHEMA, signed.statement)
        _check_terms(made)
        _check_rendezvous(made)
        if made.canonical() != signed.statement:
            raise ValueError("it is not in canonical form")
    except ValueError as error:
        raise RendezvousError(
            Why.FORM, f"the offer cannot be read ({reason(error)}); make it anew with `gpu-burnin fabric offer`"
        ) from error
    first = made.members[0].name
    if first not in keys:
        raise RendezvousError(
            Why.KEYS, f"{first}: made the offer, and its host key is not among the keys; give the key of each member"
        )
    if not holds(signed.statement, signed.signature, keys[first], NAMESPACE):
        raise RendezvousError(
            Why.SIGNATURE,
            f"{first}: the offer is not signed by its pinned host key as a rendezvous; fetch it anew from {first}, and "
            "if that does not help, compare the key of the host with the pinned one",
        )
    return made


def check_times(rendezvous: Rendezvous, now: datetime) -> None:
    """Raises RendezvousError for one from the future, and for one that has expired, by more than clocks may differ."""
    first, ahead_s = rendezvous.members[0].name, (rendezvous.made - now).total_seconds()
    if ahead_s > MAX_SKEW_S:
        raise RendezvousError(
            Why.FUTURE,
            f"{first}: the offer is {ahead_s:.0f} s in the future (at most {MAX_SKEW_S:.0f} s); check the clocks here "
            f"and on {first}",
        )
    if now > rendezvous.deadline:
        raise RendezvousError(
            Why.EXPIRED,
            f"{first}: the offer expired at {rendezvous.expires_at}; make it anew, and check the clocks if it is fresh",
        )


def is_uuid(text: str) -> bool:
    """Whether it is a UUID in its one form."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def _check_terms(terms: Terms) -> None:
    check(is_uuid(terms.run), "run is not a UUID")
    check(0 <= terms.test < 1 << 31, "test is not from 0 to 2^31")
    check(2 <= len(terms.members) <= MOST_MEMBERS, f"it has not from 2 to {MOST_MEMBERS} members")
    check(0 < terms.seconds <= MOST_VALID_S, f"seconds is not over 0 and at most {MOST_VALID_S:.0f}")
    check(1 <= terms.valid_s <= MOST_VALID_S, f"valid_s is not from 1 to {MOST_VALID_S:.0f}")
    check(1 <= terms.size_bytes <= _MOST_SIZE_BYTES, "size_bytes is not from 1 to 2^40")
    check(0 <= terms.seed < 1 << 63, "seed is not from 0 to 2^63")
    check_unlike(terms.rails, "rail")
    check_unlike(terms.names, "member")
    check_unlike((nic.address for member in terms.members for nic in member.nics), "address")
    together = set.intersection(*({nic.rail for nic in member.nics} for member in terms.members))
    check(together, "no rail has a NIC of every member")
    for member in terms.members:
        check(NAME.fullmatch(member.name), f"{member.name[:64]!r} is not the name of a node")
        check(BOOT_ID.fullmatch(member.boot_id), f"the boot_id of {member.name} is not of its form")
        of_rails = [nic.rail for nic in member.nics]
        check(len(set(of_rails)) == len(of_rails), f"{member.name} has two NICs on one rail")
        check(set(terms.rails) <= set(of_rails), f"{member.name} has no NIC on one of the rails {list(terms.rails)}")
        for nic in member.nics:
            check(0 <= nic.rail < _MOST_RAILS, f"{member.name} has a rail that is not from 0 to {_MOST_RAILS - 1}")
            check(_is_host(nic.address), f"{nic.address[:64]!r} of {member.name} is not the IP address of a host")


def _check_rendezvous(made: Rendezvous) -> None:
    check(FIRST_PORT <= made.port <= LAST_PORT, f"port is not from {FIRST_PORT} to {LAST_PORT}")
    # Both ways: other base64 of the same bytes would be another text with the same id.
    check(len(made.secret) == SECRET_BYTES, f"id is not {SECRET_BYTES} bytes")
    check(base64.b64encode(made.secret).decode("ascii") == made.id, "id is not base64")
    lasts_s = (parse_rfc3339(made.expires_at) - made.made).total_seconds()
    check(made.made_at.endswith("Z") and made.expires_at.endswith("Z"), "a time does not end in Z")
    check(abs(lasts_s - made.valid_s) <= 0.002, "it does not expire valid_s after it was made")


def _is_host(text: str) -> bool:
    """Whether it is an address in its one form, so that the same one is the same text, and one that a host can have."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return str(address) == text and not (address.is_unspecified or address.is_multicast)
