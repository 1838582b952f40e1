"""Google Compute Engine: upcoming-maintenance and maintenance-event (docs.cloud.google.com, "Query metadata server for
maintenance event notices"). Standard library only.

The first announces a window hours or days ahead, the second changes 60 seconds before it begins. A machine that never
had a notice answers the first with an error in words, mostly with status 503, which says that there is none (so reads
it SAP's agent for Google Cloud, github.com/GoogleCloudPlatform/sapagent, internal/system). Any other answer without
status 200 means nothing: machine types without such notices answer 404 or 503 too, which is not "none".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import NONE, SCHEDULED, STARTED
from gpu_burnin.node.maintenance.service import NotKnown, Service, sentence, time_of, unknown, word
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.files import parse_json

NAME = "gcp"
BASE = "http://metadata.google.internal"
UPCOMING = "/computeMetadata/v1/instance/upcoming-maintenance?alt=json"
EVENT = "/computeMetadata/v1/instance/maintenance-event"
HEADERS = {"Metadata-Flavor": "Google"}
_STATES = {"PENDING": SCHEDULED, "ONGOING": STARTED, "COMPLETE": NONE, "COMPLETED": NONE}
_NEAR = ("MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE")
_NO_WINDOW = "NONE"
_NO_NOTICE = "no notifications have been received"
_WRAPPER = "upcomingmaintenance"


def read(service: Service, now: datetime) -> Sequence[Maintenance]:
    """What both keys tell, each for itself."""
    found = []
    for key in (_upcoming, _event):
        try:
            found.append(key(service, now))
        except NotKnown as error:
            found.append(unknown(NAME, error))
    return found


def _upcoming(service: Service, now: datetime) -> Maintenance:
    answer = service.answer(UPCOMING, HEADERS)
    if _NO_NOTICE in answer.text.lower():
        return Maintenance(NAME, NONE)
    text = answer.good(UPCOMING)
    if text.strip('"') == _NO_WINDOW:
        return Maintenance(NAME, NONE)
    try:
        document = _named(parse_json(text))
    except ValueError:
        raise NotKnown(f"its metadata service answers {word(text)!r}, which is no JSON, to {UPCOMING}") from None
    document = _named(document.get(_WRAPPER, document))
    if not document:
        return Maintenance(NAME, NONE)
    start, end = time_of(document.get("windowstarttime")), time_of(document.get("windowendtime"))
    status = document.get("maintenancestatus", "PENDING" if start else None)
    state = _STATES.get(str(status))
    if state is None:
        raise NotKnown(f"its metadata service tells of maintenance in the state {word(status)!r}")
    if end and parse_rfc3339(end) <= now:
        # It is late, and Google still tells of it: its end is not known.
        end = ""
    reasons = document.get("maintenancereasons")
    return Maintenance(
        provider=NAME,
        state=state,
        not_before=start,
        not_after=end,
        kind=word(document.get("type")),
        message=sentence(", ".join(map(str, reasons)) if isinstance(reasons, list) else reasons),
    )


def _named(document: Any) -> Mapping[str, Any]:
    """The document with names as in windowstarttime, however they were written."""
    if not isinstance(document, Mapping):
        raise NotKnown(f"its metadata service answers {word(document)!r} to {UPCOMING}")
    return {re.sub(r"[^a-z]", "", str(key).lower()): value for key, value in document.items()}


def _event(service: Service, now: datetime) -> Maintenance:
    text = service.text(EVENT, HEADERS).strip('"')
    if text == _NO_WINDOW:
        return Maintenance(NAME, NONE)
    if text in _NEAR:
        return Maintenance(NAME, STARTED, kind=text, message="the host's maintenance begins within a minute")
    raise NotKnown(f"its metadata service answers {word(text)!r} to {EVENT}")
