"""A client that writes through the balancer without a pause and remembers what was acknowledged."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType

from .fleet import Fleet

_PAUSE_S = 0.05
TIMEOUT_S = 30.0


@dataclass
class Seen:
    """What the writer met. Times are in seconds of time.monotonic."""

    acknowledged: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    longest_gap_s: float = 0.0


class Writer:
    """Writes ConfigMaps, each once, while the block runs. A write that failed, or that had no answer after `timeout_s`,
    is tried again on a new connection."""

    def __init__(self, fleet: Fleet, namespace: str = "writer", timeout_s: float = TIMEOUT_S) -> None:
        self.namespace, self._timeout_s = namespace, timeout_s
        self._fleet, self.seen, self._stop = fleet, Seen(), threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer")

    def __enter__(self) -> Writer:
        done = self._fleet.kubectl("create", "namespace", self.namespace)
        assert done.rc == 0, done.err
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def lost(self) -> list[str]:
        """What was acknowledged and is not there."""
        there = {
            one["metadata"]["name"] for one in self._fleet.get("configmaps", "--namespace", self.namespace)["items"]
        }
        return sorted(set(self.seen.acknowledged) - there)

    def remove(self) -> None:
        """Remove what was written."""
        done = self._fleet.kubectl("delete", "namespace", self.namespace, "--wait=false")
        assert done.rc == 0, done.err

    def __str__(self) -> str:
        seen = self.seen
        return (
            f"{len(seen.acknowledged)} writes acknowledged, {len(seen.errors)} failed, "
            f"longest gap {seen.longest_gap_s:.1f} s{''.join(f'; {one}' for one in sorted(set(seen.errors)))}"
        )

    def _write(self) -> None:
        connection = None
        number, last_s = 0, time.monotonic()
        while not self._stop.wait(_PAUSE_S):
            name = f"write-{number}"
            try:
                connection = connection or self._connect()
                status = self._post(connection, name)
            except (OSError, http.client.HTTPException) as error:
                self.seen.errors.append(f"{type(error).__name__}: {error}")
                connection = None
                continue
            # A write whose answer was lost may have been done.
            if status not in (201, 409):
                self.seen.errors.append(f"status {status}")
                continue
            now_s = time.monotonic()
            self.seen.longest_gap_s = max(self.seen.longest_gap_s, now_s - last_s)
            self.seen.acknowledged.append(name)
            number, last_s = number + 1, now_s

    def _connect(self) -> http.client.HTTPSConnection:
        pki = self._fleet.state / "pki/kubernetes"
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / "admin.crt", pki / "admin.key")
        return http.client.HTTPSConnection(
            self._fleet.addresses["lb-1"], 6443, timeout=self._timeout_s, context=context
        )

    def _post(self, connection: http.client.HTTPSConnection, name: str) -> int:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"at": str(time.time())}}
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
