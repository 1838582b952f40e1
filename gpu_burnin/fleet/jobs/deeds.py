"""Who did what in a namespace, from the lines of API servers' audit logs: what matters, folded, in bounded memory."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpu_burnin.api.names import ADMITTER_USER, JOBSET_USER, KUEUE_USER
from gpu_burnin.system.clock import time_of
from gpu_burnin.system.prose import printable

# So many different deeds are kept while logs are read; the oldest go first.
MOST_KEPT = 10_000
_ENTERS = {"exec": "exec in", "attach": "attached to", "portforward": "port-forward to"}
_ADDS = {"ephemeralcontainers": "added a container to"}
_CHANGES = {"create": "created", "delete": "deleted", "deletecollection": "deleted all"}
_RIGHTS = frozenset({"roles", "rolebindings", "namespaces", "networkpolicies", "serviceaccounts"})
_PARTS = frozenset({ADMITTER_USER, KUEUE_USER, JOBSET_USER})
# Kubernetes' own; other service accounts are somebody's.
_OF_KUBERNETES = (
    "system:apiserver",
    "system:kube-",
    "system:node:",
    "system:serviceaccount:kube-system:",
    "system:serviceaccount:muster-system:",
)
_REFUSED = frozenset({401, 403})
_BY_POLICY = "validation.policy.admission.k8s.io/validation_failure"
_LONGEST_CHARS = 300
# "denied request: no own words" by Kubernetes, before those of the policy.
_DENIED = re.compile(r"^.*?denied request: ", re.DOTALL)


@dataclass(frozen=True)
class Deed:
    """What somebody did, or was refused (`refused` says why), `count` times; `at` is the last time."""

    at: datetime
    first: datetime
    count: int
    who: str
    did: str
    source: str = ""
    acted_as: str = ""
    refused: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What is the same in all that are folded into it."""
        return (self.who, self.acted_as, self.did, self.refused)


class Deeds:
    """The deeds of a namespace since a time, from lines in any order."""

    def __init__(self, namespace: str, since: datetime, most: int = MOST_KEPT) -> None:
        self.left_out = 0
        self.unread = 0
        self._namespace = namespace
        self._since = since
        self._most = most
        self._kept: dict[tuple[str, ...], Deed] = {}

    def take(self, line: bytes) -> None:
        """A line of an audit log; what is none is counted."""
        try:
            event = json.loads(line)
            deed = deed_of(event, self._namespace)
        except (ValueError, RecursionError, AttributeError, TypeError):
            self.unread += 1
            return
        if deed is None or deed.at < self._since:
            return
        before = self._kept.get(deed.key)
        self._kept[deed.key] = _folded(before, deed) if before else deed
        if len(self._kept) > 2 * self._most:
            self._forget()

    def newest_first(self) -> list[Deed]:
        """What was kept."""
        self._forget()
        return sorted(self._kept.values(), key=lambda deed: deed.at, reverse=True)

    def _forget(self) -> None:
        if len(self._kept) > self._most:
            newest = sorted(self._kept.values(), key=lambda deed: deed.at)[-self._most :]
            self.left_out += len(self._kept) - len(newest)
            self._kept = {deed.key: deed for deed in newest}


def deed_of(event: Mapping[str, Any], namespace: str) -> Deed | None:
    """An audit event that matters in this namespace, or None."""
    about = event.get("objectRef") or {}
    code = int((event.get("responseStatus") or {}).get("code") or 0)
    # A session is told when it begins and when it ends: it counts when it begins, everything else when it is done.
    entered = about.get("subresource") in _ENTERS and code not in _REFUSED
    if about.get("namespace") != namespace or event.get("stage") != (
        "ResponseStarted" if entered else "ResponseComplete"
    ):
        return None
    who = str((event.get("user") or {}).get("username") or "nobody")
    refused = _why_not(event) if code in _REFUSED else ""
    did = _did(event, about, who, refused=bool(refused))
    at = time_of(event.get("requestReceivedTimestamp"))
    if did is None or at is None or (code >= 400 and not refused):
        return None
    sources = event.get("sourceIPs") or [""]
    acted_as = str((event.get("impersonatedUser") or {}).get("username") or "")
    # A member chooses much of what stands here.
    return Deed(at, at, 1, *map(printable, (who, did, str(sources[0]), acted_as, refused)))


def _did(event: Mapping[str, Any], about: Mapping[str, Any], who: str, *, refused: bool) -> str | None:
    """What was asked for, in words; None for what is everyday."""
    verb, resource, part = (
        str(value or "") for value in (event.get("verb"), about.get("resource"), about.get("subresource"))
    )
    name = str(about.get("name") or "")
    shown = f"{resource}/{name}" if name else resource
    if part in _ENTERS:
        command = " ".join(parse_qs(urlsplit(str(event.get("requestURI") or "")).query).get("command", []))
        return f"{_ENTERS[part]} {shown}{f': {command}' if command else ''}"[:_LONGEST_CHARS]
    if part in _ADDS:
        return f"{_ADDS[part]} {shown}"
    shown = f"{shown}/{part}" if part else shown
    if refused:
        return f"{verb} {shown}"
    if who.startswith(_OF_KUBERNETES) or who in _PARTS:
        return None
    if resource == "secrets":
        return f"{_CHANGES.get(verb, verb)} {shown}"
    if verb in _CHANGES and (not part or part in ("eviction", "token")):
        return f"evicted {resource}/{name}" if part == "eviction" else f"{_CHANGES[verb]} {shown}"
    return f"changed {shown}" if verb in ("update", "patch") and resource in _RIGHTS else None


def _why_not(event: Mapping[str, Any]) -> str:
    """The policy that refused it and its words; else what RBAC, Pod Security or the API server said."""
    notes = event.get("annotations") or {}
    if text := notes.get(_BY_POLICY):
        failures = json.loads(text)
        return "; ".join(f"{one.get('policy')}: {one.get('message')}" for one in failures)[:_LONGEST_CHARS]
    said = str((event.get("responseStatus") or {}).get("message") or "refused")
    return _DENIED.sub("", said)[:_LONGEST_CHARS]


def _folded(before: Deed, deed: Deed) -> Deed:
    later = max(before, deed, key=lambda one: one.at)
    return replace(later, first=min(before.first, deed.first), count=before.count + deed.count)
