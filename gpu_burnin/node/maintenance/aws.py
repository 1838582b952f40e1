"""EC2's scheduled events, by IMDSv2 (docs.aws.amazon.com, "Scheduled events for Amazon EC2 instances"). Standard
library only.

Events that are over, or were called off, linger for days: an event counts while its State is active.

A retirement, or an event whose description speaks of degraded hardware, is not ahead but has begun: EC2 plans one "when
AWS detects irreparable failure of the underlying hardware", and its date is only when EC2 stops the instance
(docs.aws.amazon.com, "Instance retirement", which asks to act as soon as possible).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import NONE, SCHEDULED, STARTED
from gpu_burnin.node.maintenance.service import NotKnown, Service, sentence, time_of, unknown, word
from gpu_burnin.system.clock import parse_rfc3339

NAME = "aws"
BASE = "http://169.254.169.254"
TOKEN = "/latest/api/token"
EVENTS = "/latest/meta-data/events/maintenance/scheduled"
# A token for each poll: none is kept, and none grows old.
_TOKEN_TTL = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
_OVER = ("completed", "canceled", "cancelled")
_RETIREMENT, _DEGRADED = "instance-retirement", "degraded"


def read(service: Service, now: datetime) -> Sequence[Maintenance]:
    """The events of this instance. Raises NotKnown."""
    token = service.text(TOKEN, _TOKEN_TTL, method="PUT")
    if not token.isascii() or not token.isprintable():
        raise NotKnown(f"its metadata service gives {word(token)!r} for a token")
    events = service.json(EVENTS, {"X-aws-ec2-metadata-token": token})
    if not isinstance(events, list):
        raise NotKnown(f"its metadata service answers {word(events)!r}, which is no list of events, to {EVENTS}")
    return [_event(event, now) for event in events]


def _event(event: Any, now: datetime) -> Maintenance:
    try:
        if not isinstance(event, Mapping):
            raise NotKnown("its metadata service tells of an event that is none")
        state, description = str(event.get("State")).casefold(), sentence(event.get("Description"))
        if state in _OVER or description.casefold().startswith(tuple(f"[{word}]" for word in _OVER)):
            return Maintenance(NAME, NONE)
        if state != "active":
            raise NotKnown(f"its metadata service tells of an event in the state {word(event.get('State'))!r}")
        start, end = time_of(event.get("NotBefore")), time_of(event.get("NotAfter"))
        kind, identity = word(event.get("Code")), word(event.get("EventId"))
        if kind == _RETIREMENT or _DEGRADED in description.casefold():
            return Maintenance(NAME, STARTED, kind=kind, id=identity, message=_asks(description, start))
        return Maintenance(
            provider=NAME,
            state=STARTED if start and parse_rfc3339(start) <= now else SCHEDULED,
            not_before=start,
            not_after=end,
            kind=kind,
            id=identity,
            message=description,
        )
    except NotKnown as error:
        return unknown(NAME, error)


def _asks(description: str, stops_at: str) -> str:
    """What a person does about hardware that has failed: a reboot stays on it."""
    until = f" before EC2 does at {stops_at}" if stops_at else ""
    asked = f"stop and start the instance{until}, which moves it to other hardware"
    return f"{description}; {asked}" if description else asked
