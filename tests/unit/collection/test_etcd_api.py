"""What counts as a healthy etcd member, and when one may restart."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.server_helpers import serving

NAMES = ["etcd-1", "etcd-2", "etcd-3"]
ANSWERS: dict[str, dict[str, Any]] = {
    "/health": {"health": "true", "reason": ""},
    "/v3/cluster/member/list": {"members": [{"ID": str(n), "name": name} for n, name in enumerate(NAMES, 1)]},
    "/v3/maintenance/status": {"header": {"member_id": "2"}, "leader": "2", "version": "3.6.16", "dbSize": "20480"},
    "/v3/maintenance/alarm": {},
}


def api(changes: Mapping[str, Any]) -> etcd_api.Api:
    def call(path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        answer = {**ANSWERS, **changes}[path]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    return call


def test_healthy() -> None:
    health = etcd_api.read_health(api({}), NAMES)
    assert (health.healthy, health.leader, health.version, health.db_size_bytes) == (True, "etcd-2", "3.6.16", 20480)


@pytest.mark.parametrize(
    ("status", "leads"),
    [
        ({"header": {"member_id": "2"}, "leader": "2"}, True),
        ({"header": {"member_id": "1"}, "leader": "2"}, False),
        ({"header": {"member_id": "1"}}, False),
        ({"leader": "2"}, False),
    ],
)
def test_who_leads(status: dict[str, Any], leads: bool) -> None:
    assert etcd_api.read_health(api({"/v3/maintenance/status": status}), NAMES).leads is leads


def members(*names: str, learner: bool = False) -> dict[str, Any]:
    return {"members": [{"ID": "2", "name": name, "isLearner": learner} for name in names]}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"/health": {"health": "false", "reason": "RAFT NO LEADER"}}, "RAFT NO LEADER"),
        ({"/health": FleetError("https://x does not answer: refused")}, "does not answer"),
        ({"/v3/cluster/member/list": FleetError("no list")}, "no list"),
        ({"/v3/maintenance/status": {"leader": "0"}}, "no leader"),
        ({"/v3/maintenance/status": {}}, "no leader"),
        ({"/v3/maintenance/alarm": {"alarms": [{"alarm": "NOSPACE", "memberID": "1"}]}}, "NOSPACE"),
        ({"/v3/cluster/member/list": members("etcd-1", "etcd-2")}, "missing etcd-3"),
        ({"/v3/cluster/member/list": members(*NAMES, "etcd-4")}, "unexpected etcd-4"),
        ({"/v3/cluster/member/list": members("etcd-1", "etcd-2", "")}, "unexpected (never started)"),
        ({"/v3/cluster/member/list": members(*NAMES, learner=True)}, "learner"),
    ],
)
def test_unhealthy(changes: Mapping[str, Any], reason: str) -> None:
    health = etcd_api.read_health(api(changes), NAMES)
    assert not health.healthy
    assert reason in health.reason


@pytest.mark.parametrize(
    ("others_healthy", "size", "may"),
    [(0, 1, True), (2, 3, True), (1, 3, False), (0, 3, False), (3, 5, True), (2, 5, False)],
)
def test_may_restart(others_healthy: int, size: int, may: bool) -> None:
    assert etcd_api.may_restart(others_healthy, size) is may


def test_wait_ends_with_health_or_at_the_deadline() -> None:
    ticks = iter(range(100))
    answers = iter([etcd_api.Health(False, "no"), etcd_api.Health(True, "")])
    found = etcd_api.wait_healthy(lambda: next(answers), 50, clock=lambda: next(ticks), pause=lambda _: None)
    assert found.healthy
    ticks = iter(range(100))
    found = etcd_api.wait_healthy(
        lambda: etcd_api.Health(False, "still no"), 5, clock=lambda: next(ticks), pause=lambda _: None
    )
    assert (found.healthy, found.reason) == (False, "still no")
    assert next(ticks) <= 8


class Handler(BaseHTTPRequestHandler):
    """Answers as etcd does, with the odd cases under paths of their own."""

    def do_GET(self) -> None:
        code, text = {
            "/health": (503, json.dumps({"health": "false", "reason": "ALARM NOSPACE"})),
            "/text": (200, "hello"),
            "/list": (200, "[]"),
        }.get(self.path, (404, "page not found"))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, a certificate of it for 127.0.0.1 (server and client), and a certificate of a stranger."""
    folder = tmp_path_factory.mktemp("pki")
    now = datetime.datetime.now(datetime.UTC)

    def issue(name: str, issuer: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        pem = serialization.Encoding.PEM
        (folder / f"{name}.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        signer = serialization.load_pem_private_key((folder / f"{issuer}.key").read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
            .sign(signer, hashes.SHA256())
        )
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))

    for name, issuer in {"ca": "ca", "member": "ca", "stranger": "stranger"}.items():
        issue(name, issuer)
    return folder


def credentials(folder: Path, name: str = "member", ca: str = "ca") -> etcd_api.Credentials:
    return etcd_api.Credentials(*(str(folder / file) for file in (f"{ca}.crt", f"{name}.crt", f"{name}.key")))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "member.crt", folder / "member.key")
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    with serving(httpd):
        yield f"https://127.0.0.1:{httpd.server_port}"


def test_answers_over_tls(server: str, folder: Path) -> None:
    call = etcd_api.connect(server, credentials(folder), 5)
    assert call("/health")["reason"] == "ALARM NOSPACE"
    for path, said in {"/none": "HTTP 404", "/text": "not JSON", "/list": "not a JSON object"}.items():
        with pytest.raises(FleetError, match=said):
            call(path)


@pytest.mark.parametrize(("name", "ca"), [("stranger", "ca"), ("member", "stranger")])
def test_trust_is_needed_both_ways(server: str, folder: Path, name: str, ca: str) -> None:
    call = etcd_api.connect(server, credentials(folder, name, ca), 5)
    with pytest.raises(FleetError, match="does not answer"):
        call("/health")


def test_no_answer(folder: Path) -> None:
    call = etcd_api.connect("https://127.0.0.1:1", credentials(folder), 1)
    with pytest.raises(FleetError, match="does not answer"):
        call("/health")


def test_unreadable_certificates(folder: Path) -> None:
    with pytest.raises(FleetError, match="cannot be loaded"):
        etcd_api.connect("https://127.0.0.1:1", credentials(folder, "none"), 1)
