"""How the key of a machine comes to be believed: on first use, or since it is the one that a person expected.

Expected keys stand in a file of the form of known_hosts, by the names of Nodes. It may have machine ids too, as keys of
a type of their own: they are no secrets, so they keep mistakes away and nobody who lies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.api.enrolment import Claim
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system import known_hosts as kh

# In the ledger: nobody has compared the key with anything; it is the one that was expected.
FIRST_USE, COMPARED = "first-use", "compared"
MACHINE_ID = "machine-id"
_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Trust:
    """`how` stands in the ledger, `why` in the decision. `doubt` is why the machine is not the one that is meant."""

    how: str = FIRST_USE
    why: str = "its key was compared with nothing"
    doubt: str = ""


Compare = Callable[[Claim], Trust]


def first_use(claim: Claim) -> Trust:
    """Whoever comes first with a name is that node."""
    return Trust()


def of_fingerprint(fingerprint: str) -> Compare:
    """The machine whose key has this fingerprint (SHA256:...)."""

    def compare(claim: Claim) -> Trust:
        if claim.fingerprint != fingerprint:
            return Trust(doubt=f"{claim.node}: its key is {claim.fingerprint}, and not {fingerprint}")
        return Trust(COMPARED, "its fingerprint was compared")

    return compare


@dataclass(frozen=True)
class Expected:
    """The machines that a file names, by the names of Nodes."""

    hosts: kh.KnownHosts

    def __call__(self, claim: Claim) -> Trust:
        return _of_hosts(self.hosts, claim)

    def has_key(self, claim: Claim) -> bool:
        """Whether it says which key of this type is the node's, or that one is revoked."""
        name, key = claim.node, kh.HostKey(*claim.host_key.split())
        pinned = self.hosts.keys(name)
        return any(one.key_type == key.key_type for one in pinned) or self.hosts.revoked(name, kh.DEFAULT_PORT, key)


def of_file(path: Path) -> Expected:
    """The machines of a file. Raises GpuBurninError for one that cannot be read."""
    if not path.exists():
        raise GpuBurninError(f"{path}: there is no such file of expected keys; correct --expect")
    hosts = kh.load(path)
    for entry in hosts.entries:
        if entry.key.key_type == MACHINE_ID and not _ID.fullmatch(entry.key.blob_base64):
            raise GpuBurninError(
                f"{path}: {entry.key.blob_base64!r} of {entry.hosts} is no machine id; write the 32 hexadecimal "
                "digits of its /etc/machine-id"
            )
    return Expected(hosts)


def _of_hosts(hosts: kh.KnownHosts, claim: Claim) -> Trust:
    """What the file says of a machine. Pure."""
    name, key = claim.node, kh.HostKey(*claim.host_key.split())
    if hosts.revoked(name, kh.DEFAULT_PORT, key):
        return Trust(doubt=f"{name}: {hosts.path} marks its key @revoked; make another one on it")
    pinned = hosts.keys(name)
    keys = [one for one in pinned if one.key_type == key.key_type]
    ids = [one.blob_base64 for one in pinned if one.key_type == MACHINE_ID]
    if not keys and not ids:
        return Trust(doubt=f"{name}: {hosts.path} has neither a key of type {key.key_type} nor a machine id of it")
    if keys and key not in keys:
        return Trust(doubt=f"{name}: its key is {key.fingerprint}, and {hosts.path} has {keys[0].fingerprint}")
    if ids and claim.machine_id not in ids:
        return Trust(doubt=f"{name}: its machine id is {claim.machine_id}, and {hosts.path} has {ids[0]}")
    if keys:
        return Trust(COMPARED, f"its key is the one in {hosts.path}")
    return Trust(why=f"its machine id is the one in {hosts.path}; its key was compared with nothing")
