"""The keys with which API servers encrypt in etcd: which there are, which are in use, and what a rotation does next.

The controller's file has one key a line, `NAME KEY`, of which the first writes and all read. A line of a key alone, as
the role pki of 0.2.0 made it, has the name `muster`. What is done next follows from that file, the servers and etcd.
Kubernetes' way: https://kubernetes.io/docs/tasks/administer-cluster/encrypt-data/#rotating-a-decryption-key.
Standard library only: a part of this runs on the hosts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

KEY_BYTES = 32
FIRST_NAME = "muster"
# A rotation that has ended a moment ago is not begun again by the run that follows it.
YOUNG = timedelta(days=1)
_STAMP = "%Y%m%dt%H%M%Sz"
_OF_SERVER = re.compile(r"^\s*- name: (\S+)\n\s+secret: (\S+)$", re.MULTILINE)
# apiserver/pkg/server/options/encryptionconfig: the provider's prefix, then the name of the key.
_OF_VALUE = re.compile(rb"^k8s:enc:(\w+):v\d:([^:]{1,253}):")


@dataclass(frozen=True)
class Key:
    """One key. `secret` is 32 bytes in base64, and is never shown."""

    name: str
    secret: str

    def __repr__(self) -> str:
        return f"Key({self.shown})"

    @property
    def shown(self) -> str:
        """Name and fingerprint: tells two keys of one name apart, and nothing about either."""
        return f"{self.name} {hashlib.sha256(base64.b64decode(self.secret)).hexdigest()[:16]}"


def parse(text: str, where: str) -> tuple[Key, ...]:
    """The keys of the controller's file. Raises FleetError, which names the line and never what is in it."""
    keys = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        if not words:
            continue
        name, secret = words if len(words) == 2 else (FIRST_NAME, line.strip())
        try:
            size = len(base64.b64decode(secret, validate=True))
        except (binascii.Error, ValueError):
            size = -1
        if size != KEY_BYTES:
            # Never replaced: what is stored in etcd can be read with the old one alone.
            raise FleetError(
                f"line {number} of {where} is not {KEY_BYTES} bytes in base64; put the file back from your backup"
            )
        keys.append(Key(name, secret))
    if not keys:
        raise FleetError(f"{where} is not {KEY_BYTES} bytes in base64 but empty; put it back from your backup")
    if len({key.name for key in keys}) < len(keys):
        raise FleetError(f"{where} names two keys the same; put it back from your backup")
    if len(keys) > 2:
        raise FleetError(
            f"{where} has {len(keys)} keys ({', '.join(key.name for key in keys)}), of rotations that never ended; "
            "leave the two in it that are in use"
        )
    return tuple(keys)


def text_of(keys: Sequence[Key]) -> str:
    """The controller's file."""
    return "".join(f"{key.name} {key.secret}\n" for key in keys)


def of_server(configuration: str) -> list[str]:
    """What an API server's EncryptionConfiguration, as the role writes it, has: each key as shown, the first writes."""
    return [Key(name, secret).shown for name, secret in _OF_SERVER.findall(configuration)]


def of_value(value: bytes) -> str:
    """The name of the key under which a value in etcd is; empty for one that is not encrypted.

    Of another provider than secretbox, which is not the role's, the provider stands before the name.
    """
    found = _OF_VALUE.match(value)
    if not found:
        return ""
    provider, name = (part.decode(errors="replace") for part in found.groups())
    return name if provider == "secretbox" else f"{provider}:{name}"


def made(secret: bytes, now: datetime) -> Key:
    """A new key of this moment, of these random bytes."""
    return Key(f"{FIRST_NAME}-{now.astimezone(UTC).strftime(_STAMP)}", base64.b64encode(secret).decode())


def born(key: Key) -> datetime | None:
    """When a key was made, None for the first one of a fleet of 0.2.0, whose name does not say it."""
    try:
        return datetime.strptime(key.name.removeprefix(f"{FIRST_NAME}-"), _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None


@dataclass(frozen=True)
class Facts:
    """What there is. `servers`: each API server's keys as shown; `stored`: how many values are under which name."""

    keys: tuple[Key, ...]
    servers: Mapping[str, Sequence[str]]
    stored: Mapping[str, int]


def check(facts: Facts, hosts: Collection[str]) -> None:
    """See that nothing is under a key that the controller does not have. Raises FleetError."""
    silent = sorted(set(hosts) - set(facts.servers))
    if silent:
        raise FleetError(
            f"{', '.join(silent)} did not say which keys it has; make it answer, since what it writes "
            "with a key that is dropped could not be read any more"
        )
    known = {key.shown for key in facts.keys}
    for host, shown in sorted(facts.servers.items()):
        if not shown:
            raise FleetError(f"{host} has no key in its configuration; run site.yml first")
        if shown[0] not in known:
            raise FleetError(
                f"{host} writes with the key {shown[0]}, which is not in the controller's file "
                f"({', '.join(sorted(known))}); put the file of that rotation back"
            )
    lost = sorted(set(facts.stored) - {key.name for key in facts.keys})
    if lost:
        raise FleetError(
            f"etcd has values under keys that are not in the controller's file: "
            f"{', '.join(f'{facts.stored[name]} under {name}' for name in lost)}; put these keys back from your backup"
        )


def add(facts: Facts, secret: bytes, now: datetime, *, however_young: bool = False) -> tuple[Key, ...]:
    """The keys with a new one that reads alone; as they are during a rotation, and while the only one is young."""
    if len(facts.keys) > 1:
        return facts.keys
    (key,) = facts.keys
    when = born(key)
    young = when is not None and now - when < YOUNG and not however_young
    return facts.keys if young else (key, made(secret, now))


def lead(facts: Facts) -> tuple[Key, ...]:
    """The keys with the newest first. Raises FleetError while a server cannot read what that one writes."""
    keys = tuple(sorted(facts.keys, key=lambda key: key.name, reverse=True))
    if keys == facts.keys:
        return keys
    for host, shown in sorted(facts.servers.items()):
        if keys[0].shown not in shown:
            raise FleetError(f"{host} cannot read with the key {keys[0].name} yet; run again")
    return keys


def drop(facts: Facts) -> tuple[Key, ...]:
    """The newest key alone. Raises FleetError while another writes, or while something is stored under another."""
    newest, *old = facts.keys
    for host, shown in sorted(facts.servers.items()):
        if old and shown[0] != newest.shown:
            raise FleetError(f"{host} still writes with the key {shown[0]}; run again")
    for key in old:
        if facts.stored.get(key.name, 0):
            raise FleetError(
                f"{facts.stored[key.name]} values in etcd are still under the key {key.name}; run again, and where the "
                "number stays, see whether kube_apiserver_encrypted_resources lacks their kind"
            )
    return (newest,)
