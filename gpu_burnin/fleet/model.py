"""What is known of a host reached over SSH: the target, the problems, the result. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpu_burnin.system import known_hosts as kh


class ProblemCode(StrEnum):
    """Why a host is not usable over SSH, in the order in which a connection meets them."""

    NAME_UNKNOWN = "NAME_UNKNOWN"
    UNREACHABLE = "UNREACHABLE"
    NO_SSH = "NO_SSH"
    KEX_FAILED = "KEX_FAILED"
    HOST_KEY_REVOKED = "HOST_KEY_REVOKED"
    HOST_KEY_CHANGED = "HOST_KEY_CHANGED"
    HOST_KEY_MISMATCH = "HOST_KEY_MISMATCH"
    HOST_KEY_UNKNOWN = "HOST_KEY_UNKNOWN"
    HOST_KEY_DUPLICATE = "HOST_KEY_DUPLICATE"
    IDENTITY_UNUSABLE = "IDENTITY_UNUSABLE"
    LOGIN_FAILED = "LOGIN_FAILED"


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a host: what, and what to do about it.

    `kind` is the message without what is the host's own, so that the same problem of many hosts can be told once.
    """

    code: ProblemCode
    message: str
    fix: str
    kind: str

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}"


class SshError(Exception):
    """A connection that could not be made or was refused by us; carries the problem and the key seen."""

    def __init__(self, problem: Problem, key: kh.HostKey | None = None) -> None:
        super().__init__(str(problem))
        self.problem = problem
        self.key = key


@dataclass(frozen=True)
class Target:
    """A host to reach. `name` is what messages call it, `fingerprint` (SHA256:...) what its key must be."""

    name: str
    address: str
    port: int = kh.DEFAULT_PORT
    user: str = "root"
    identity: Path | None = None
    fingerprint: str | None = None

    @property
    def pattern(self) -> str:
        """The host as known_hosts names it."""
        return kh.host_pattern(self.address, self.port)

    @property
    def place(self) -> str:
        """Its place in messages about its connection: the address once, also when it is the name."""
        address = "" if self.name == self.address else f"{self.address} "
        return f"{self.name}: {address}port {self.port}"


@dataclass(frozen=True)
class ProbeResult:
    """What a probe found. `rtt_s` is the time of the TCP handshake, one round trip."""

    target: Target
    problems: tuple[Problem, ...] = ()
    key: kh.HostKey | None = None
    rtt_s: float | None = None
    new_key: bool = False

    @property
    def ok(self) -> bool:
        """Whether the host can be used as it is."""
        return not self.problems


def as_json(result: ProbeResult) -> Mapping[str, object]:
    """A result as plain data: for --json and for the Ansible module."""
    return {
        "name": result.target.name,
        "address": result.target.address,
        "port": result.target.port,
        "ok": result.ok,
        "key_type": result.key.key_type if result.key else None,
        "fingerprint": result.key.fingerprint if result.key else None,
        "new_key": result.new_key,
        "rtt_s": result.rtt_s,
        "problems": [{"code": str(p.code), "message": p.message, "fix": p.fix} for p in result.problems],
    }
