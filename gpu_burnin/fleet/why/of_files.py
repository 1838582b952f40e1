"""What files of the controller say, as entries: reports, the history of plays, the API servers' audit log."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.api.names import ADMITTER_USER, PLURAL
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet import history
from gpu_burnin.fleet.why.entry import Entry, Source, What, kind_of_finding
from gpu_burnin.node import reports
from gpu_burnin.node.report_head import read_parts
from gpu_burnin.system.clock import time_of
from gpu_burnin.types import Verdict

# Longer lines of an audit log are passed over: no request on a node or pod is as long.
_MOST_LINE = 4 << 20
_CHANGES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
# What of it takes a node or a pod its work; the rest is told and explains nothing.
_TAKES_WORK = re.compile(r"^(evicted|cordoned|deleted)|/spec/(hold|quarantine|repair)")
_RESOURCES = frozenset({"nodes", "pods", PLURAL, "jobs"})


class NotLookedAt(GpuBurninError):
    """A source that cannot be read: said beside the time line, which has all the others."""


def of_report(folder: Path, node: str) -> Iterator[Entry]:
    """The newest report of a host, and each reason in it. Raises NotLookedAt."""
    try:
        path = reports.newest_of_host(folder / node)
        if path is None:
            raise NotLookedAt(f"{folder / node}: there is no report")
        found = read_parts(path, ("started_at", "reasons", "warnings"))
    except OSError as error:
        raise NotLookedAt(f"{folder / node}: no report can be read ({error.strerror})") from error
    except NotLookedAt:
        raise
    except GpuBurninError as error:
        raise NotLookedAt(str(error)) from error
    at, verdict, level = time_of(found.finished_at), found.verdict, found.level
    if at is None:
        raise NotLookedAt(f"{path}: finished_at is no time")
    if started := time_of(found.started_at):
        yield Entry(started, Source.REPORT, What.TOLD, f"{level} burn-in began", node=node)
    for reason in found.reasons:
        kind = kind_of_finding(reason.code, reason.message) if verdict is Verdict.FAIL else What.TOLD
        yield Entry(at, Source.REPORT, kind, reason.message, reason.code, "", node)
    for warning in found.warnings:
        yield Entry(at, Source.REPORT, What.TOLD, f"warning: {warning.message}", warning.code, "", node, quiet=True)
    words = [level, "burn-in:", verdict, *(["on simulated hardware"] if found.simulated else [])]
    yield Entry(at, Source.REPORT, What.TOLD, " ".join(words), "", "", node)


def of_history(path: Path, node: str, since: datetime, until: datetime) -> Iterator[Entry]:
    """What plays did to a host. Raises NotLookedAt."""
    try:
        found = history.of_host(path, node, _text(since), _text(until))
    except GpuBurninError as error:
        raise NotLookedAt(str(error)) from error
    for play, result in found:
        at = time_of(play.ended_at)
        if at is None:
            continue
        parts = [f"{count} {word}" for word in ("changed", "failed", "unreachable") if (count := getattr(result, word))]
        did = bool(parts) and not play.check_mode
        failure = f'; first "{result.task}": {result.message}' if result.task else ""
        mode = " in check mode" if play.check_mode else ""
        message = f"{play.playbook}{mode}, play {play.name!r}: {', '.join(parts) or 'nothing changed'}{failure}"
        kind = What.PLAY if did and (result.changed or result.failed) else What.TOLD
        yield Entry(at, Source.PLAY, kind, message, "", play.who, node, quiet=not parts)
        if boots := time_of(result.rebooted_at):
            message = f'{play.playbook}, play {play.name!r}, task "{result.rebooted}" had {node} boot'
            yield Entry(boots, Source.PLAY, What.REBOOT, message, "", play.who, node)


def of_audit(path: Path, node: str, pods: frozenset[str], since: datetime) -> tuple[list[Entry], str]:
    """What people, and the admitter, changed on a node and these pods, and what of the file could not be read ("").

    The file is read as a stream, line by line; a line that is none is counted and passed over. Raises NotLookedAt.
    """
    needles = [name.encode() for name in {node, *(pod.partition("/")[2] for pod in pods)} if name]
    entries, garbage = [], 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while line := file.readline(_MOST_LINE):
                if not any(needle in line for needle in needles):
                    continue
                try:
                    entry = _audited(json.loads(line), node, pods)
                except (ValueError, RecursionError, AttributeError, TypeError):
                    garbage += 1
                    continue
                if entry is not None and entry.at >= since:
                    entries.append(entry)
    except (OSError, EOFError) as error:
        raise NotLookedAt(f"{path}: the audit log cannot be read ({error})") from error
    return entries, f"{path}: {garbage:,} lines are no audit events and were passed over" if garbage else ""


def _audited(event: Mapping[str, Any], node: str, pods: frozenset[str]) -> Entry | None:
    """One audit event as an entry; None for what is of somebody else, was refused, or changed nothing."""
    about, verb = event.get("objectRef") or {}, event.get("verb")
    if event.get("stage") not in (None, "ResponseComplete") or verb not in _CHANGES:
        return None
    resource, name, part = about.get("resource"), str(about.get("name") or ""), str(about.get("subresource") or "")
    key = f"{about.get('namespace')}/{name}" if resource == "pods" else ""
    if resource not in _RESOURCES or not (key in pods if key else name == node):
        return None
    user = str((event.get("user") or {}).get("username") or "")
    own = user == ADMITTER_USER
    if (user.startswith("system:") or own) and not (own and part == "eviction"):
        return None
    if int((event.get("responseStatus") or {}).get("code") or 200) >= 400:
        return None
    at = time_of(event.get("requestReceivedTimestamp")) or time_of(event.get("stageTimestamp"))
    if at is None:
        return None
    as_user = str((event.get("impersonatedUser") or {}).get("username") or "")
    done = _done(str(verb), str(resource), part, event.get("requestObject"))
    message = f"{done} {key or f'{resource}/{name}'}{f' as {as_user}' if as_user else ''}"
    kind = What.DRAINED if own else What.PERSON if _TAKES_WORK.search(done) else What.TOLD
    return Entry(at, Source.AUDIT, kind, message, "", user, "" if key else node, key)


def _done(verb: str, resource: str, part: str, sent: object) -> str:
    """What a request did, in words."""
    if part == "eviction":
        return "evicted"
    if resource == "nodes" and isinstance(sent, Mapping) and "unschedulable" in (sent.get("spec") or {}):
        return "cordoned" if sent["spec"]["unschedulable"] else "uncordoned"
    paths = ""
    if isinstance(sent, list):  # a JSON Patch
        changed = [str(step.get("path")) for step in sent if step.get("op") != "test"]
        paths = f" ({', '.join(changed)})" if changed else ""
    done = {"create": "created", "update": "updated", "patch": "patched", "delete": "deleted"}.get(
        verb, "deleted all of"
    )
    return f"{done}{f' the {part} of' if part else ''}{paths}"


def _text(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
