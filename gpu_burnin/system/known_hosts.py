"""The project's known_hosts file, in OpenSSH's format (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT")."""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import read_text, write_atomic

DEFAULT_PORT = 22
EVIDENCE_KEY_TYPE = "ssh-ed25519"
# Some 100 bytes a key: a fleet of a hundred thousand fits.
_MOST_BYTES = 64 << 20
# [host]:port, as a pattern or a name.
_PORT = re.compile(r"^(!?)\[([^\]]*)\]:[0-9*?]+$")


@dataclass(frozen=True)
class HostKey:
    """A public host key: its type name and the base64 of its blob, as in known_hosts."""

    key_type: str
    blob_base64: str

    @property
    def fingerprint(self) -> str:
        """SHA256:..., as ssh-keygen -l prints it."""
        digest = hashlib.sha256(base64.b64decode(self.blob_base64)).digest()
        return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")

    @property
    def line(self) -> str:
        """`TYPE BASE64`, as in authorized_keys and allowed_signers."""
        return f"{self.key_type} {self.blob_base64}"


@dataclass(frozen=True)
class Entry:
    """One line of the file. `marker` is "", "@revoked" or "@cert-authority"."""

    marker: str
    hosts: str
    key: HostKey

    @property
    def is_plain(self) -> bool:
        """Whether the line is about the names that stand in it and no others."""
        return not self.hosts.startswith("|") and not set(self.hosts) & set("*?!")

    def matches(self, name: str) -> bool:
        """Whether this line is about `name` (as made by `host_pattern`); like ssh, whatever the case of its letters."""
        if self.hosts.startswith("|1|"):
            return _hashed_match(self.hosts, name)
        return _any_match(self.hosts.lower().split(","), name)

    def matches_host(self, address: str, port: int) -> bool:
        """Whether this line is about a host at any port: a key that was given up is given up at each."""
        if self.matches(host_pattern(address, port)) or self.matches(host_pattern(address)):
            return True
        names = [_PORT.sub(r"\1\2", pattern) for pattern in self.hosts.lower().split(",")]
        return not self.hosts.startswith("|") and _any_match(names, address.lower())


@dataclass(frozen=True)
class KnownHosts:
    """The parsed file; `text` is kept so that nothing of the user's is lost when lines are added."""

    path: Path
    text: str
    entries: tuple[Entry, ...]

    def keys(self, address: str, port: int = DEFAULT_PORT) -> tuple[HostKey, ...]:
        """The keys pinned for a host, in file order, without certificate authorities and revoked keys."""
        pinned = (entry.key for entry in self._about(host_pattern(address, port)) if not entry.marker)
        return tuple(key for key in pinned if not self.revoked(address, port, key))

    def revoked(self, address: str, port: int, key: HostKey) -> bool:
        """Whether an @revoked line forbids this key for this host, by whatever name or port the line has it."""
        return any(entry.matches_host(address, port) for entry in self._revoked if entry.key == key)

    def evidence_key(self, address: str, port: int = DEFAULT_PORT) -> str:
        """The one key by which the host's evidence is checked, as `TYPE BASE64`; "" unless there is exactly one."""
        lines = {key.line for key in self.keys(address, port) if key.key_type == EVIDENCE_KEY_TYPE}
        return lines.pop() if len(lines) == 1 else ""

    def _about(self, name: str) -> list[Entry]:
        """The lines about a host, in file order."""
        named, others = self._index
        return [e for _, e in sorted([*named.get(name, ()), *(o for o in others if o[1].matches(name))], key=_line_of)]

    @functools.cached_property
    def _revoked(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.marker == "@revoked")

    @functools.cached_property
    def _index(self) -> tuple[dict[str, list[tuple[int, Entry]]], list[tuple[int, Entry]]]:
        """Lines of plain names by name, and all others: a fleet has thousands of the first and few of the second."""
        named: dict[str, list[tuple[int, Entry]]] = defaultdict(list)
        others: list[tuple[int, Entry]] = []
        for line, entry in enumerate(self.entries):
            if entry.is_plain:
                for name in set(entry.hosts.lower().split(",")):
                    named[name].append((line, entry))
            else:
                others.append((line, entry))
        return named, others


def _line_of(entry: tuple[int, Entry]) -> int:
    return entry[0]


def host_pattern(address: str, port: int = DEFAULT_PORT) -> str:
    """The name of a host as ssh looks it up: `host`, or `[host]:port` when the port is not 22."""
    return address.lower() if port == DEFAULT_PORT else f"[{address.lower()}]:{port}"


def load(path: Path) -> KnownHosts:
    """Read the file; one that does not exist is empty.

    Raises GpuBurninError for an unreadable file or a line that is not known_hosts syntax, which ssh would
    skip in silence: a pinned key that is not read is a key that is not checked.
    """
    try:
        # A comment may be in any encoding: its bytes stay as they are.
        text = read_text(path, _MOST_BYTES, errors="surrogateescape")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise GpuBurninError(f"cannot read the known_hosts file {path} ({error}); check its owner and mode") from error
    entries = [
        _parse_line(line.strip(), f"{path} line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    return KnownHosts(path, text, tuple(entries))


def record(known: KnownHosts, new: Iterable[tuple[str, int, HostKey]]) -> None:
    """Add (address, port, key) lines to the file in one atomic write; makes its directory when missing."""
    lines = [f"{host_pattern(address, port)} {key.line}\n" for address, port, key in new]
    if not lines:
        return
    old = known.text if not known.text or known.text.endswith("\n") else known.text + "\n"
    try:
        known.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(known.path, (old + "".join(lines)).encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise GpuBurninError(
            f"cannot write the known_hosts file {known.path} ({error}); check its directory's owner and space"
        ) from error


def _parse_line(line: str, where: str) -> Entry:
    fields = line.split()
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if len(fields) < 3 or marker not in ("", "@revoked", "@cert-authority"):
        raise GpuBurninError(f"{where} is not `[@marker] hosts type key`; correct or remove the line")
    hosts, key_type, blob = fields[:3]
    try:
        base64.b64decode(blob, validate=True)
    except binascii.Error as error:
        raise GpuBurninError(f"{where} has a key that is not base64; correct or remove the line") from error
    return Entry(marker, hosts, HostKey(key_type, blob))


def _any_match(patterns: Iterable[str], name: str) -> bool:
    """As ssh's match_hostname: one pattern matches, and none that is negated."""
    listed = tuple(patterns)
    if any(_glob(pattern[1:]).fullmatch(name) for pattern in listed if pattern.startswith("!")):
        return False
    return any(_glob(pattern).fullmatch(name) for pattern in listed if not pattern.startswith("!"))


@functools.lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    """Of "*" and "?" alone: brackets are those of [host]:port."""
    words = {"*": ".*", "?": "."}
    return re.compile("".join(words.get(character, re.escape(character)) for character in pattern), re.DOTALL)


def _hashed_match(hashed: str, name: str) -> bool:
    # HashKnownHosts: |1|base64(salt)|base64(HMAC-SHA1(salt, name))
    try:
        _, _, salt, digest = hashed.split("|")
        expected = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(expected, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False
