"""A stand-in for the clouds' metadata services, on loopback: recorded answers, wrong ones, slow ones and none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.server_helpers import QuietHandler, serving

# What a path answers: status and body, or what is done with the connection.
Scripted = tuple[int, str] | Callable[[BaseHTTPRequestHandler], None]


class MetadataServer:
    """Answers by path, without the query. `asked` are the requests: method, whole path and headers."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.answers: dict[str, Scripted] = {}
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []
        # Ends whatever waits.
        self.over = threading.Event()
        outer = self

        class Handler(QuietHandler):
            def _answer(self) -> None:
                outer.asked.append((self.command, self.path, dict(self.headers.items())))
                scripted = outer.answers.get(self.path.partition("?")[0], (404, "<html>404 - Not Found</html>"))
                if callable(scripted):
                    scripted(self)
                    return
                status, body = scripted
                self.reply(status, body.encode())

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

        self.server = ThreadingHTTPServer((address, 0), Handler)
        self.server.daemon_threads = True
        self.base = f"http://{address}:{self.server.server_address[1]}"

    def silent(self, handler: BaseHTTPRequestHandler) -> None:
        """Take the request and answer nothing."""
        self.over.wait()

    def dripping(self, handler: BaseHTTPRequestHandler) -> None:
        """A header that a byte is added to now and then: no single read ever times out."""
        with contextlib.suppress(OSError):  # once the client is gone
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
            while not self.over.wait(0.01):
                handler.wfile.write(b"y")


@contextlib.contextmanager
def metadata_server(address: str = "127.0.0.1") -> Iterator[MetadataServer]:
    """The stand-in as long as the block lasts."""
    stand_in = MetadataServer(address)
    with serving(stand_in.server):
        yield stand_in
        stand_in.over.set()
