"""The driver's way to the API: kept connections, acting as root or, by impersonation, as a node's kubelet."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.integration.kube import MERGE_PATCH, Server

# The API server closes a connection that was idle for 90 s.
_KEPT_S = 60.0
_T = TypeVar("_T")
_R = TypeVar("_R")


class Refused(RuntimeError):
    """The API server's answer is not 2xx."""


@dataclass
class Api:
    """One identity's connections, one a thread."""

    server: Server
    context: ssl.SSLContext
    _local: threading.local = field(default_factory=threading.local)

    @classmethod
    def of(cls, server: Server, user: str, groups: Sequence[str] = ()) -> Api:
        """An identity by client certificate."""
        return cls(server, server.client(user, groups).context)

    def request(
        self, method: str, path: str, body: object = None, kind: str = "application/json", node: str = ""
    ) -> Any:
        """One request, as the kubelet of `node` where it is given. Raises Refused for any answer but 2xx."""
        headers = {"Content-Type": kind}
        if node:
            headers |= {"Impersonate-User": f"system:node:{node}", "Impersonate-Group": "system:nodes"}
        data = None if body is None else json.dumps(body)
        connection = self._connection()
        connection.request(method, path, data, headers)
        return json.loads(self._answer(connection, f"{method} {path}"))

    def once(self, method: str, path: str, body: object, kind: str, node: str) -> Any:
        """One request of a node's by a connection of its own, as its agent has them. Raises Refused."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, context=self.context, timeout=60)
        headers = {
            "Content-Type": kind,
            "Impersonate-User": f"system:node:{node}",
            "Impersonate-Group": "system:nodes",
        }
        try:
            connection.request(method, path, json.dumps(body), headers)
            return json.loads(self._answer(connection, f"{method} {path}"))
        finally:
            connection.close()

    def text(self, path: str) -> str:
        """A page that is not JSON. Raises Refused."""
        return self.binary(path).decode()

    def binary(self, path: str) -> bytes:
        """An answer as it is. Raises Refused."""
        connection = self._connection()
        connection.request("GET", path)
        return self._answer(connection, path)

    def _answer(self, connection: http.client.HTTPSConnection, what: str) -> bytes:
        response = connection.getresponse()
        content = response.read()
        if response.status >= 300:
            raise Refused(f"{what}: {response.status} {content[:300]!r}")
        return content

    def merge(self, path: str, change: Mapping[str, Any], node: str = "") -> Any:
        """A merge patch."""
        return self.request("PATCH", path, change, MERGE_PATCH, node)

    def _connection(self) -> http.client.HTTPSConnection:
        """This thread's connection, a new one where the server may have closed the old one for its idleness."""
        found: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        now_s = time.monotonic()
        if found is None or now_s > self._local.used_s + _KEPT_S:
            if found is not None:
                found.close()
            found = http.client.HTTPSConnection("127.0.0.1", self.server.port, context=self.context, timeout=60)
            self._local.connection = found
        self._local.used_s = now_s
        return found


def each(function: Callable[[_T], _R], items: Iterable[_T], threads: int = 16) -> list[_R]:
    """The function of each item, from so many threads; raises what the first that failed raised."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
