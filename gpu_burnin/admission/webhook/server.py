"""The webhook's server: HTTPS with a certificate that it makes anew before the old one ends."""

from __future__ import annotations

import os
import ssl
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpu_burnin.admission.webhook.certificate import SERVER_RENEWED, Pair, make_server
from gpu_burnin.admission.webhook.review import ReviewError, answer
from gpu_burnin.api.attached import WEBHOOK, WEBHOOK_PATH, Attached
from gpu_burnin.api.names import SYSTEM_NAMESPACE, Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import rfc3339_s
from gpu_burnin.system.files import parse_json, read_text

DNS_NAME = f"{WEBHOOK}.{SYSTEM_NAMESPACE}.svc"
# A Node has 20 KiB or so, one with all that etcd takes 1.5 MiB.
MOST_BYTES = 4 << 20
LOOK_S = 3600.0


def read_authority(folder: Path) -> Pair:
    """The authority that the Secret's volume has. Raises GpuBurninError."""
    try:
        return Pair(read_text(folder / "ca.crt"), read_text(folder / "ca.key"))
    except (OSError, UnicodeDecodeError) as error:
        raise GpuBurninError(
            f"{folder}: the webhook's authority cannot be read ({error}); run `muster attach`"
        ) from error


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


class Webhook:
    """The server. Raises GpuBurninError at its start. `say` is for what keeps it from another certificate."""

    def __init__(
        self,
        address: tuple[str, int],
        authority: Callable[[], Pair],
        attached: Attached,
        names: Names,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        say: Callable[[str], None] = _say,
    ) -> None:
        self._authority, self._now, self._report = authority, now, say
        hook = self
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.ends = self._renew()
        self._over = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def log_message(self, *args: object) -> None:
                """Nothing: a line for each Node says nothing that its events do not."""

            def do_GET(self) -> None:
                if self.path != "/healthz":
                    self._say(404, b"there is /healthz\n")
                    return
                why = hook.unhealthy()
                self._say(503 if why else 200, f"{why or 'ok'}\n".encode())

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                if self.path.partition("?")[0] != WEBHOOK_PATH or not length.isdecimal() or int(length) > MOST_BYTES:
                    self._say(400, b"no AdmissionReview\n")
                    return
                try:
                    review = parse_json(self.rfile.read(int(length)))
                    if not isinstance(review, dict):
                        raise ReviewError("this is no object")
                    body = canonical_json(answer(review, attached.gpu_nodes, names))
                except (ValueError, AttributeError, GpuBurninError) as error:
                    self._say(400, f"{error}\n".encode())
                    return
                self._say(200, body, "application/json")

            def _say(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        context = self._context

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request: Any, client_address: Any) -> None:
                # In the thread of the connection: a caller who says nothing holds up nobody.
                request.settimeout(10)
                with context.wrap_socket(request, server_side=True) as secure:
                    Handler(secure, client_address, self)

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A caller that went away, or speaks no TLS, is no trouble of ours."""

        try:
            self._server = Server(address, Handler)
        except OSError as error:
            raise GpuBurninError(
                f"{address[0]}:{address[1]}: cannot listen ({error}); give --listen another"
            ) from error

    @property
    def port(self) -> int:
        """The port, also when it was given as 0."""
        return int(self._server.server_address[1])

    def run(self) -> None:
        """Serve until closed."""
        threading.Thread(target=self._keep, name="certificate", daemon=True).start()
        self._server.serve_forever(0.2)

    def close(self) -> None:
        """Serve no more."""
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def renew_if_due(self) -> bool:
        """Make another certificate where the present one ends soon; new connections have it."""
        if self.ends - self._now() > SERVER_RENEWED:
            return False
        self.ends = self._renew()
        return True

    def unhealthy(self) -> str:
        """Why nobody believes it any more, "" for healthy."""
        return f"its certificate has ended on {rfc3339_s(self.ends)}" if self.ends <= self._now() else ""

    def _keep(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self.renew_if_due()
            except (GpuBurninError, OSError) as error:
                # The next look tries again: there are days until the present one ends.
                self._report(f"no other certificate ({error}); the present one ends on {rfc3339_s(self.ends)}")

    def _renew(self) -> datetime:
        made = make_server(self._authority(), DNS_NAME, self._now())
        # The library loads keys from files alone: this one is in memory, and gone at once.
        descriptor = os.memfd_create("muster-webhook")
        try:
            os.write(descriptor, f"{made.certificate}{made.key}".encode())
            self._context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return made.ends
