"""HTTP servers for the length of a test."""

from __future__ import annotations

import contextlib
import json
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.system.files import write_atomic


class QuietHandler(BaseHTTPRequestHandler):
    """Writes no line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def body(self) -> bytes:
        """What came with the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answer with all of `body`; an underscore of a header's name is a hyphen."""
        self.send_response(status)
        for name, value in {**headers, "Content_Length": str(len(body))}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def reply_json(self, status: int, document: Any, **headers: str) -> None:
        """Answer with a document."""
        self.reply(status, json.dumps(document).encode(), **headers)


class QuietFiles(SimpleHTTPRequestHandler):
    """Serves a folder and writes no line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread as long as the block lasts; after it thread and port are gone."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def listening(
    handler: Callable[..., BaseHTTPRequestHandler], address: str = "127.0.0.1", port: int = 0,
    *, tls: ssl.SSLContext | None = None,
) -> Iterator[str]:  # fmt: skip
    """The URL of a server with this handler as long as the block lasts."""
    server = ThreadingHTTPServer((address, port), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    with serving(server):
        yield f"{'http' if tls is None else 'https'}://{address}:{server.server_port}"


def write_kubeconfig(path: Path, server: str, user: dict[str, str] | None = None, **cluster: str) -> Path:
    """A kubeconfig of one server and one user, who may be nobody."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "me", "user": user or {}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "me"}}],
        "current-context": "test",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, yaml.safe_dump(content).encode())
    return path
