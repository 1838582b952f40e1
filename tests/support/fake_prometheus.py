"""Prometheus and Alertmanager on loopback, one server for both, with answers in the forms that theirs have."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpu_burnin.fleet.monitoring import numbers
from tests.support.server_helpers import QuietHandler

Labels = dict[str, str]


def series(name: str, value: float | str, /, **labels: str) -> tuple[Labels, str]:
    """A recorded series and its value."""
    return {"__name__": name, **labels}, str(value)


def healthy() -> list[tuple[Labels, str]]:
    """What the rules record of a small fleet: one node of five is quarantined, one API server made errors."""
    found = [series(numbers.STATES, count, state=state) for state, count in (("ready", 4), ("quarantined", 1))]
    for number in range(1, 4):
        of = {"instance": f"api-{number}", "group": "etcd"}
        found += [series(numbers.FSYNC, 0.002 * number, **of), series(numbers.QUOTA, 0.05, **of)]
        found += [series(numbers.HAS_LEADER, 1, **of)]
        found += [series(numbers.API_RATE, 12.5, instance=f"api-{number}")]
        found += [series(numbers.API_SECONDS, value, instance=f"api-{number}", verb=verb)
                  for verb, value in (("GET", 0.02), ("PUT", 0.03 * number))]  # fmt: skip
    found += [series(numbers.API_ERRORS, 0.02, instance="api-2"), series(numbers.OVERDUE, 3)]
    return [*found, series(numbers.PLACE_DOWN, 0, place="rack", name="r1", rack="r1")]


def firing(name: str, severity: str, summary: str, /, **labels: str) -> dict[str, Any]:
    """An alert as Prometheus tells of it."""
    return {
        "labels": {"alertname": name, "severity": severity, **labels},
        "annotations": {"summary": summary, "runbook": f"docs/operations/alerts.md#{name.lower()}"},
        "state": "firing",
        "activeAt": "2026-11-22T11:00:00.123456789Z",
        "value": "1e+00",
    }


def as_alertmanager(
    alert: dict[str, Any], *, silenced: tuple[str, ...] = (), inhibited: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The same as Alertmanager tells of it, with the label that Prometheus adds on the way."""
    return {
        "labels": {**alert["labels"], "fleet": "lab"},
        "annotations": alert["annotations"],
        "startsAt": alert["activeAt"],
        "status": {
            "state": "suppressed" if silenced or inhibited else "active",
            "silencedBy": [*silenced],
            "inhibitedBy": [*inhibited],
        },
    }


class FakePrometheus:
    """Answers with what its fields say. `spoil` may put anything in the place of an answer (path, body) to body.

    `drip_s` is the time between two bytes of an answer, `cut` leaves half of it out; `at` is the time of its values.
    """

    def __init__(self) -> None:
        self.recorded = healthy()
        self.hosts = {f"gpu-{number}": (True, {"rack": f"r{number // 3}"}) for number in range(5)}
        self.alerts: list[dict[str, Any]] = []
        self.told: list[dict[str, Any]] = []
        self.at = datetime.now(UTC)
        self.drip_s = 0.0
        self.cut = False
        self.spoil: Callable[[str, bytes], tuple[int, bytes]] = lambda path, body: (200, body)
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.closing = threading.Event()
        fake = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query)
                fake.asked.append((parts.path, query))
                status, body = fake.spoil(parts.path, json.dumps(fake.answer(parts.path, query)).encode())
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    if not fake.drip_s:
                        self.wfile.write(body[: len(body) // 2] if fake.cut else body)
                        return
                    for byte in body:
                        if fake.closing.wait(fake.drip_s):
                            return
                        self.wfile.write(bytes([byte]))
                except OSError:
                    pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        """End it."""
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, path: str, query: dict[str, list[str]]) -> Any:
        """What the real ones answer."""
        if path == "/api/v2/alerts":
            return self.told
        at = self.at.timestamp()
        if path == "/api/v1/alerts":
            return {"status": "success", "data": {"alerts": self.alerts}}
        if path == "/api/v1/query_range":
            start, end, step = (int(query[name][0]) for name in ("start", "end", "step"))
            rows = [{"metric": labels, "values": [[when, value] for when in range(start, end + 1, step)]}
                    for labels, value in self.recorded if labels["__name__"] == query["query"][0]]  # fmt: skip
            return _data("matrix", rows)
        if "up{" in query["query"][0]:
            return _data("vector", [{"metric": {"instance": name, **place}, "value": [at, str(int(up))]}
                                    for name, (up, place) in self.hosts.items()])  # fmt: skip
        return _data("matrix", [{"metric": labels, "values": [[at - 30, "7"], [at, value]]}
                                for labels, value in self.recorded])  # fmt: skip


def _data(kind: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": rows}}
