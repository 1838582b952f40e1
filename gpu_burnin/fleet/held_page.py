"""Who is held, and why, as one page: it loads nothing, and leads to the page of each host's report."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin import __version__
from gpu_burnin.fleet.held import SCHEMA, UNREADABLE, Fleet, HostReport
from gpu_burnin.fleet.held_text import named, summary, tested_at
from gpu_burnin.hardware import load_reasons
from gpu_burnin.report import html
from gpu_burnin.system.prose import short_uuids

# Runs of host names of a reason.
_MOST_NAMES = 12
# Codes of a host whose messages are shown; the others are named.
_MOST_REASONS = 4


@dataclass(frozen=True)
class _Reason:
    """A row of the table of reasons."""

    code: str
    severity: str
    summary: str
    count: int
    hosts: tuple[str, ...]


def render(fleet: Fleet, place: Path) -> str:
    """The page, to be kept at `place`: its links are relative to that."""
    known = load_reasons()
    reasons = [
        _reason(code, severity, known[code].summary if code in known else "", hosts)
        for (severity, code), hosts in fleet.reasons.items()
    ]
    unread = [host.host for host in fleet.held if host.problem]
    return html.fill(
        "held.html.j2",
        fleet=fleet,
        worst=next(iter(fleet.verdicts)),
        summary=summary(fleet),
        reasons=reasons,
        unread=_reason("", UNREADABLE, "", unread),
        most_reasons=_MOST_REASONS,
        link=lambda host: _link(host, place),
        badge_of=lambda verdict: "WARNING" if verdict == UNREADABLE else verdict,
        tested_at=tested_at,
        short_uuids=short_uuids,
        schema=SCHEMA,
        version=__version__,
    )


def _reason(code: str, severity: str, about: str, hosts: Sequence[str]) -> _Reason:
    return _Reason(code, severity, about, len(hosts), tuple(named(hosts, _MOST_NAMES)))


def _link(host: HostReport, place: Path) -> str:
    """Where its page is, seen from `place`; "" where it has none."""
    if not host.page:
        return ""
    return urllib.parse.quote(os.path.relpath(host.page, place.parent))
