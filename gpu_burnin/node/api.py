"""The node's own Node at the API server, with kubelet's certificate or a pod's token: get, list, watch, annotate. And
its agent's heartbeat: renew. Standard library only.

Nothing else can be asked: a node reads and writes itself by name.
"""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from gpu_burnin.api.enrolment import enrolments_path
from gpu_burnin.api.heartbeat import Heartbeat, heartbeat_document, heartbeats_path
from gpu_burnin.api.names import ENROLMENT_KIND, HEARTBEAT_KIND
from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
from gpu_burnin.settings.config import Config
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.files import parse_json, read_text

REQUEST_TIMEOUT_S = 10.0
GONE = 410
NOT_FOUND = 404
UNAUTHORIZED = 401
# Refusals that waiting does not cure: bad request, not authorised, forbidden.
FINAL = frozenset({400, UNAUTHORIZED, 403, 405, 415, 422})
# A peer that has vanished is noticed after a minute, without a byte of the API server's while all is well.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_MOST_EVENT_BYTES = 8 << 20
_NODE = "Node"


class ApiRefused(GpuBurninError):
    """The API server refused, and asking again would not help. `status` is that of HTTP."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, EXIT_FAIL)
        self.status = status


class NotYet(Exception):
    """Something that may come right by itself: no certificate yet, no Node yet, API server not reachable.

    `status` is that of HTTP, 0 where there was no answer; `certificate` False where kubelet has none yet.
    """

    def __init__(self, message: str, status: int = 0, *, certificate: bool = True) -> None:
        super().__init__(message)
        self.status = status
        self.certificate = certificate


@dataclass(frozen=True)
class Change:
    """One event of a watch: the Node as it is now, None when it was deleted, and the version to go on from."""

    node: dict[str, Any] | None
    version: str


class NodeApi:
    """One node's own Node. Each call has a connection of its own, since kubelet changes its certificate."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def get(self) -> dict[str, Any]:
        """The Node. Raises NotYet (status 404 where there is none), ApiRefused and GpuBurninError."""
        return self._json("GET", self._path())

    def annotate(self, changes: Mapping[str, str | None]) -> None:
        """Set annotations, or remove those that are None. Raises as get()."""
        self._json("PATCH", self._path(), canonical_json({"metadata": {"annotations": dict(changes)}}))

    def renew(self, heartbeat: Heartbeat) -> None:
        """Have the own AgentHeartbeat say this; the first makes it. Raises as get()."""
        names, name = self._config.publish.names, self._config.node_name
        change = canonical_json({"spec": to_json(heartbeat)})
        try:
            self._json("PATCH", heartbeats_path(names, name), change, HEARTBEAT_KIND)
        except NotYet as error:
            if error.status != NOT_FOUND:
                raise
            made = canonical_json(heartbeat_document(name, heartbeat, names))
            self._json("POST", heartbeats_path(names), made, HEARTBEAT_KIND)

    def enrolment(self) -> dict[str, Any] | None:
        """The own NodeEnrolment, None where there is none. Raises as get()."""
        try:
            return self._json(
                "GET", enrolments_path(self._config.publish.names, self._config.node_name), kind=ENROLMENT_KIND
            )
        except NotYet as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def enrol(self, document: Mapping[str, Any], *, again: bool) -> None:
        """Say in the own NodeEnrolment who this machine is; `again`: in the place of what it said. Raises as get()."""
        names, name = self._config.publish.names, self._config.node_name
        if again:
            change = canonical_json({"spec": document["spec"]})
            self._json("PATCH", enrolments_path(names, name), change, ENROLMENT_KIND)
        else:
            self._json("POST", enrolments_path(names), canonical_json(dict(document)), ENROLMENT_KIND)

    def listed(self) -> Change:
        """The Node, None where there is none, with the version a watch goes on from. Raises as get()."""
        document = self._json("GET", f"/api/v1/nodes?{urlencode(self._selector())}")
        items, metadata = document.get("items"), document.get("metadata")
        if not isinstance(items, list) or not isinstance(metadata, dict):
            raise NotYet(f"{self._config.publish.server} answered with something that is no list")
        return Change(items[0] if items else None, str(metadata.get("resourceVersion", "")))

    def watch(self, version: str, timeout_s: float) -> Iterator[Change]:
        """What changes after a version, for `timeout_s`. Raises as get(); NotYet with GONE: list again."""
        query = {**self._selector(), "watch": "1", "resourceVersion": version, "timeoutSeconds": str(int(timeout_s))}
        connection = self._connect(timeout_s + REQUEST_TIMEOUT_S)
        try:
            response = self._ask(connection, "GET", f"/api/v1/nodes?{urlencode(query)}")
            if response.status != 200:
                raise self._refusal("watch", _NODE, response.status, response.read(1 << 16))
            while line := response.readline(_MOST_EVENT_BYTES):
                if change := self._change(line):
                    yield change
        except (OSError, http.client.HTTPException) as error:
            raise NotYet(f"{self._config.publish.server} broke off ({error or type(error).__name__})") from error
        finally:
            connection.close()

    def _change(self, line: bytes) -> Change | None:
        """What an event says; None for a bookmark, which nobody asked for and which has no Node in it."""
        try:
            event = parse_json(line)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise NotYet(f"the watch ended: {item.get('message', 'no reason given')}", int(item.get("code") or 0))
            if kind == "BOOKMARK":
                return None
            return Change(None if kind == "DELETED" else item, str(item["metadata"]["resourceVersion"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotYet(f"{self._config.publish.server} sent an event that cannot be read ({error})") from error

    def _path(self) -> str:
        return f"/api/v1/nodes/{quote(self._config.node_name, safe='')}"

    def _selector(self) -> dict[str, str]:
        return {"fieldSelector": f"metadata.name={self._config.node_name}"}

    def _connect(self, timeout_s: float) -> http.client.HTTPSConnection:
        publish, node = self._config.publish, self._config.node_name
        parts = urlsplit(publish.server)
        if parts.scheme != "https" or not parts.hostname:
            raise GpuBurninError(
                f"{node}: publish.server is {publish.server!r}; set it to https://ADDRESS:PORT in the configuration"
            )
        if not publish.ca.exists():
            raise GpuBurninError(f"{node}: publish.ca {publish.ca} does not exist; correct the configuration")
        if publish.token is None and not publish.client_cert.exists():
            raise NotYet(
                f"{publish.client_cert} does not exist; kubelet makes it once its certificate request is approved",
                certificate=False,
            )
        try:
            context = ssl.create_default_context(cafile=str(publish.ca))
            if publish.token is None:
                context.load_cert_chain(str(publish.client_cert))
        except (OSError, ssl.SSLError) as error:
            raise NotYet(f"cannot load {publish.ca} or {publish.client_cert} ({error})") from error
        return http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=timeout_s, context=context)

    def _ask(
        self, connection: http.client.HTTPSConnection, method: str, path: str, body: bytes | None = None
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "application/json", **self._bearer()}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        connection.connect()
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            connection.sock.setsockopt(socket.IPPROTO_TCP, name, value)
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def _bearer(self) -> dict[str, str]:
        token = self._config.publish.token
        if token is None:
            return {}
        try:
            # Read each time: kubelet renews it in its place.
            return {"Authorization": f"Bearer {read_text(token).strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise NotYet(f"{token} cannot be read ({error}); the pod's volume brings it") from error

    def _json(self, method: str, path: str, body: bytes | None = None, kind: str = _NODE) -> dict[str, Any]:
        connection, server = self._connect(REQUEST_TIMEOUT_S), self._config.publish.server
        try:
            response = self._ask(connection, method, path, body)
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise NotYet(f"{server} does not answer ({error or type(error).__name__})") from error
        finally:
            connection.close()
        if response.status not in (200, 201):
            raise self._refusal(method, kind, response.status, content)
        try:
            document = parse_json(content)
        except ValueError as error:
            raise NotYet(f"{server} did not answer in JSON ({error})") from error
        if not isinstance(document, dict):
            raise NotYet(f"{server} did not answer with an object")
        return document

    def _refusal(self, method: str, kind: str, status: int, content: bytes) -> ApiRefused | NotYet:
        node, server = self._config.node_name, self._config.publish.server
        if status in FINAL:
            return ApiRefused(f"{node}: {server} refused {method} of the own {kind}: {message_of(content)}", status)
        return NotYet(f"{server} answered {status} for {kind} {node}: {message_of(content)}", status)


def annotations_of(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """The annotations of a Node, {} where it has none or they are none."""
    metadata = node.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def message_of(content: bytes) -> str:
    """The API server's own sentence out of a Status object."""
    try:
        return str(parse_json(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content[:120].decode("utf-8", "replace") or "no message"
