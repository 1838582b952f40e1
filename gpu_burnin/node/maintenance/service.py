"""Asking a cloud's metadata service, within a time of our own, and reading what such services write.

No proxy is used, no redirection followed, nothing but GET and the PUT of a token sent. Standard library only.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import UNKNOWN
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.files import parse_json
from gpu_burnin.system.prose import printable

# A metadata service answers in milliseconds; where it may take longer, the provider says so.
DEADLINE_S = 10.0
_MOST_BYTES = 1 << 18
_SHOWN, _MOST_WORD, _MOST_MESSAGE = 80, 64, 300


class NotKnown(Exception):
    """It is not known whether maintenance is near; the message is a clause that says why."""


@dataclass(frozen=True)
class Answer:
    """What a service answered."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace").strip()

    def good(self, path: str) -> str:
        """The text of an answer with status 200. Raises NotKnown for every other one; `path` is what was asked."""
        if self.status != 200:
            raise NotKnown(f"its metadata service answers {self.status} ({_shown(self.body)}) to {path}")
        return self.text


@dataclass(frozen=True)
class Service:
    """A metadata service at `base`, such as http://169.254.169.254."""

    base: str

    def text(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", deadline_s: float = DEADLINE_S
    ) -> str:
        """The text of a good answer. Raises NotKnown for every other one, and for none within the time."""
        return self.answer(path, headers, method=method, deadline_s=deadline_s).good(path)

    def answer(
        self, path: str, headers: Mapping[str, str], *, method: str = "GET", deadline_s: float = DEADLINE_S
    ) -> Answer:
        """Whatever it answers. Raises NotKnown for too much, and for nothing within the time."""
        answer = self._ask(path, headers, method, deadline_s)
        if len(answer.body) > _MOST_BYTES:
            raise NotKnown(f"its metadata service answers more than {_MOST_BYTES} bytes to {path}")
        return answer

    def json(self, path: str, headers: Mapping[str, str], *, deadline_s: float = DEADLINE_S) -> Any:
        """The document of a good answer. Raises NotKnown."""
        text = self.text(path, headers, deadline_s=deadline_s)
        try:
            return parse_json(text)
        except ValueError:
            raise NotKnown(
                f"its metadata service answers {_shown(text.encode())}, which is no JSON, to {path}"
            ) from None

    def _ask(self, path: str, headers: Mapping[str, str], method: str, deadline_s: float) -> Answer:
        url, began_s = urlsplit(self.base), time.monotonic()
        connection = HTTPConnection(url.hostname or "", url.port or 80, timeout=deadline_s)
        timer, late = None, threading.Event()
        try:
            connection.connect()
            timer = threading.Timer(began_s + deadline_s - time.monotonic(), _cut, (connection.sock, late))
            timer.daemon = True
            timer.start()
            connection.request(method, path, headers={**headers, "Connection": "close"})
            response = connection.getresponse()
            answer = Answer(response.status, response.read(_MOST_BYTES + 1))
        except (OSError, HTTPException, ValueError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise _too_late(path, deadline_s) from error
            raise NotKnown(
                f"its metadata service does not answer to {path} ({error or type(error).__name__})"
            ) from error
        finally:
            if timer is not None:
                timer.cancel()
            connection.close()
        if late.is_set():
            raise _too_late(path, deadline_s)
        return answer


def _cut(sock: socket.socket, late: threading.Event) -> None:
    # The timeout of a socket is that of one read: a service that sends a byte now and then would go on for ever.
    late.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _too_late(path: str, deadline_s: float) -> NotKnown:
    return NotKnown(f"its metadata service has not answered within {deadline_s:g} s to {path}")


# Asks a service: the windows that it tells of, or records of what is not known. Raises NotKnown.
Provider: TypeAlias = Callable[[Service, datetime], Sequence[Maintenance]]


def time_of(value: object) -> str:
    """A provider's time as RFC 3339 UTC, "" for none: RFC 3339, or that of e-mail, with any weekday or without one.

    Raises NotKnown.
    """
    if value is None or value == "":
        return ""
    if isinstance(value, str):
        for read in (parse_rfc3339, _mail_time):
            try:
                return read(value.strip()).isoformat(timespec="seconds").replace("+00:00", "Z")
            except (ValueError, TypeError, IndexError, OverflowError):
                continue
    raise NotKnown(f"its metadata service tells of a time {_shown(str(value).encode())}, which cannot be read")


def _mail_time(text: str) -> datetime:
    found = parsedate_to_datetime(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)


def word(value: object) -> str:
    """A name of the provider's, short and on one line; "" for none."""
    return _one_line("" if value is None else str(value), _MOST_WORD)


def sentence(value: object) -> str:
    """A text of the provider's, on one line and bounded; "" for none."""
    return _one_line("" if value is None else str(value), _MOST_MESSAGE)


def unknown(provider: str, why: object) -> Maintenance:
    """The record of what is not known."""
    return Maintenance(provider, UNKNOWN, message=sentence(f"{provider}: {why}"))


def _shown(body: bytes) -> str:
    text = _one_line(body[: 4 * _SHOWN].decode("utf-8", "replace"), _SHOWN)
    return repr(text) if text else "nothing"


def _one_line(text: str, most: int) -> str:
    line = re.sub(r"\s+", " ", text).strip()
    return printable(line)[:most]
