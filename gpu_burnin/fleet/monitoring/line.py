"""Questions over HTTP to Prometheus and Alertmanager: through SSH to the host that they listen on, or straight.

Each question has a time within which it is over, whatever the other side does, and a size that is the most it may send.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import paramiko

from gpu_burnin.fleet.model import SshError, Target
from gpu_burnin.fleet.ssh import connect
from gpu_burnin.system import known_hosts as kh

PROMETHEUS, ALERTMANAGER = "http://127.0.0.1:9090", "http://127.0.0.1:9093"
TIMEOUT_S = 5.0
# 7,500 hosts with their places are 1 MiB.
MOST_BYTES = 32 << 20
Ask = Callable[[str, str, Mapping[str, str]], Any]


class NoAnswerError(Exception):
    """There is no answer that can be read; says who was asked, and why."""


@dataclass(frozen=True)
class Monitoring:
    """Where to ask. With `host` the addresses are as that host sees them, and are reached through SSH to it."""

    prometheus: str = PROMETHEUS
    alertmanager: str = ALERTMANAGER
    host: Target | None = None
    known_hosts: Path = Path("~/.ssh/known_hosts")
    timeout_s: float = TIMEOUT_S

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.host.name if self.host else self.prometheus


@contextlib.contextmanager
def asking(where: Monitoring) -> Iterator[Ask]:
    """A function (address, path, parameters) that returns the JSON of an answer.

    Raises NoAnswerError where the host cannot be reached; the function raises it where there is no answer, or none that
    is JSON.
    """
    if where.host is None:
        yield lambda address, path, parameters: _ask(_straight, address, path, parameters, where.timeout_s)
        return
    with contextlib.ExitStack() as stack:
        try:
            known = kh.load(where.known_hosts.expanduser())
            line = stack.enter_context(connect(where.host, known, timeout_s=where.timeout_s))
        except SshError as error:
            raise NoAnswerError(str(error)) from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise NoAnswerError(f"{where.name}: SSH failed ({error or type(error).__name__})") from error
        transport, name = line.transport, where.name

        def through(host: str, port: int, tls: bool, timeout_s: float) -> Any:
            if tls:
                raise NoAnswerError(f"https://{host}:{port} behind {name} is not supported; give an http:// address")
            return transport.open_channel("direct-tcpip", (host, port), ("127.0.0.1", 0), timeout=timeout_s)

        yield lambda address, path, parameters: _ask(through, address, path, parameters, where.timeout_s, f"{name}: ")


def _straight(host: str, port: int, tls: bool, timeout_s: float) -> socket.socket:
    line = socket.create_connection((host, port), timeout_s)
    return ssl.create_default_context().wrap_socket(line, server_hostname=host) if tls else line


def _ask(
    open_line: Callable[[str, int, bool, float], Any],
    address: str,
    path: str,
    parameters: Mapping[str, str],
    timeout_s: float,
    on: str = "",
) -> Any:
    parts, asked = urlsplit(address), f"{on}{address}"
    tls = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if tls else 80)
    late = threading.Event()
    try:
        line = open_line(host, port, tls, timeout_s)
        with contextlib.closing(line):
            line.settimeout(timeout_s)
            # The time of a socket is that of one read: who sends a byte a second is cut off by this.
            timer = threading.Timer(timeout_s, _hang_up, (line, late))
            timer.daemon = True
            timer.start()
            try:
                connection = http.client.HTTPConnection(host, port)
                connection.sock = _Kept(line)
                connection.request(
                    "GET",
                    f"{parts.path.rstrip('/')}{path}?{urlencode(parameters)}",
                    headers={"Accept": "application/json", "Connection": "close"},
                )
                response = connection.getresponse()
                body = response.read(MOST_BYTES + 1)
            finally:
                timer.cancel()
    except (OSError, EOFError, ValueError, http.client.HTTPException, paramiko.SSHException) as error:
        why = f"not within {timeout_s:g} s" if late.is_set() or isinstance(error, TimeoutError) else _why(error)
        raise NoAnswerError(f"{asked} does not answer ({why})") from error
    if late.is_set():
        raise NoAnswerError(f"{asked} does not answer (not within {timeout_s:g} s)")
    if response.length and len(body) <= MOST_BYTES:
        raise NoAnswerError(f"{asked}{path} hangs up {response.length:,} bytes before the end of its answer")
    if len(body) > MOST_BYTES:
        raise NoAnswerError(f"{asked}{path} sends more than {MOST_BYTES >> 20} MiB")
    if response.status != http.HTTPStatus.OK:
        raise NoAnswerError(f"{asked}{path} refuses (HTTP {response.status}): {body[:200].decode('utf-8', 'replace')}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoAnswerError(
            f"{asked}{path} sends what is not JSON: {body[:80].decode('utf-8', 'replace')!r}"
        ) from error


class _Kept:
    """A line that http.client does not close before the answer is read: it does so where no other may follow.

    A socket would wait for its reader; a channel of SSH is gone at once.
    """

    def __init__(self, line: Any) -> None:
        self.sendall, self.makefile = line.sendall, line.makefile

    def close(self) -> None:
        """The line is closed by who opened it."""


def _why(error: Exception) -> str:
    if isinstance(error, paramiko.ChannelException):
        return f"{error.text}; is it running, and does sshd there allow forwarding?"
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__


def _hang_up(line: Any, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError, EOFError):
        line.shutdown(socket.SHUT_RDWR)  # wakes who reads a socket; close alone does not
    line.close()  # and this who reads a channel
