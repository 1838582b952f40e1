"""etcd's HTTPS API as a health check sees it: /health and the JSON gateway, with a client certificate.

Standard library only: this runs on the hosts.
"""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

REQUEST_TIMEOUT_S = 5.0
_INTERVAL_S = 0.5  # between two probes
CREDENTIAL_OPTIONS: dict[str, dict[str, Any]] = {
    "ca": {"type": "path", "default": "/etc/etcd/pki/ca.crt"},
    "cert": {"type": "path", "default": "/etc/etcd/pki/health.crt"},
    # The path of a key, not a key.
    "key": {"type": "path", "default": "/etc/etcd/pki/health.key", "no_log": False},
}


@dataclass(frozen=True)
class Credentials:
    """Paths of the CA, client certificate and key."""

    ca: str
    cert: str
    key: str


@dataclass(frozen=True)
class Member:
    """One entry of the member list; `name` is empty while the member has never started."""

    id: str
    name: str
    learner: bool = False


@dataclass(frozen=True)
class Health:
    """What one member says about itself and its cluster; `leads` is whether it is the leader."""

    healthy: bool
    reason: str
    members: tuple[Member, ...] = ()
    leader: str = ""
    leads: bool = False
    alarms: tuple[str, ...] = ()
    version: str = ""
    db_size_bytes: int = 0


class Api(Protocol):
    """Fetches one path (POST when `body` is given) as JSON; raises FleetError."""

    def __call__(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]: ...


def connect(endpoint: str, credentials: Credentials, timeout_s: float) -> Api:
    """An Api for https://ADDRESS:PORT; certificates are verified both ways.

    Raises FleetError when the credentials cannot be loaded.
    """
    context = _context(credentials)
    # An HTTP proxy from the environment must not stand between a host and its own cluster.
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({}))

    def call(path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(endpoint + path, data=data, headers={"Content-Type": "application/json"})
        try:
            with opener.open(request, timeout=timeout_s) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            answer = _json_or_none(error.read())
            if answer is None or "health" not in answer:
                why = f": {answer['message']}" if answer and answer.get("message") else ""
                raise FleetError(f"{endpoint}{path} answers HTTP {error.code}{why}") from None
        except (urllib.error.URLError, OSError) as error:
            raise FleetError(f"{endpoint} does not answer: {getattr(error, 'reason', error)}") from None
        except ValueError:
            raise FleetError(f"{endpoint}{path} answers something that is not JSON") from None
        if not isinstance(answer, dict):
            raise FleetError(f"{endpoint}{path} answers something that is not a JSON object")
        return answer

    return call


def _context(credentials: Credentials) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=credentials.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(credentials.cert, credentials.key)
    except (OSError, ssl.SSLError) as error:
        raise FleetError(f"{credentials.ca}, {credentials.cert} or its key cannot be loaded: {error}") from None
    return context


def probe(endpoint: str, credentials: Credentials, expect_members: Sequence[str]) -> Health:
    """One member's health as `read_health` judges it; no answer is a reason too."""
    try:
        api = connect(endpoint, credentials, REQUEST_TIMEOUT_S)
    except FleetError as error:
        return Health(False, str(error))
    return read_health(api, expect_members)


def read_health(api: Api, expect_members: Sequence[str]) -> Health:
    """Ask one member for its health, the member list, the leader and alarms, and judge it.

    Never raises FleetError: no answer is a reason too.
    """
    try:
        own = api("/health")
        if own.get("health") != "true":
            return Health(False, f"it says it is unhealthy: {own.get('reason') or 'no reason given'}")
        listed = api("/v3/cluster/member/list", {})
        status = api("/v3/maintenance/status", {})
        alarms = api("/v3/maintenance/alarm", {"action": "GET"})
    except FleetError as error:
        return Health(False, str(error))
    members = tuple(
        Member(str(entry["ID"]), str(entry.get("name", "")), bool(entry.get("isLearner", False)))
        for entry in listed.get("members", [])
    )
    raised = tuple(sorted({str(entry.get("alarm", "UNKNOWN")) for entry in alarms.get("alarms", [])}))
    leader = str(status.get("leader", "0"))
    reason = _judge(members, leader, raised, expect_members)
    return Health(
        healthy=not reason,
        reason=reason,
        members=members,
        leader=next((member.name for member in members if member.id == leader), ""),
        leads=status.get("header", {}).get("member_id") == leader,
        alarms=raised,
        version=str(status.get("version", "")),
        db_size_bytes=int(status.get("dbSize", 0)),
    )


def _judge(members: Sequence[Member], leader: str, alarms: Sequence[str], expect_members: Sequence[str]) -> str:
    if alarms:
        return f"alarms are raised ({', '.join(alarms)}); see `etcdctl alarm list`"
    if leader in ("", "0"):
        return "the cluster has no leader"
    learners = [member.name for member in members if member.learner]
    if learners:
        return f"{', '.join(learners)} has not caught up yet (learner)"
    names = sorted(member.name for member in members)
    if expect_members and names != sorted(expect_members):
        missing = sorted(set(expect_members) - set(names))
        extra = sorted(name or "(never started)" for name in set(names) - set(expect_members))
        parts = [f"missing {', '.join(missing)}"] if missing else []
        parts += [f"unexpected {', '.join(extra)}"] if extra else []
        return f"its member list differs from the inventory: {' and '.join(parts) or 'a name twice'}"
    return ""


def wait_healthy(
    probe: Callable[[], Health],
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Health:
    """Probe until healthy or until `timeout_s` has passed; at least once. Returns the last answer."""
    deadline = clock() + timeout_s
    while True:
        health = probe()
        if health.healthy or clock() >= deadline:
            return health
        pause(_INTERVAL_S)


def may_restart(others_healthy: int, size: int) -> bool:
    """Whether a cluster of `size` members keeps its quorum while one member restarts.

    A cluster of one has none to keep: its restart is an outage that nothing can avoid.
    """
    return size == 1 or others_healthy >= size // 2 + 1


def _json_or_none(data: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(data)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
