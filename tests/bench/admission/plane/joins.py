"""Two certificates for each node that joins, as its kubelet asks for them: a client's, and with that a serving one."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import ssl
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpu_burnin.admission.approve import BOOTSTRAP_GROUP, CLIENT_SIGNER, NODE_USER, NODES_GROUP, SERVING_SIGNER
from gpu_burnin.admission.client import CSRS
from tests.bench.admission.fleet import ADDRESS
from tests.bench.admission.plane.http2 import Connection
from tests.bench.admission.plane.node import Node, context_of
from tests.integration.kube import Server

AT_ONCE = 32


async def join(server: Server, directory: Path, names: Sequence[str]) -> list[Node]:
    """Their nodes, each with the certificate that the real signer has made for it."""
    key = ec.generate_private_key(ec.SECP256R1())
    key_file = directory / f"{names[0]}.key"
    key_file.touch(0o600)
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    token = context_of(server.authority.ca, *server.authority.issue("bootstrap", [BOOTSTRAP_GROUP]))
    bootstrap = await Connection.to(server.port, token)
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> Node:
        async with turns:
            made = await _certificate(bootstrap, name, key, CLIENT_SIGNER)
            node = Node(name, _context(server, directory, name, made, key_file))
            await _certificate(await node.connect(server.port), name, key, SERVING_SIGNER)
            node.close()
            return node

    try:
        return await asyncio.gather(*map(one, names))
    finally:
        bootstrap.close()


def request_of(name: str, key: ec.EllipticCurvePrivateKey, signer: str) -> bytes:
    """A kubelet's certificate request in PEM."""
    attributes = [(NameOID.ORGANIZATION_NAME, NODES_GROUP), (NameOID.COMMON_NAME, f"{NODE_USER}{name}")]
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(kind, value) for kind, value in attributes])
    )
    if signer == SERVING_SIGNER:
        own = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(ADDRESS))]
        builder = builder.add_extension(x509.SubjectAlternativeName(own), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


async def _certificate(by: Connection, name: str, key: ec.EllipticCurvePrivateKey, signer: str) -> bytes:
    """Ask, and wait as client-go does, by a watch of the request's name."""
    auth = "server auth" if signer == SERVING_SIGNER else "client auth"
    csr = f"{name}-{auth.partition(' ')[0]}"
    request = base64.b64encode(request_of(name, key, signer)).decode()
    document = {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": csr},
        "spec": {"request": request, "signerName": signer, "usages": ["digital signature", auth]},
    }
    await by.request("POST", CSRS, json.dumps(document).encode())
    path = f"{CSRS}?fieldSelector=metadata.name%3D{csr}&resourceVersion=0&timeoutSeconds=900&watch=true"
    told = await by.watch_until(path, b'"certificate":"')
    event = json.loads(told.strip().rpartition(b"\n")[2])
    return base64.b64decode(event["object"]["status"]["certificate"])


def _context(server: Server, directory: Path, name: str, certificate: bytes, key: Path) -> ssl.SSLContext:
    file = directory / f"{name}.crt"
    file.write_bytes(certificate)
    return context_of(server.authority.ca, file, key)
