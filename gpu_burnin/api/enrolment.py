"""A NodeEnrolment as typed values: who a machine that boots from the fleet's image says it is, and what was decided.

One for each node whose machine was given a token, named as the node. The provisioner makes it with the token; the
machine says once, with that token, who it is, and signs that with its own SSH host key; the provisioner decides. The
CRD (gpu_burnin/api/crd.py) is made of these classes. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from urllib.parse import quote

from gpu_burnin.api.evidence import public_key, signature_holds, strict_object
from gpu_burnin.api.names import ENROLMENT_KIND, ENROLMENT_PLURAL, Names
from gpu_burnin.api.remedies import DEFINITIONS
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json
from gpu_burnin.system.known_hosts import EVIDENCE_KEY_TYPE, HostKey
from gpu_burnin.types import JSON_NAME, OMIT_DEFAULT

SCHEMA = "muster-enrolment/v1"
# Of the signature: one made for an enrolment is no evidence, and the other way round.
SIGNED_FOR = "muster-enrolment"
# What the bearer of every token is in; which node a token is for stands in the NodeEnrolment.
GROUP = "system:bootstrappers:muster-enrol"
USER_PREFIX = "system:bootstrap:"
# A kernel command line has one word for it, a file one line.
KERNEL_ARGUMENT = "muster.enrol"
_TOKEN = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_NODE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MOST_CHARS: Mapping[str, int] = {"node": 253, "token": 6, "host_key": 128, "product_uuid": 64}
_FORMS: Mapping[str, re.Pattern[str]] = {
    "machine_id": re.compile(r"[0-9a-f]{32}"),
    "boot_id": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "request_sha256": re.compile(r"[0-9a-f]{64}"),
    # What firmware says: some leave it empty.
    "product_uuid": re.compile(r"[0-9a-fA-F-]*"),
}
_ABSENT: dict[str, object] = {OMIT_DEFAULT: True}


class EnrolmentError(GpuBurninError):
    """An enrolment, or what a machine was given for one, that cannot be read or is not true."""


@dataclass(frozen=True)
class Handed:
    """What a machine is given to enrol with, by user-data or kernel argument: its node's name, and a token's two parts.

    Only the secret is one: the id is the token's name.
    """

    node: str
    token: str
    secret: str = field(repr=False)

    @property
    def text(self) -> str:
        """As the machine is given it: NODE:ID.SECRET."""
        return f"{self.node}:{self.bearer}"

    @property
    def bearer(self) -> str:
        """As the API server is shown it."""
        return f"{self.token}.{self.secret}"


@dataclass(frozen=True)
class Claim:
    """What the machine says of itself, and signs with `host_key`.

    `token` is the id of the token that it used, so that the signature is good for no other. `request_sha256` is the
    hash of the certificate request (PEM) whose key kubelet will have: no other request of that node is approved.
    """

    node: str
    token: str
    host_key: str
    machine_id: str
    boot_id: str
    product_uuid: str
    request_sha256: str
    schema: str = SCHEMA

    def canonical(self) -> bytes:
        """The bytes that are signed: JSON, keys sorted, no spaces, ASCII."""
        return canonical_json(asdict(self))

    @property
    def fingerprint(self) -> str:
        """Of the host key, as its console shows it."""
        return HostKey(*self.host_key.split()).fingerprint


@dataclass(frozen=True)
class Decision:
    """What a person or a rule decided: `who` and `why`; then what was approved, and what the machine needs to be it.

    The admitter approves the certificate request of `request_sha256` alone. `address` and `pod_range` come from the
    ledger.
    """

    approved: bool
    who: str
    why: str
    at: str
    request_sha256: str = field(default="", metadata={JSON_NAME: "requestSHA256", **_ABSENT})
    address: str = field(default="", metadata=_ABSENT)
    pod_range: str = field(default="", metadata={JSON_NAME: "podRange", **_ABSENT})


@dataclass(frozen=True)
class EnrolmentSpec:
    """The token (its id), what the machine has said with it (the exact bytes that were signed), and the decision.

    `ends` is when the token does, for people. `claim` and `signature` are "" until the machine has come.
    """

    token: str
    ends: str
    claim: str = field(default="", metadata=_ABSENT)
    signature: str = field(default="", metadata=_ABSENT)
    decision: Decision | None = field(default=None, metadata=_ABSENT)


@dataclass(frozen=True)
class Enrolment:
    """One object. `version` is its resourceVersion."""

    name: str
    spec: EnrolmentSpec
    version: str = ""


def parse_handed(text: str) -> Handed:
    """NODE:ID.SECRET. Raises EnrolmentError, which shows nothing of the secret."""
    node, _, bearer = text.strip().rpartition(":")
    match = _TOKEN.fullmatch(bearer)
    if match is None or not _NODE.fullmatch(node):
        raise EnrolmentError(
            f"what this machine was given to enrol with ({len(text)} characters) is not NODE:ID.SECRET; hand it over "
            "as `muster image token` wrote it"
        )
    return Handed(node, match[1], match[2])


def request_name(token: str) -> str:
    """The name of the one certificate request of who has this token."""
    return f"enrol-{token}"


def enrolments_path(names: Names, name: str = "") -> str:
    """Where the NodeEnrolments are, or one of them."""
    base = f"/apis/{names.api_version}/{ENROLMENT_PLURAL}"
    return f"{base}/{quote(name, safe='')}" if name else base


def enrolment_document(name: str, spec: EnrolmentSpec, names: Names, version: str = "") -> dict[str, Any]:
    """A whole object, to create, or to put in the place of this version."""
    metadata = {"name": name, **({"resourceVersion": version} if version else {})}
    return {"apiVersion": names.api_version, "kind": ENROLMENT_KIND, "metadata": metadata, "spec": to_json(spec)}


def claim_patch(claim: Claim, signature: str) -> dict[str, Any]:
    """What the machine writes into its NodeEnrolment, as a merge patch."""
    return {"spec": {"claim": claim.canonical().decode("ascii"), "signature": signature}}


def parse_enrolment(document: Mapping[str, Any]) -> Enrolment:
    """A NodeEnrolment as the API server sends it; fields of a newer version are passed over. Raises EnrolmentError."""
    metadata = document.get("metadata") or {}
    name = str(metadata.get("name", ""))
    try:
        spec = from_json(EnrolmentSpec, document.get("spec") or {}, tolerant=True)
    except Misfit as error:
        raise EnrolmentError(f"{name}: its {ENROLMENT_KIND} cannot be read ({error}); {DEFINITIONS}") from error
    return Enrolment(name, spec, str(metadata.get("resourceVersion", "")))


def claim_of(
    enrolment: Enrolment,
    holds: Callable[[bytes, str, str], bool] = lambda data, signature, key: signature_holds(
        data, signature, key, SIGNED_FOR
    ),
) -> Claim:
    """What the machine said, once it is sure that the key it names signed it for this node and token.

    `holds` checks the signature. Raises EnrolmentError.
    """
    name, spec = enrolment.name, enrolment.spec
    if not spec.claim:
        raise EnrolmentError(f"{name}: no machine has come with its token yet; look at the machine's console")
    try:
        data = spec.claim.encode("ascii")
        document = parse_json(data, strict_object)
        if not isinstance(document, dict) or set(document) != {one.name for one in fields(Claim)}:
            raise ValueError("keys missing or unknown")
        for key, value in document.items():
            if not isinstance(value, str) or len(value) > _MOST_CHARS.get(key, 64):
                raise ValueError(f"{key} is no text, or too long")
            if key in _FORMS and not _FORMS[key].fullmatch(value):
                raise ValueError(f"{key} is not of its form")
        claim = Claim(**document)
        if claim.schema != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        if public_key(claim.host_key) != claim.host_key or not claim.host_key.startswith(f"{EVIDENCE_KEY_TYPE} "):
            raise ValueError(f"host_key is not one {EVIDENCE_KEY_TYPE} key")
        if claim.canonical() != data:
            raise ValueError("not in canonical form")
        if (claim.node, claim.token) != (name, spec.token):
            raise ValueError(f"it is of node {claim.node!r} and token {claim.token!r}")
        if not holds(data, spec.signature, claim.host_key):
            raise ValueError("it is not signed by the host key that it names")
    except (ValueError, GpuBurninError) as error:
        raise EnrolmentError(
            f"{name}: its enrolment cannot be believed ({error}); refuse it (muster image refuse {name}) and give the "
            "machine another token"
        ) from error
    return claim
