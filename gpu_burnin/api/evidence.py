"""Evidence: a small statement about one run, signed with the host's own SSH key.

The host key is the one the controller pinned when it met the host, so there is no key to manage. Signing (see
node/signing.py) and verifying are OpenSSH's (`ssh-keygen -Y`, format PROTOCOL.sshsig, namespace `gpu-burnin`). Standard
library only.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from gpu_burnin.api.run_files import MAX_SEQUENCE
from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
from gpu_burnin.system import hardware_identity
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.files import parse_json
from gpu_burnin.system.own_name import host_name
from gpu_burnin.types import JSON, Action, Verdict

SCHEMA = "muster-evidence/v1"
NAMESPACE = "gpu-burnin"
# The level of a statement that the agent has signed: no run, but a finding that takes the admission back.
WATCHED = "watch"
DEFAULT_TTL_S = 7 * 86400.0
# Evidence of nodes tested together must not expire together.
TTL_JITTER = 0.1
MAX_SKEW_S = 60.0
# Statement, signature and the identity of 8 GPUs take about 2 KiB; Kubernetes holds all annotations of a Node to
# 256 KiB.
MAX_ANNOTATION_BYTES = 16384
_SSH_KEYGEN_TIMEOUT_S = 20.0
# The name under which the one key is listed for ssh-keygen; who the key belongs to is the caller's knowledge.
_PRINCIPAL = "host"
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CODE = re.compile(r"[A-Z0-9_]*")
# The key that a statement has only where it says something.
_MAY_LACK = "action"
# The longest that a statement's texts may be, in characters; a Node's name is a DNS subdomain.
_MOST_CHARS: Mapping[str, int] = {
    "schema": 32,
    "node": 253,
    "machine_id": 32,
    "boot_id": 36,
    "verdict": 16,
    "level": 32,
    "finished_at": 40,
    "code": 64,
    "message": 300,
}


class EvidenceError(GpuBurninError):
    """Evidence that is refused. `code` is one of evidence_codes.CODES; `statement` and `hardware` are set once the
    signature held."""

    def __init__(
        self,
        code: str,
        message: str,
        statement: Statement | None = None,
        hardware: Mapping[str, JSON] | None = None,
    ) -> None:
        super().__init__(message, EXIT_FAIL)
        self.code = code
        self.statement = statement
        self.hardware = hardware or {}


@dataclass(frozen=True)
class Statement:
    """What a host says about one run of its own, or about a finding of its agent (level WATCHED).

    `finished_at` is RFC 3339 UTC, the hashes SHA-256 in hex. `code` and `message` are the first reason's, "" for a
    PASS. `action` is what a FAIL asks for first; "", as in statements of 0.2.0, stands for none and is left out.
    """

    node: str
    machine_id: str
    boot_id: str
    report_sha256: str
    verdict: Verdict
    level: str
    plan_sha256: str
    hardware_sha256: str
    simulated: bool
    sequence: int
    finished_at: str
    code: str = ""
    message: str = ""
    action: str = ""
    schema: str = SCHEMA

    def canonical(self) -> bytes:
        """The bytes that are signed: JSON, keys sorted, no spaces, ASCII."""
        # No field holds another dataclass; asdict() would copy each value, for every look at a node.
        return canonical_json({key: value for key, value in vars(self).items() if value or key != _MAY_LACK})

    @property
    def finished(self) -> datetime:
        """`finished_at` as an aware datetime."""
        return parse_rfc3339(self.finished_at)


@dataclass(frozen=True)
class Envelope:
    """The annotation's three members. `hardware` is what the hash in the statement is of; nothing is checked yet."""

    statement: bytes
    signature: str
    hardware: Mapping[str, JSON]


@dataclass(frozen=True)
class Verified:
    """What a host has signed: the statement, and its hardware identity in words."""

    statement: Statement
    hardware: Mapping[str, JSON] = field(default_factory=dict)


@dataclass(frozen=True)
class Expectation:
    """What evidence is compared with. A field that is None is not checked.

    `highest_sequence` is the highest seen of this node (the same number is the same evidence); `ttl_s` the age
    in seconds after which evidence is expired (the local gate has none: the cluster decides on expiry);
    `verdict` None accepts any verdict, for a caller that wants to know a FAIL too.
    """

    node: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    hardware_sha256: str | None = None
    report_sha256: str | None = None
    highest_sequence: int = 0
    ttl_s: float | None = DEFAULT_TTL_S
    skew_s: float = MAX_SKEW_S
    verdict: Verdict | None = Verdict.PASS
    allow_simulated: bool = False


def shortest_ttl_s(ttl_s: float) -> float:
    """How long the proof of any node counts: each has a time of its own between this and `ttl_s`."""
    return ttl_s * (1 - TTL_JITTER)


def public_key(line: str) -> str:
    """`TYPE BASE64` out of a public key or known_hosts line; raises GpuBurninError when there is none.

    Only these two words reach the allowed-signers file: nothing else in the line can become an option.
    """
    words = line.split()
    for kind, blob in pairwise(words):
        if kind not in _KEY_TYPES:
            continue
        try:
            raw = base64.b64decode(blob, validate=True)
        except binascii.Error:
            continue
        if raw[4 : 4 + len(kind)] == kind.encode("ascii"):
            return f"{kind} {blob}"
    raise GpuBurninError(f"not an SSH public key: {line[:60]!r}; give a line like 'ssh-ed25519 AAAA...'")


def ssh_keygen(arguments: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """What OpenSSH's program made of `data`; raises GpuBurninError where it is missing or silent."""
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=data,
            capture_output=True,
            timeout=_SSH_KEYGEN_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise GpuBurninError(f"{host_name()}: ssh-keygen is missing; install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise GpuBurninError(
            f"{host_name()}: ssh-keygen gave no answer in {_SSH_KEYGEN_TIMEOUT_S:.0f} s; look at the load of the host"
        ) from error


def signature_holds(data: bytes, signature: str, public_key_line: str, namespace: str = NAMESPACE) -> bool:
    """Whether `signature` is one of `data` by exactly this key for this namespace: what it was signed for."""
    key = public_key(public_key_line)
    with tempfile.TemporaryDirectory(prefix="gpu-burnin-") as name:
        allowed, signed = Path(name) / "allowed_signers", Path(name) / "signature"
        allowed.write_text(f'{_PRINCIPAL} namespaces="{namespace}" {key}\n', encoding="ascii")
        signed.write_text(signature, encoding="utf-8")
        arguments = ["-Y", "verify", "-f", str(allowed), "-I", _PRINCIPAL, "-n", namespace, "-s", str(signed)]
        return ssh_keygen(arguments, data).returncode == 0


def one_line(message: str) -> str:
    """A message as a statement can carry it: one line, cut to its length."""
    text, most = " ".join(message.split()), _MOST_CHARS["message"]
    return text if len(text) <= most else f"{text[: most - 3]}..."


def encode_annotation(statement: bytes, signature: str, hardware: Mapping[str, JSON]) -> str:
    """The value of the Node's annotation."""
    document = {"statement": statement.decode("ascii"), "signature": signature, "hardware": dict(hardware)}
    return canonical_json(document).decode("ascii")


def strict_object(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    """For parse_json: an object of which no key appears twice; raises ValueError."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


def decode_annotation(annotation: str) -> Envelope:
    """The members of the annotation, unchecked; raises EvidenceError (EVIDENCE_MALFORMED)."""
    try:
        if len(annotation) > MAX_ANNOTATION_BYTES:
            raise ValueError(f"longer than {MAX_ANNOTATION_BYTES} bytes")
        document = parse_json(annotation, strict_object)
        if not isinstance(document, dict) or set(document) != {"statement", "signature", "hardware"}:
            raise ValueError("not exactly a statement, a signature and the hardware")
        statement, signature = document["statement"], document["signature"]
        if not isinstance(statement, str) or not isinstance(signature, str):
            raise ValueError("statement and signature must be texts")
        return Envelope(statement.encode("ascii"), signature, hardware_identity.checked(document["hardware"]))
    except ValueError as error:
        raise EvidenceError("EVIDENCE_MALFORMED", f"the evidence annotation cannot be read: {error}") from error


def read_envelope(envelope: Envelope) -> Verified:
    """What an envelope says whose signature held: the hardware is that of the statement.

    Raises EvidenceError (EVIDENCE_MALFORMED).
    """
    statement = parse_statement(envelope.statement)
    if hardware_identity.digest(envelope.hardware) != statement.hardware_sha256:
        raise EvidenceError(
            "EVIDENCE_MALFORMED", "the hardware beside the evidence statement is not that of its hash", statement
        )
    return Verified(statement, envelope.hardware)


def parse_statement(data: bytes) -> Statement:
    """The statement that `data` is the canonical encoding of; raises EvidenceError (EVIDENCE_MALFORMED)."""
    try:
        document = parse_json(data, strict_object)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        wanted = {field.name for field in fields(Statement)}
        if differ := (set(document) ^ wanted) - {_MAY_LACK}:
            raise ValueError(f"keys missing or unknown: {', '.join(sorted(differ))}")
        for key, value in document.items():
            expected = bool if key == "simulated" else int if key == "sequence" else str
            if type(value) is not expected:
                raise ValueError(f"{key} must be a {expected.__name__}")
            if key.endswith("_sha256") and not _SHA256.fullmatch(str(value)):
                raise ValueError(f"{key} is not a SHA-256 in hex")
            if (most := _MOST_CHARS.get(key)) is not None and len(str(value)) > most:
                raise ValueError(f"{key} is longer than {most} characters")
        statement = Statement(**{**document, "verdict": Verdict(document["verdict"])})
        parse_rfc3339(statement.finished_at)
        if not statement.finished_at.endswith("Z"):
            raise ValueError(f"finished_at {statement.finished_at} is not a UTC time ending in Z")
        if not 1 <= statement.sequence <= MAX_SEQUENCE:
            raise ValueError(f"sequence must be from 1 to {MAX_SEQUENCE}")
        if statement.action and statement.action not in list(Action):
            raise ValueError(f"action {statement.action!r} is none that a report has")
        if not _CODE.fullmatch(statement.code) or not statement.message.isprintable():
            raise ValueError("code or message has other characters than they may")
        if statement.canonical() != data:
            raise ValueError("not in canonical form")
        return statement
    except ValueError as error:
        raise EvidenceError("EVIDENCE_MALFORMED", f"the evidence statement cannot be read: {error}") from error


def verify(
    annotation: str,
    public_key_line: str,
    expect: Expectation,
    now: datetime | None = None,
    holds: Callable[[bytes, str, str], bool] = signature_holds,
) -> Verified:
    """What `annotation` says when it is the host's and all that is expected holds.

    `public_key_line` is the host's pinned public key, `holds` what checks the signature. Raises EvidenceError with the
    code of the first thing that does not hold: the signature first, the verdict last, so that a refused verdict is a
    true statement.
    """
    envelope = decode_annotation(annotation)
    if not holds(envelope.statement, envelope.signature, public_key_line):
        who = f"node {expect.node}" if expect.node else "the host"
        raise EvidenceError("EVIDENCE_SIGNATURE", f"the evidence is not signed by the pinned host key of {who}")
    found = read_envelope(envelope)
    refused = refusal(found.statement, expect, now or datetime.now(UTC))
    if refused:
        raise EvidenceError(*refused, found.statement, found.hardware)
    return found


def refusal(statement: Statement, expect: Expectation, now: datetime) -> tuple[str, str] | None:
    """Code and sentence of the first expectation that a (signed) statement does not meet, or None. Pure."""
    node, age = statement.node, now - statement.finished
    if expect.node is not None and node != expect.node:
        return "EVIDENCE_NODE", f"the evidence is of node {node}, not of {expect.node}"
    if expect.machine_id is not None and statement.machine_id != expect.machine_id:
        return (
            "EVIDENCE_NODE",
            f"{node}: the evidence is of machine {statement.machine_id}, not {expect.machine_id}",
        )
    if expect.boot_id is not None and statement.boot_id != expect.boot_id:
        return (
            "EVIDENCE_BOOT",
            f"{node}: the evidence is of boot {statement.boot_id}, now it is {expect.boot_id}",
        )
    if statement.sequence < expect.highest_sequence:
        return "EVIDENCE_REPLAYED", (
            f"{node}: the evidence has sequence {statement.sequence}, but {expect.highest_sequence} has been seen"
        )
    if age < timedelta(seconds=-expect.skew_s):
        return "EVIDENCE_SKEW", (
            f"{node}: the evidence is {-age.total_seconds():.0f} s in the future "
            f"(at most {expect.skew_s:.0f} s); check the clocks"
        )
    if expect.ttl_s is not None and age > timedelta(seconds=expect.ttl_s):
        return "EVIDENCE_EXPIRED", (
            f"{node}: the evidence of {statement.finished_at} is older than {expect.ttl_s:.0f} s; test again"
        )
    if expect.hardware_sha256 is not None and statement.hardware_sha256 != expect.hardware_sha256:
        return "EVIDENCE_HARDWARE", f"{node}: GPUs, VBIOS, driver or kernel are not those tested; test again"
    if expect.report_sha256 is not None and statement.report_sha256 != expect.report_sha256:
        return "EVIDENCE_REPORT", f"{node}: the report is not the one that was signed; fetch it again"
    if statement.simulated and not expect.allow_simulated:
        return "EVIDENCE_SIMULATED", f"{node}: the run was on simulated hardware, which is not allowed here"
    if expect.verdict is not None and statement.verdict is not expect.verdict:
        return "EVIDENCE_VERDICT", f"{node}: the verdict of run {statement.sequence} is {statement.verdict}"
    return None
