"""Azure Scheduled Events (learn.microsoft.com/azure/virtual-machines/linux/scheduled-events). Standard library only.

The first call of a machine switches the service on and may take two minutes; a day without calls switches it off.
An event goes away when it is over or called off, so its end is not computed from its duration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import NONE, SCHEDULED, STARTED
from gpu_burnin.node.maintenance.service import NotKnown, Service, sentence, time_of, unknown, word

NAME = "azure"
BASE = "http://169.254.169.254"
EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
OWN_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
# Two minutes for the first call, and some more.
DEADLINE_S = 150.0
_STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": NONE, "canceled": NONE, "cancelled": NONE}


def read(service: Service, now: datetime) -> Sequence[Maintenance]:
    """The events of this machine alone: a scale set shows those of others too. Raises NotKnown."""
    document = service.json(EVENTS, HEADERS, deadline_s=DEADLINE_S)
    events = document.get("Events") if isinstance(document, Mapping) else None
    if not isinstance(events, list):
        raise NotKnown("its metadata service answers without a list of Events")
    if not events:
        return ()
    own = service.text(OWN_NAME, HEADERS).casefold()
    if not own:
        raise NotKnown("its metadata service does not tell the name of this machine, so whose the events are")
    return [_event(event) for event in events if _is_own(event, own)]


def _is_own(event: Any, own: str) -> bool:
    resources = event.get("Resources") if isinstance(event, Mapping) else None
    # Events that do not say whose they are may be ours.
    return not isinstance(resources, list) or not resources or own in [str(name).casefold() for name in resources]


def _event(event: Any) -> Maintenance:
    try:
        if not isinstance(event, Mapping):
            raise NotKnown("its metadata service tells of an event that is none")
        state = _STATES.get(str(event.get("EventStatus")).casefold())
        if state is None:
            raise NotKnown(f"its metadata service tells of an event in the state {word(event.get('EventStatus'))!r}")
        duration_s: Any = event.get("DurationInSeconds")
        return Maintenance(
            provider=NAME,
            state=state,
            not_before=time_of(event.get("NotBefore")),
            kind=word(event.get("EventType")),
            # -1: Azure does not know it.
            impact_s=float(duration_s) if type(duration_s) in (int, float) and duration_s >= 0 else None,
            id=word(event.get("EventId")),
            message=sentence(event.get("Description")),
        )
    except NotKnown as error:
        return unknown(NAME, error)
