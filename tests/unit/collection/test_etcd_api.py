"""What counts as a healthy etcd member, and when one may restart."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import api as etcd_api
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

from tests.support.authority import Authority
from tests.support.server_helpers import QuietHandler, listening

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


class Handler(QuietHandler):
    """Answers as etcd does, with the odd cases under paths of their own."""

    def do_GET(self) -> None:
        code, text = {
            "/health": (503, json.dumps({"health": "false", "reason": "ALARM NOSPACE"})),
            "/text": (200, "hello"),
            "/list": (200, "[]"),
        }.get(self.path, (404, "page not found"))
        self.reply(code, text.encode())


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> etcd_api.Credentials:
    """A CA, and a certificate of it for 127.0.0.1 (server and client)."""
    authority = Authority(tmp_path_factory.mktemp("pki"))
    return credentials(authority, *authority.issue("member", peer="127.0.0.1"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> etcd_api.Credentials:
    """The same of another CA."""
    authority = Authority(tmp_path_factory.mktemp("strange"))
    return credentials(authority, *authority.issue("member", peer="127.0.0.1"))


def credentials(authority: Authority, certificate: Path, key: Path) -> etcd_api.Credentials:
    return etcd_api.Credentials(str(authority.ca), str(certificate), str(key))


@pytest.fixture(scope="module")
def server(member: etcd_api.Credentials) -> Iterator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=member.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(member.cert, member.key)
    with listening(Handler, tls=context) as url:
        yield url


def test_answers_over_tls(server: str, member: etcd_api.Credentials) -> None:
    call = etcd_api.connect(server, member, 5)
    assert call("/health")["reason"] == "ALARM NOSPACE"
    for path, said in {"/none": "HTTP 404", "/text": "not JSON", "/list": "not a JSON object"}.items():
        with pytest.raises(FleetError, match=said):
            call(path)


@pytest.mark.parametrize("foreign", [("cert", "key"), ("ca",)])
def test_trust_is_needed_both_ways(
    server: str, member: etcd_api.Credentials, stranger: etcd_api.Credentials, foreign: tuple[str, ...]
) -> None:
    mixed = replace(member, **{name: getattr(stranger, name) for name in foreign})
    with pytest.raises(FleetError, match="does not answer"):
        etcd_api.connect(server, mixed, 5)("/health")


def test_no_answer(member: etcd_api.Credentials) -> None:
    with pytest.raises(FleetError, match="does not answer"):
        etcd_api.connect("https://127.0.0.1:1", member, 1)("/health")


def test_unreadable_certificates(member: etcd_api.Credentials) -> None:
    with pytest.raises(FleetError, match="cannot be loaded"):
        etcd_api.connect("https://127.0.0.1:1", replace(member, cert="none"), 1)
