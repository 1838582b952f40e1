"""Certificate requests as kubelets make them."""

from __future__ import annotations

import base64
import ipaddress
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpu_burnin.admission.approve import CLIENT_SIGNER, SERVING_SIGNER
from tests.support.admission_helpers import make_node
from tests.support.fake_api import FakeApi

KEY = ec.generate_private_key(ec.SECP256R1())
NODE_GROUPS = ["system:nodes", "system:authenticated"]
BOOTSTRAP = {"username": "muster:node-bootstrap", "groups": ["system:bootstrappers:muster"]}
SANS = (x509.DNSName("gpu-1"), x509.IPAddress(ipaddress.ip_address("10.0.0.1")))


def request_pem(
    cn: str = "system:node:gpu-1",
    organizations: tuple[str, ...] = ("system:nodes",),
    sans: tuple[x509.GeneralName, ...] = (),
    extra: tuple[x509.NameAttribute, ...] = (),
    extensions: tuple[x509.ExtensionType, ...] = (),
) -> str:
    names = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, o) for o in organizations]
    names += [x509.NameAttribute(NameOID.COMMON_NAME, cn), *extra]
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    if sans:
        builder = builder.add_extension(x509.SubjectAlternativeName(sans), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    request = builder.sign(KEY, hashes.SHA256())
    return base64.b64encode(request.public_bytes(serialization.Encoding.PEM)).decode()


def client_csr(name: str = "csr-client", **changes: Any) -> dict[str, Any]:
    spec = {
        "signerName": CLIENT_SIGNER,
        "request": request_pem(),
        "usages": ["digital signature", "client auth"],
        **BOOTSTRAP,
        **changes,
    }
    return csr(name, spec)


def serving_csr(name: str = "csr-serving", **changes: Any) -> dict[str, Any]:
    spec = {
        "signerName": SERVING_SIGNER,
        "request": request_pem(sans=SANS),
        "usages": ["digital signature", "server auth"],
        "username": "system:node:gpu-1",
        "groups": NODE_GROUPS,
        **changes,
    }
    return csr(name, spec)


def csr(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "resourceVersion": "1", "creationTimestamp": "2026-11-21T11:59:00Z"}
    return {"metadata": metadata, "spec": spec, "status": {}}


def kubelet(api: FakeApi) -> None:
    """Plays signer and kubelet: issue what is approved; after the client certificate register and ask to serve."""

    def on_approval(csr: dict[str, Any]) -> None:
        csr["status"]["certificate"] = "Zm9v"
        if csr["spec"]["signerName"] == CLIENT_SIGNER:
            api.put_node(make_node())
            api.csrs["csr-serving"] = serving_csr()

    api.on_approval = on_approval
