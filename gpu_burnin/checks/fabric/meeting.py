"""Who meets whom, where and with what. Every member has the same Meeting, but for its rank."""

from __future__ import annotations

import hashlib
import ipaddress
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gpu_burnin.device.port import DeviceError
from gpu_burnin.system.canonical import canonical_json

_LEAST_SECRET_BYTES = 16
# Files that are open beside one connection for each member and rail: those in a handshake, and the process's own.
_OTHER_FILES = 128


@dataclass(frozen=True)
class Peer:
    """A member. `addresses` are those of its NICs, by rail."""

    name: str
    addresses: Mapping[int, str]


@dataclass(frozen=True)
class Meeting:
    """One test, as the member `rank` sees it; ranks are places in `members`.

    `rails` are tested alone after all together. `secret` is known to the members only, `port` is the one that they
    listen on. All have to meet within join_s; a link on which nothing comes in stall_s has stalled.
    """

    members: tuple[Peer, ...]
    rank: int
    port: int
    secret: bytes
    rails: tuple[int, ...]
    seconds: float
    size_bytes: int
    seed: int
    join_s: float
    stall_s: float

    @property
    def ranks(self) -> int:
        """Number of members."""
        return len(self.members)

    @property
    def others(self) -> tuple[int, ...]:
        """All ranks but this one."""
        return tuple(rank for rank in range(self.ranks) if rank != self.rank)

    @cached_property
    def together(self) -> tuple[int, ...]:
        """The rails on which all members have an address."""
        return tuple(sorted(set.intersection(*(set(member.addresses) for member in self.members))))

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of what all members must agree on. Connections of another meeting do not authenticate."""
        of_members = [
            [member.name, [[rail, member.addresses[rail]] for rail in sorted(member.addresses)]]
            for member in self.members
        ]
        what = [of_members, self.port, list(self.rails), self.seconds, self.size_bytes, self.seed, self.stall_s]
        return hashlib.sha256(canonical_json(what)).digest()

    def name(self, rank: int) -> str:
        """Name of a member, for people."""
        return self.members[rank].name

    def address(self, rank: int, rail: int) -> str:
        """Where a member is on a rail."""
        return self.members[rank].addresses[rail]


@dataclass(frozen=True)
class Fault:
    """A fault on purpose, at the member that is given it.

    wrong_byte: one byte of what it sends to the rank `to` in a collective, on the way out. dead_rank and stopped_rank:
    its process is killed or stopped in the middle of a ring.
    """

    kind: Literal["wrong_byte", "dead_rank", "stopped_rank"]
    to: int = -1
    collective: str = "all_reduce"


def check(meeting: Meeting) -> None:
    """Raises DeviceError for a meeting that cannot be held: this is a fault of the caller."""
    ranks = len(meeting.members)
    wrong = ""
    if ranks < 2 or not 0 <= meeting.rank < ranks:
        wrong = f"rank {meeting.rank} of {ranks} members is none"
    elif len(meeting.secret) < _LEAST_SECRET_BYTES:
        wrong = f"the secret has {len(meeting.secret)} bytes, and {_LEAST_SECRET_BYTES} are the least"
    elif not meeting.together or not set(meeting.rails) <= set(meeting.together):
        wrong = "members have no addresses on the same rails"
    elif ranks * len(meeting.together) + _OTHER_FILES > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        wrong = f"{ranks} members on {len(meeting.together)} rails need more open files than `ulimit -n` allows here"
    elif min(meeting.seconds, meeting.size_bytes, meeting.join_s, meeting.stall_s) <= 0:
        wrong = "a time or the size is not above 0"
    else:
        wrong = next(filter(None, (_of_rail(meeting, rail) for rail in meeting.together)), "")
    if wrong:
        raise DeviceError(f"no test between nodes: {wrong}; make the test anew with `muster fabric`")


def _of_rail(meeting: Meeting, rail: int) -> str:
    """What is wrong with the addresses of a rail."""
    known: dict[str, str] = {}
    for member in meeting.members:
        address = member.addresses[rail]
        try:
            same = known.setdefault(str(ipaddress.ip_address(address)), member.name)
        except ValueError:
            return f"{member.name} has {address!r} on rail {rail}, which is no IP address"
        if same != member.name:
            return f"{same} and {member.name} have the same address {address} on rail {rail}"
    return ""
