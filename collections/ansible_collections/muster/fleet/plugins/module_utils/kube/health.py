"""Ask a Kubernetes component over HTTP until it answers as it should, or the deadline passes.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

REQUEST_TIMEOUT_S = 5.0
ANSWER_LIMIT_BYTES = 32 * 1024 * 1024
SHOWN_CHARACTERS = 300
# Server-side apply, of which JSON is a part.
APPLY_TYPE = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Server:
    """Where to ask and who asks: URL without a path, CA file, optional client certificate and key files."""

    url: str
    ca: str | None = None
    client_cert: str | None = None
    client_key: str | None = None


@dataclass(frozen=True)
class Check:
    """One request and the answer that makes it pass; `hint` says what to do when it never does."""

    path: str
    method: str = "GET"
    body: Mapping[str, Any] | None = None
    status: int = 200
    contains: str | None = None
    matches: str | None = None
    hint: str = ""


@dataclass(frozen=True)
class Answer:
    """HTTP status and text of an answer."""

    status: int
    text: str


@dataclass(frozen=True)
class Failure:
    """The first check that did not pass, and why."""

    check: Check
    reason: str


def context_of(server: Server) -> ssl.SSLContext | None:
    """The TLS settings of an https server, None for http. Raises FleetError for unusable files."""
    if urlsplit(server.url).scheme == "http":
        return None
    try:
        context = ssl.create_default_context(cafile=server.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if server.client_cert:
            context.load_cert_chain(server.client_cert, server.client_key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(name for name in (server.ca, server.client_cert, server.client_key) if name)
        raise FleetError(
            f"{server.url}: the certificate files ({files}) cannot be used: {error}; check that they exist, "
            "are PEM and belong together"
        ) from error
    return context


def ask(server: Server, context: ssl.SSLContext | None, check: Check, timeout_s: float) -> Answer:
    """Send one request. Raises OSError or http.client.HTTPException when there is no answer."""
    parts = urlsplit(server.url)
    host = parts.hostname or ""
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_s)
    else:
        connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
    try:
        body = None if check.body is None else json.dumps(check.body)
        headers = {} if body is None else {"Content-Type": APPLY_TYPE}
        connection.request(check.method, check.path, body=body, headers=headers)
        response = connection.getresponse()
        return Answer(response.status, response.read(ANSWER_LIMIT_BYTES).decode(errors="replace"))
    finally:
        connection.close()


def judge(check: Check, answer: Answer) -> str | None:
    """Why the answer does not pass the check, or None when it does."""
    shown = " ".join(answer.text.split())
    shown = shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
    if answer.status != check.status:
        return f"answered {answer.status} instead of {check.status}: {shown}"
    if check.contains is not None and check.contains not in answer.text:
        return f"answered {answer.status} without {check.contains!r}: {shown}"
    if check.matches is not None and not re.search(check.matches, answer.text):
        return f"answered {answer.status} with nothing that matches {check.matches!r}"
    return None


def first_failure(
    server: Server, context: ssl.SSLContext | None, checks: Sequence[Check], timeout_s: float
) -> Failure | None:
    """Ask each check once, in order; the first that fails, or None."""
    for check in checks:
        try:
            reason = judge(check, ask(server, context, check, timeout_s))
        except (OSError, http.client.HTTPException) as error:
            reason = f"gave no answer: {error or type(error).__name__}"
        if reason is not None:
            return Failure(check, reason)
    return None


def wait(
    server: Server,
    checks: Sequence[Check],
    deadline_s: float,
    interval_s: float = 0.5,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Failure | None:
    """Ask until all checks pass in one round (None) or the deadline passes (the last failure).

    A deadline of 0 asks once. Raises FleetError for input that can never work.
    """
    validate(server, checks)
    context = context_of(server)
    end = clock() + deadline_s
    while True:
        left_s = max(end - clock(), 1.0)
        failure = first_failure(server, context, checks, min(REQUEST_TIMEOUT_S, left_s))
        if failure is None or clock() + interval_s > end:
            return failure
        pause(interval_s)


def validate(server: Server, checks: Sequence[Check]) -> None:
    """Raises FleetError when the server or a check is malformed."""
    parts = urlsplit(server.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise FleetError(f"{server.url}: is not a server URL; write http(s)://ADDRESS:PORT without a path")
    for check in checks:
        if not check.path.startswith("/"):
            raise FleetError(f"{server.url}: the path {check.path!r} must begin with /")
        try:
            re.compile(check.matches or "")
        except re.error as error:
            raise FleetError(f"{check.path}: {check.matches!r} is not a regular expression: {error}") from error


def message(server: Server, failure: Failure, deadline_s: float) -> str:
    """One sentence: who, which path, what was wrong for how long, what to do."""
    hint = f"; {failure.check.hint}" if failure.check.hint else ""
    return f"{server.url}{failure.check.path} {failure.reason} (asked for {deadline_s:g} s){hint}"
