"""Evidence: a small statement about one run, signed with the host's own SSH key.

The host key is the one the controller pinned when it met the host, so there is no key to manage. Signing and
verifying are OpenSSH's (`ssh-keygen -Y`,
format PROTOCOL.sshsig, namespace `gpu-burnin`). Standard library only.
"""

from __future__ import annotations

import base64
import binascii
import re
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
from gpu_burnin.node.store import EVIDENCE, SIGNATURE
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.files import parse_json, read_bytes, read_text, write_atomic
from gpu_burnin.types import JSON, Verdict

SCHEMA = "muster-evidence/v1"
NAMESPACE = "gpu-burnin"
DEFAULT_TTL_S = 7 * 86400.0
MAX_SKEW_S = 60.0
# Statement and signature take about 1 KiB; Kubernetes holds all annotations of a Node to 256 KiB.
MAX_ANNOTATION_BYTES = 16384
_SSH_KEYGEN_TIMEOUT_S = 20.0
# The name under which the one key is listed for ssh-keygen; who the key belongs to is the caller's knowledge.
_PRINCIPAL = "host"
_KEY_ADVICE = {"No such file or directory": "make it with `ssh-keygen -A`", "Permission denied": "run as root"}
_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_SHA256 = re.compile(r"[0-9a-f]{64}")

# Why evidence is refused: what the code means, and what to do about it.
CODES: Mapping[str, tuple[str, str]] = {
    "EVIDENCE_MALFORMED": (
        "The evidence cannot be read",
        "Publish it again with gpu-burnin publish on the node; if it stays, run gpu-burnin run there.",
    ),
    "EVIDENCE_SIGNATURE": (
        "The signature is not that of the pinned host key over these bytes",
        "Find out who wrote the annotation; if the host was reinstalled, pin its new host key and test it again.",
    ),
    "EVIDENCE_NODE": (
        "The evidence is of another node or machine",
        "Find out who wrote the annotation; if the machine was replaced, test the new one with gpu-burnin run.",
    ),
    "EVIDENCE_BOOT": (
        "The evidence is of another boot",
        "Nothing, if the node has just booted: its burn-in runs by itself; else run gpu-burnin run on it.",
    ),
    "EVIDENCE_REPLAYED": (
        "Newer evidence of this node has been seen",
        "Publish the newest with gpu-burnin publish on the node; if its state directory was lost, raise the number in "
        "its file sequence above the one seen and test again.",
    ),
    "EVIDENCE_SKEW": (
        "The evidence is from the future",
        "Set the clocks of node and controller right (time_sync), then test again.",
    ),
    "EVIDENCE_EXPIRED": ("The evidence is too old", "Test the node again when it is idle."),
    "EVIDENCE_HARDWARE": (
        "GPUs, VBIOS, driver or kernel are not those that were tested",
        "Test the node again as it is now.",
    ),
    "EVIDENCE_REPORT": (
        "The report is not the one the evidence is about",
        "Fetch the report from the node again.",
    ),
    "EVIDENCE_SIMULATED": (
        "The run was on simulated hardware",
        "Run on real GPUs; only a lab may allow simulated hardware.",
    ),
    "EVIDENCE_VERDICT": (
        "The verdict is not PASS",
        "Read the report (gpu-burnin report on the node), do what its reasons say and test again.",
    ),
}


class EvidenceError(GpuBurninError):
    """Evidence that is refused. `code` is one of CODES; `statement` is set once the signature held."""

    def __init__(self, code: str, message: str, statement: Statement | None = None) -> None:
        super().__init__(message, EXIT_FAIL)
        self.code = code
        self.statement = statement


@dataclass(frozen=True)
class Statement:
    """What a host says about one run of its own. `finished_at` is RFC 3339 UTC, the hashes SHA-256 in hex."""

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
    schema: str = SCHEMA

    def canonical(self) -> bytes:
        """The bytes that are signed: JSON, keys sorted, no spaces, ASCII."""
        return canonical_json(asdict(self))

    @property
    def finished(self) -> datetime:
        """`finished_at` as an aware datetime."""
        return parse_time(self.finished_at)


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


def parse_time(text: str) -> datetime:
    """An RFC 3339 time in UTC (`...Z`); raises ValueError for anything else."""
    if not text.endswith("Z"):
        raise ValueError(f"{text!r} is not a UTC time ending in Z")
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=UTC)


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


def _ssh_keygen(arguments: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["ssh-keygen", *arguments],
            input=data,
            capture_output=True,
            timeout=_SSH_KEYGEN_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise GpuBurninError(f"{socket.gethostname()}: ssh-keygen is missing; install openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise GpuBurninError(
            f"{socket.gethostname()}: ssh-keygen gave no answer in {_SSH_KEYGEN_TIMEOUT_S:.0f} s; "
            "look at the load of the host"
        ) from error


def sign(data: bytes, host_key: Path) -> str:
    """An armored SSH signature of `data` by the private key `host_key`; raises GpuBurninError."""
    done = _ssh_keygen(["-Y", "sign", "-q", "-n", NAMESPACE, "-f", str(host_key)], data)
    if done.returncode != 0 or not done.stdout:
        detail = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise GpuBurninError(
            f"{socket.gethostname()}: cannot sign with the host key {host_key} "
            f"({detail[-1] if detail else 'no reason given'}); run as root, or set host_key in the configuration"
        )
    return done.stdout.decode("ascii")


def signature_holds(data: bytes, signature: str, public_key_line: str) -> bool:
    """Whether `signature` is one of `data` by exactly this key in our namespace."""
    key = public_key(public_key_line)
    with tempfile.TemporaryDirectory(prefix="gpu-burnin-") as name:
        allowed, signed = Path(name) / "allowed_signers", Path(name) / "signature"
        allowed.write_text(f'{_PRINCIPAL} namespaces="{NAMESPACE}" {key}\n', encoding="ascii")
        signed.write_text(signature, encoding="utf-8")
        arguments = ["-Y", "verify", "-f", str(allowed), "-I", _PRINCIPAL, "-n", NAMESPACE, "-s", str(signed)]
        return _ssh_keygen(arguments, data).returncode == 0


def own_public_key(host_key: Path) -> str:
    """The public half of the host's private key, from the private file itself."""
    done = _ssh_keygen(["-y", "-P", "", "-f", str(host_key)], b"")
    if done.returncode != 0:
        # ssh-keygen's own words behind the last colon: no such file, permission denied, a passphrase.
        reason = done.stderr.decode("utf-8", "replace").strip().rpartition(": ")[2]
        advice = _KEY_ADVICE.get(reason, "make one without a passphrase")
        raise GpuBurninError(
            f"{socket.gethostname()}: cannot read the host key {host_key} ({reason}): {advice}, or set host_key in "
            "the configuration"
        )
    return public_key(done.stdout.decode("utf-8", "replace"))


def write_evidence(directory: Path, statement: Statement, host_key: Path) -> None:
    """Sign, place evidence.json.sig, then evidence.json: no statement without its signature."""
    data = statement.canonical()
    signature = sign(data, host_key)
    write_atomic(directory / SIGNATURE, signature.encode("ascii"))
    write_atomic(directory / EVIDENCE, data)


def encode_annotation(statement: bytes, signature: str) -> str:
    """The value of the Node's annotation."""
    return canonical_json({"statement": statement.decode("ascii"), "signature": signature}).decode("ascii")


def annotation_of(directory: Path) -> str:
    """The annotation made of the evidence files in a run's directory; raises EvidenceError."""
    try:
        statement = read_bytes(directory / EVIDENCE, follow=False)
        return encode_annotation(statement, read_text(directory / SIGNATURE, follow=False))
    except (OSError, UnicodeDecodeError) as error:
        raise EvidenceError("EVIDENCE_MALFORMED", f"{directory}: cannot read the evidence ({error})") from error


def _strict_object(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


def decode_annotation(annotation: str) -> tuple[bytes, str]:
    """The signed bytes and the signature; raises EvidenceError (EVIDENCE_MALFORMED)."""
    try:
        if len(annotation) > MAX_ANNOTATION_BYTES:
            raise ValueError(f"longer than {MAX_ANNOTATION_BYTES} bytes")
        document = parse_json(annotation, _strict_object)
        if not isinstance(document, dict) or set(document) != {"statement", "signature"}:
            raise ValueError("not exactly a statement and a signature")
        statement, signature = document["statement"], document["signature"]
        if not isinstance(statement, str) or not isinstance(signature, str):
            raise ValueError("statement and signature must be texts")
        return statement.encode("ascii"), signature
    except ValueError as error:
        raise EvidenceError("EVIDENCE_MALFORMED", f"the evidence annotation cannot be read: {error}") from error


def parse_statement(data: bytes) -> Statement:
    """The statement that `data` is the canonical encoding of; raises EvidenceError (EVIDENCE_MALFORMED)."""
    try:
        document = parse_json(data, _strict_object)
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        wanted = {field.name for field in fields(Statement)}
        if set(document) != wanted:
            raise ValueError(f"keys missing or unknown: {', '.join(sorted(set(document) ^ wanted))}")
        for key, value in document.items():
            expected = bool if key == "simulated" else int if key == "sequence" else str
            if type(value) is not expected:
                raise ValueError(f"{key} must be a {expected.__name__}")
            if key.endswith("_sha256") and not _SHA256.fullmatch(str(value)):
                raise ValueError(f"{key} is not a SHA-256 in hex")
        statement = Statement(**{**document, "verdict": Verdict(document["verdict"])})
        parse_time(statement.finished_at)
        if statement.sequence < 1:
            raise ValueError("sequence must be 1 or more")
        if statement.canonical() != data:
            raise ValueError("not in canonical form")
        return statement
    except ValueError as error:
        raise EvidenceError("EVIDENCE_MALFORMED", f"the evidence statement cannot be read: {error}") from error


def verify(annotation: str, public_key_line: str, expect: Expectation, now: datetime | None = None) -> Statement:
    """The statement in `annotation` when it is the host's and all that is expected holds.

    `public_key_line` is the host's pinned public key. Raises EvidenceError with the code of the first thing
    that does not hold: the signature first, the verdict last, so that a refused verdict is a true statement.
    """
    data, signature = decode_annotation(annotation)
    if not signature_holds(data, signature, public_key_line):
        who = f"node {expect.node}" if expect.node else "the host"
        raise EvidenceError("EVIDENCE_SIGNATURE", f"the evidence is not signed by the pinned host key of {who}")
    statement = parse_statement(data)
    refused = refusal(statement, expect, now or datetime.now(UTC))
    if refused:
        raise EvidenceError(*refused, statement)
    return statement


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
