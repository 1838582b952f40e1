"""Approving the certificate requests of kubelets: only for names and addresses that are in the inventory.

Rules of the two signers: Kubernetes documentation, "Certificate Signing Requests", kubernetes.io/
kube-apiserver-client-kubelet and kubernetes.io/kubelet-serving. What they ask is checked here again, since an
approval is what makes the signer act, and the names and addresses are checked on top.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from cryptography import x509
from cryptography.x509.oid import NameOID

from gpu_burnin.admission.decide.nodes import condition
from gpu_burnin.admission.view import Node
from gpu_burnin.api.enrolment import GROUP, USER_PREFIX, request_name
from gpu_burnin.api.remedies import DELETED
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.clock import parse_rfc3339

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
BOOTSTRAP_GROUP = "system:bootstrappers:muster"
NODES_GROUP = "system:nodes"
NODE_USER = "system:node:"
REASON = "MusterInventoryMatch"
# kubelet asks for a serving certificate within seconds of reporting its addresses (it looks every second:
# client-go util/certificate); a node Ready for this long without a request has its certificate already.
SERVING_WINDOW_S = 30.0
# kubelet gives a request 15 minutes and then makes a new one, so an older one that was left pending is history.
STALE_CSR_S = 3600.0
# The hash of the one request that was approved with the machine of a node that enrolled with this token; "" for none.
Approved: TypeAlias = Callable[[str, str], str]
_USAGES = {CLIENT_SIGNER: "client auth", SERVING_SIGNER: "server auth"}


@dataclass(frozen=True)
class InventoryNode:
    """What a kubelet may ask for: its node name, other DNS names and its IP addresses."""

    name: str
    addresses: frozenset[ipaddress.IPv4Address | ipaddress.IPv6Address]
    dns_names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, addresses: Iterable[str], dns_names: Iterable[str] = ()) -> InventoryNode:
        """From texts; raises GpuBurninError for an address that is none."""
        try:
            return cls(name, frozenset(map(ipaddress.ip_address, addresses)), frozenset(dns_names))
        except ValueError as error:
            raise GpuBurninError(f"{name}: its addresses are wrong ({error}); give IP addresses") from error


@dataclass(frozen=True)
class Judgement:
    """One request: `refusals` is empty when it may be approved. `node` is "" when it names none of ours."""

    csr: str
    signer: str
    node: str
    refusals: tuple[str, ...]


def relevant(csr: Mapping[str, Any]) -> bool:
    """Whether a CSR is for one of the two kubelet signers and nobody has decided on it yet."""
    return csr["spec"].get("signerName") in _USAGES and not csr.get("status", {}).get("conditions")


def judge_csr(
    csr: Mapping[str, Any], inventory: Mapping[str, InventoryNode], approved: Approved = lambda *_: ""
) -> Judgement:
    """Hold a kubelet's request against the inventory; pure. Names everything that differs.

    `approved` is asked about a machine that enrols itself.
    """
    spec = csr["spec"]
    name, signer = csr["metadata"]["name"], str(spec.get("signerName"))
    refusals: list[str] = []
    if signer not in _USAGES:
        return Judgement(name, signer, "", (f"signer {signer} is not one of kubelet's",))
    try:
        request = x509.load_pem_x509_csr(base64.b64decode(spec.get("request", ""), validate=True))
        signed, _ = request.is_signature_valid, request.subject
    # What others wrote has the library raise errors of many kinds, of which some are no ValueError.
    except Exception as error:
        return Judgement(name, signer, "", (f"the request is not a PEM certificate request ({error})",))
    if not signed:
        refusals.append("the request is not signed with its own key")
    common_name, subject_refusals = _subject(request)
    refusals += subject_refusals
    node = common_name.removeprefix(NODE_USER) if common_name.startswith(NODE_USER) else ""
    known = inventory.get(node)
    if known is None:
        refusals.append(f"CN {common_name!r} is not {NODE_USER}NAME with a NAME of the inventory")
    refusals += _requestor(csr, signer, common_name, approved)
    refusals += _usages(spec, _USAGES[signer])
    refusals += _alternative_names(request, signer, known)
    return Judgement(name, signer, node if known is not None else "", tuple(refusals))


def missing_certificates(
    wait_for: Collection[str],
    csrs: Sequence[Mapping[str, Any]],
    nodes: Mapping[str, Node],
    refused: Sequence[Judgement],
    now: datetime,
) -> dict[str, str]:
    """For each node without a serving certificate one sentence on what is missing; pure.

    A node has one when a request of it was issued, or when it has been Ready for longer than kubelet takes to
    ask (issued requests are removed after an hour, and a kubelet that has its certificate asks for none).
    """
    fresh = {
        csr["metadata"]["name"]
        for csr in csrs
        if (now - parse_rfc3339(csr["metadata"]["creationTimestamp"])).total_seconds() < STALE_CSR_S
    }
    live = [judgement for judgement in refused if judgement.csr in fresh]
    sentences = {name: _missing(name, csrs, nodes.get(name), live, now) for name in sorted(wait_for)}
    return {name: sentence for name, sentence in sentences.items() if sentence}


def _missing(
    name: str,
    csrs: Sequence[Mapping[str, Any]],
    node: Node | None,
    refused: Sequence[Judgement],
    now: datetime,
) -> str:
    user = f"{NODE_USER}{name}"
    serving = [
        csr for csr in csrs if csr["spec"].get("signerName") == SERVING_SIGNER and csr["spec"].get("username") == user
    ]
    if any(csr.get("status", {}).get("certificate") for csr in serving):
        return ""
    reasons = [f"CSR {j.csr} ({j.signer}): {'; '.join(j.refusals)}" for j in refused if j.node == name]
    if reasons:
        return f"{name}: its certificate request differs from the inventory: {' | '.join(reasons)}"
    if any(_has_condition(csr, "Failed") for csr in serving):
        return f"{name}: the signer failed on its serving certificate request; look at kube-controller-manager's log"
    if any(_has_condition(csr, "Approved") for csr in serving):
        return f"{name}: its serving certificate is approved but not issued; look at kube-controller-manager's log"
    if node is None:
        return (
            f"{name}: kubelet has not registered; look at its log (journalctl -u kubelet) and the balancer. {DELETED}"
        )
    ready = condition(node, "Ready")
    if ready is None or ready.get("status") != "True":
        why = (ready or {}).get("message") or "no status reported"
        return f"{name}: registered, not Ready ({why}), and no serving certificate was asked for; look at its log"
    if (now - parse_rfc3339(ready["lastTransitionTime"])).total_seconds() < SERVING_WINDOW_S:
        return f"{name}: kubelet has not asked for a serving certificate; set serverTLSBootstrap in its configuration"
    return ""


def approval_of(csr: Mapping[str, Any]) -> dict[str, Any]:
    """The request with the approval among its conditions."""
    status = csr.get("status") or {}
    approval = {
        "type": "Approved",
        "status": "True",
        "reason": REASON,
        "message": "Names, addresses, usages and requestor match the inventory.",
        "lastUpdateTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**csr, "status": {**status, "conditions": [*status.get("conditions", []), approval]}}


def _has_condition(csr: Mapping[str, Any], kind: str) -> bool:
    return any(c.get("type") == kind for c in csr.get("status", {}).get("conditions", []))


def _subject(request: x509.CertificateSigningRequest) -> tuple[str, list[str]]:
    names = [str(a.value) for a in request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [str(a.value) for a in request.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    refusals = []
    if len(names) != 1:
        refusals.append(f"{len(names)} common names instead of one")
    if groups != [NODES_GROUP]:
        refusals.append(f"O is {groups}, not [{NODES_GROUP!r}]")
    others = [a.oid for a in request.subject if a.oid not in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)]
    if others:
        refusals.append("the subject has more than CN and O")
    return (names[0] if len(names) == 1 else ""), refusals


def _requestor(csr: Mapping[str, Any], signer: str, common_name: str, approved: Approved) -> list[str]:
    spec = csr["spec"]
    user, groups = str(spec.get("username", "")), list(spec.get("groups") or [])
    if user == common_name and NODES_GROUP in groups:
        return []
    if user.startswith(USER_PREFIX):
        return _enrolling(csr, user, signer, common_name, approved)
    if signer == CLIENT_SIGNER and BOOTSTRAP_GROUP in groups and not user.startswith(NODE_USER):
        return []
    allowed = f"{common_name!r}" + (f" or a member of {BOOTSTRAP_GROUP}" if signer == CLIENT_SIGNER else "")
    return [f"it was asked for by {user!r}, not by {allowed}"]


def _enrolling(csr: Mapping[str, Any], user: str, signer: str, common_name: str, approved: Approved) -> list[str]:
    """A token is for one node; and of that node only the request is approved whose hash the machine has signed."""
    spec, token = csr["spec"], user.removeprefix(USER_PREFIX)
    refusals = []
    if (
        GROUP not in (spec.get("groups") or [])
        or signer != CLIENT_SIGNER
        or csr["metadata"]["name"] != request_name(token)
    ):
        refusals.append(f"it was asked for by {user!r}, whose token is good for one client certificate of a machine")
    found = hashlib.sha256(base64.b64decode(spec.get("request", ""))).hexdigest()
    wanted = approved(common_name.removeprefix(NODE_USER), token)
    if not wanted or not hmac.compare_digest(found, wanted):
        refusals.append("no enrolment of its node with this token and request was approved (muster image enrolments)")
    return refusals


def _usages(spec: Mapping[str, Any], auth: str) -> list[str]:
    usages = set(spec.get("usages") or [])
    # "key encipherment" belongs to RSA keys only, and kubelet leaves it out for others.
    if usages - {"key encipherment"} == {"digital signature", auth}:
        return []
    return [f"usages are {sorted(usages)}, not digital signature and {auth}"]


def _alternative_names(request: x509.CertificateSigningRequest, signer: str, known: InventoryNode | None) -> list[str]:
    try:
        extension = request.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [] if signer == CLIENT_SIGNER else ["it has no DNS name and no address"]
    except Exception as error:
        return [f"its extensions cannot be read ({error})"]
    if signer == CLIENT_SIGNER:
        return ["a client certificate has no alternative names"]
    refusals = []
    dns = extension.get_values_for_type(x509.DNSName)
    addresses = extension.get_values_for_type(x509.IPAddress)
    if len(dns) + len(addresses) != len(extension):
        refusals.append("it has alternative names other than DNS names and addresses")
    if not dns and not addresses:
        refusals.append("it has no DNS name and no address")
    if known is None:
        return refusals
    extra_dns = sorted(set(dns) - {known.name} - known.dns_names)
    if extra_dns:
        refusals.append(f"DNS names {extra_dns} are not those of {known.name} in the inventory")
    extra = sorted(str(a) for a in set(addresses) - known.addresses)
    if extra:
        refusals.append(f"addresses {extra} are not those of {known.name} in the inventory")
    return refusals
