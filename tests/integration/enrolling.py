"""What the tests of enrolment share: an API server that takes tokens, a machine with keys, and its controller."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.crd import enrolment_crd
from gpu_burnin.api.enrolment import (
    SIGNED_FOR,
    Claim,
    Decision,
    Handed,
    claim_patch,
    enrolments_path,
    request_name,
)
from gpu_burnin.api.names import PROVISIONER_USER, Names
from gpu_burnin.api.record import Identity, NodeAdmission, Spec, document
from gpu_burnin.fleet.image.enrolments import State
from gpu_burnin.fleet.image.tokens import mint
from gpu_burnin.node.signing import own_public_key, sign
from tests.integration.gate import numbers
from tests.integration.kube import MERGE_PATCH, Client, Reply, Server, until
from tests.integration.kube_files import gate_file
from tests.support.admission_helpers import new_host_key

NAMES = Names()
CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ADMISSIONS = "/apis/muster.dev/v1/nodeadmissions"
ENROLMENTS = enrolments_path(NAMES)


@contextmanager
def enrolments_known(server: Server) -> Iterator[Server]:
    """The kind is served, and the gate's policies of enrolment hold, until the block ends."""
    provisioner = server.client(PROVISIONER_USER)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    reply = provisioner.request("POST", definitions, enrolment_crd(NAMES))
    assert reply.status in (201, 409), reply.message
    until("the kind's being served", lambda: provisioner.request("GET", ENROLMENTS).status == 200)
    before = server.policy_files()
    server.load({**before, "enrolments.yaml": gate_file("enrolments.yaml", server.directory)})
    try:
        yield server
    finally:
        server.load(before)


@dataclass
class Bearer:
    """Who shows a token, and no certificate."""

    client: Client
    handed: Handed

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Reply:
        """One request."""
        headers = {"Authorization": f"Bearer {self.handed.bearer}"}
        return self.client.request(method, path, body, content_type, headers)


@dataclass(frozen=True)
class Controller:
    """What gives tokens and decides: the provisioner's kubeconfig, and a state directory."""

    server: Server
    directory: Path

    @property
    def api(self) -> KubeApi:
        """As the provisioner."""
        return KubeApi(self.server.kubeconfig(PROVISIONER_USER), retries=0)

    @property
    def state(self) -> State:
        """Its files."""
        return State(self.directory / "known_hosts", self.directory / "admission")

    def node(self, name: str = "", address: str = "198.18.0.9", host_key: str = "") -> str:
        """A node of the ledger, whose machine nobody has met unless `host_key` says so."""
        name = name or f"enrol-{next(numbers)}"
        made = Identity(addresses=(address,), host_key=host_key, pod_range="198.19.9.0/24")
        entry = document(NodeAdmission(name, Spec(identity=made)), NAMES)
        reply = self.server.client(PROVISIONER_USER).request("POST", ADMISSIONS, entry)
        assert reply.status == 201, reply.message
        return name

    def token(self, node: str, lifetime_s: float = 3600.0, *, again: bool = False) -> Bearer:
        """Somebody with a new token of a node."""
        handed = mint(self.api, NAMES, node, lifetime_s, datetime.now(UTC), again=again)
        return Bearer(self.server.client(None), handed)


@dataclass(frozen=True)
class Machine:
    """A machine at its first boot: host key, ids, and the key that kubelet will have."""

    directory: Path
    machine_id: str

    @classmethod
    def new(cls, directory: Path) -> Machine:
        """With keys of its own."""
        directory.mkdir()
        new_host_key(directory / "host_key")
        command = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-keyout", str(directory / "kubelet.key"), "-out", str(directory / "request.pem")]
        subprocess.run([*command, "-subj", "/O=system:nodes/CN=x"], check=True, capture_output=True)
        return cls(directory, hashlib.sha256(str(directory).encode()).hexdigest()[:32])

    @property
    def host_key(self) -> str:
        """Its public host key."""
        return own_public_key(self.directory / "host_key")

    def request(self, node: str) -> bytes:
        """Its certificate request in the name of a node."""
        command = ["openssl", "req", "-new", "-key", str(self.directory / "kubelet.key")]
        done = subprocess.run(
            [*command, "-subj", f"/O=system:nodes/CN=system:node:{node}"], check=True, capture_output=True
        )
        path = self.directory / f"{node}.pem"
        if not path.exists():
            path.write_bytes(done.stdout)
        return path.read_bytes()

    def claim(self, handed: Handed, **changes: str) -> Claim:
        """What it says of itself."""
        request = hashlib.sha256(self.request(handed.node)).hexdigest()
        boot = "0b1c2d3e-0000-4000-8000-000000000000"
        said = {"boot_id": boot, "product_uuid": "4c4c4544-0000-2010-8020-80c04f000000", "request_sha256": request}
        whole = {"node": handed.node, "token": handed.token, "host_key": self.host_key, "machine_id": self.machine_id}
        return Claim(**{**whole, **said, **changes})

    def enrols(self, by: Bearer, **changes: str) -> Reply:
        """It makes its enrolment."""
        claim = self.claim(by.handed, **changes)
        signature = sign(claim.canonical(), self.directory / "host_key", SIGNED_FOR)
        path = f"{ENROLMENTS}/{by.handed.node}"
        return by.request("PATCH", path, claim_patch(claim, signature), MERGE_PATCH)

    def asks(self, by: Bearer, changes: Mapping[str, Any] | None = None) -> Reply:
        """It asks for its certificate, with changes of the request's top level."""
        node = by.handed.node
        spec = {
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "request": base64.b64encode(self.request(node)).decode(),
            "usages": ["digital signature", "client auth"],
        }
        made: dict[str, Any] = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
        made |= {"metadata": {"name": request_name(by.handed.token)}, "spec": spec, **(changes or {})}
        return by.request("POST", CSRS, made)


def decided(why: str = "seen on its console", *, approved: bool = True) -> Decision:
    """A person's word."""
    return Decision(approved, "alice", why, "2026-11-28T05:00:00.000Z")
