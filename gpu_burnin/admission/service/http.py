"""Health and metrics over HTTP: GET /healthz, /metrics and, of a service that has a leader, /leaderz."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpu_burnin.admission.service.metrics import CONTENT_TYPE
from gpu_burnin.errors import GpuBurninError

_TEXT = "text/plain; charset=utf-8"


class Pages:
    """The server. `unhealthy` is why this process should be started again, "" for healthy; `leads` None: no leader."""

    def __init__(
        self,
        address: tuple[str, int],
        metrics: Callable[[], bytes],
        unhealthy: Callable[[], str],
        leads: Callable[[], bool] | None = None,
    ) -> None:
        """Raises GpuBurninError when the address cannot be used."""

        def page(path: str) -> tuple[int, str, bytes] | None:
            if path == "/metrics":
                return 200, CONTENT_TYPE, metrics()
            if path == "/healthz":
                why = unhealthy()
                return (503, _TEXT, f"{why}\n".encode()) if why else (200, _TEXT, b"ok\n")
            if path == "/leaderz" and leads is not None:
                return (200, _TEXT, b"leader\n") if leads() else (503, _TEXT, b"standby\n")
            return None

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def log_message(self, *args: object) -> None:
                """Nothing: the journal is for nodes."""

            def do_GET(self) -> None:
                status, kind, body = page(self.path.partition("?")[0]) or (404, _TEXT, b"not found\n")
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = _family(address[0])

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A reader that went away is no trouble of ours."""

        try:
            self._server = Server(address, Handler)
        except OSError as error:
            raise GpuBurninError(
                f"{address[0]}:{address[1]}: cannot listen ({error}); give `listen` another address, or end the "
                "other process that uses it"
            ) from error
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="http", daemon=True).start()

    @property
    def port(self) -> int:
        """The port, also when it was given as 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
