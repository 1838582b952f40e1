"""What people ask of nodes: `hold`, `quarantine` and `retest` in a NodeAdmission's spec, and the fleet's pause switch.

Each ask is one JSON Patch that names the version it was decided on, and the API user as `who`, which the API servers'
policy compares. An ask that stands already is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound, admissions_path
from gpu_burnin.admission.decide.words import active
from gpu_burnin.admission.view import Patch
from gpu_burnin.api.names import PAUSE, SYSTEM_NAMESPACE, Names
from gpu_burnin.api.record import Ask, NodeAdmission, State, parse
from gpu_burnin.api.remedies import ADMITTERS
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.cluster.admissions import LEASE_PATH, PAUSE_PATH, leader_of, standing_pause
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.codec import to_json

_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_CONFIG_MAPS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps"
# The admitter writes the same object: a write that comes second is decided again.
_MOST_TRIES = 10
# Events of what has no namespace are in this one; their message has 1,024 bytes at most.
_EVENTS = "/api/v1/namespaces/default/events"
_MOST_MESSAGE = 1000
# A node in one of these may have pods placed on it.
_WORKING = (State.READY, State.EXPIRING, State.TESTING)


class Verb(StrEnum):
    """What a person can ask of a node; release takes back a hold and a quarantine."""

    HOLD = "hold"
    QUARANTINE = "quarantine"
    RETEST = "retest"
    RELEASE = "release"


@dataclass(frozen=True)
class Asked:
    """What became of an ask. `told` is what was done, `follows` what will come of it; `failed` instead of both.

    `coming`: an admitter is at work, so that it is worth waiting. `followed` is what came of it then, and `done`
    whether all of it has.
    """

    node: str
    changed: bool = False
    told: str = ""
    follows: str = ""
    failed: str = ""
    coming: bool = False
    followed: str = ""
    done: bool = False


def change(record: NodeAdmission, verb: Verb, ask: Ask) -> tuple[Patch | None, str]:
    """The patch that makes a node's asks as they should be, None where they are so, and what that is. Pure."""
    now = parse_rfc3339(ask.since)
    if verb is Verb.RELEASE:
        written = {name: found for name in (Verb.HOLD, Verb.QUARANTINE) if (found := getattr(record.spec, name))}
        standing = {name: found for name, found in written.items() if active(found, now)}
        operations = [_version(record), *({"op": "remove", "path": f"/spec/{name}"} for name in written)]
        if not standing:
            ended = "".join(f"; the {name} of {found.who} ended at {found.until}" for name, found in written.items())
            return operations if written else None, f"nobody holds it: there is nothing to release{ended}"
        told = ", ".join(f"the {name} of {found.who} ({found.why})" for name, found in standing.items())
        return operations, f"released: {told}"
    before = active(getattr(record.spec, verb), now)
    done = verb is Verb.RETEST and before is not None and record.status.retested == before.since
    if before is not None and not done and replace(before, since=ask.since) == ask:
        return None, f"{verb} stands already, asked for by {before.who} at {before.since}"
    instead = f", in place of that of {before.who} ({before.why})" if before is not None and not done else ""
    return [
        _version(record),
        {"op": "add", "path": f"/spec/{verb}", "value": to_json(ask)},
    ], f"{verb} asked for{instead}"


def follows(record: NodeAdmission, verb: Verb, ask: Ask, hindrance: str) -> str:
    """What will come of an ask and when, as the admitter decides (admission/decide). Pure."""
    if hindrance:
        return hindrance
    state, working = record.status.state, record.status.state in _WORKING
    until = f", until {ask.until}" if ask.until else ""
    if verb is Verb.HOLD:
        if not working:
            return f"it is {state} and is not let in{until}"
        return f"within seconds no new pod is placed on it{until}; work that is on it goes on"
    if verb is Verb.QUARANTINE:
        return (
            f"within seconds no new pod is placed on it{until}, and work on it is asked to leave, pods with a hold at "
            "its end or the deadline"
        )
    other = active(record.spec.quarantine, parse_rfc3339(ask.since)) if verb is not Verb.RELEASE else None
    if other is not None:
        return f"it stays in the quarantine that {other.who} asked for until that is released"
    if verb is Verb.RETEST:
        return "it is tested when no pod with GPUs runs on it, and comes back with a PASS"
    return f"it comes back within seconds when its proof holds; else `muster why {record.name}` says what it waits for"


def hindrance(api: KubeApi, verb: Verb, now: datetime) -> str:
    """Why nothing follows for now, "" where an admitter is at work. Raises ApiError.

    A pause keeps no node at work that a person wants out.
    """
    if verb in (Verb.RETEST, Verb.RELEASE) and standing_pause(api, now) is not None:
        return "the fleet is paused: nothing follows until `muster resume`"
    try:
        lease = api.find(LEASE_PATH, "read the admitter's lease")
    except ApiError as error:
        if error.status == 403:
            return ""  # who may ask for tests alone, as the CronJob of tests at random, is told less
        raise
    if leader_of(lease, now).alive:
        return ""
    return f"no admitter leads: nothing follows until one does ({ADMITTERS})"


def _version(record: NodeAdmission) -> dict[str, Any]:
    return {"op": "test", "path": "/metadata/resourceVersion", "value": record.version}


def user(api: KubeApi) -> str:
    """The API user that the kubeconfig is of. Raises ApiError."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = api.create(_REVIEWS, review, "ask who this is (SelfSubjectReview)")
    name = ((answer.get("status") or {}).get("userInfo") or {}).get("username")
    if not name:
        raise ApiError(f"{api.server}: does not say whose kubeconfig this is (SelfSubjectReview); use another user's")
    return str(name)


def ask_all(api: KubeApi, names: Names, nodes: Iterable[str], verb: Verb, ask: Ask) -> Iterator[Asked]:
    """Ask it of each node; one that cannot be asked keeps no other from it. Raises ApiError without an API."""
    hindered = hindrance(api, verb, datetime.now(UTC))
    for node in dict.fromkeys(nodes):
        try:
            yield replace(_ask(api, names, node, verb, ask, hindered), coming=not hindered)
        except NotFound:
            yield Asked(
                node,
                failed="has no NodeAdmission; give the name in `muster status`, or add it: site.yml, or where attached "
                "`muster attach approve`",
            )
        except (GpuBurninError, Conflict) as error:
            yield Asked(node, failed=str(error))


def _ask(api: KubeApi, names: Names, node: str, verb: Verb, ask: Ask, hindered: str) -> Asked:
    path, tries = admissions_path(names, node), 0
    while True:
        record = parse(api.get(path, f"read the NodeAdmission of {node}"))
        patch, told = change(record, verb, ask)
        if patch is None:
            return Asked(node, False, told, _standing(record, verb, ask, hindered))
        tries += 1
        try:
            api.patch(path, patch, f"ask {verb} of {node}")
        except Conflict:
            if tries == _MOST_TRIES:
                raise
            continue
        if verb is Verb.RELEASE:
            told += _noted(api, record, ask, told)
        return Asked(node, True, told, follows(record, verb, ask, hindered))


def _noted(api: KubeApi, record: NodeAdmission, ask: Ask, told: str) -> str:
    """Keep who released a node, and why, as an event of it: the ask that would say so is gone. "" when that is done."""
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{record.name}.", "namespace": "default"},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": record.name},
        "type": "Normal",
        "reason": "Released",
        "message": f"{ask.who}: {ask.why}; {told}"[:_MOST_MESSAGE],
        "source": {"component": "muster"},
        "firstTimestamp": ask.since,
        "lastTimestamp": ask.since,
        "count": 1,
    }
    try:
        api.create(_EVENTS, event, f"note the release of {record.name} as an event")
    except (ApiError, Conflict) as error:
        return f" (the reason could not be kept as an event: {error})"
    return ""


def _standing(record: NodeAdmission, verb: Verb, ask: Ask, hindered: str) -> str:
    """What the admitter itself says of an ask that it has seen."""
    coming = record.status.next
    if coming is None or hindered:
        return follows(record, verb, ask, hindered)
    return f"next: {coming.what}: {coming.why}"


def pause(api: KubeApi, who: str, why: str, until: str = "") -> tuple[bool, str]:
    """Throw the pause switch; whether that changed anything, and what there is now. Raises ApiError and Conflict."""
    data = {"who": who, "why": why, "until": until}
    standing = api.find(PAUSE_PATH, "read the pause switch")
    document: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": PAUSE, "namespace": SYSTEM_NAMESPACE},
        "data": data,
    }
    if standing is None:
        api.create(_CONFIG_MAPS, document, "pause the fleet")
        return (
            True,
            "paused: the admitter lets no node in and tests none until `muster resume`; a faulty one still goes out",
        )
    before: Mapping[str, str] = standing.get("data") or {}
    said = f"{before.get('who') or 'somebody'} ({before.get('why') or 'no reason given'})"
    if before == data:
        return False, f"paused already by {said}"
    document["metadata"]["resourceVersion"] = standing["metadata"]["resourceVersion"]
    api.replace(PAUSE_PATH, document, "pause the fleet")
    return True, f"paused, in place of the pause of {said}"


def resume(api: KubeApi) -> tuple[bool, str]:
    """Take the pause away; whether there was one, and whose. Raises ApiError, and Conflict for another one since."""
    standing = api.find(PAUSE_PATH, "read the pause switch")
    if standing is None:
        return False, "the fleet is not paused"
    try:
        api.delete(PAUSE_PATH, "resume the fleet", version=str(standing["metadata"]["resourceVersion"]))
    except NotFound:
        return False, "the fleet is not paused"
    data = standing.get("data") or {}
    return (
        True,
        f"resumed: the pause of {data.get('who') or 'somebody'} ({data.get('why') or 'no reason given'}) is over",
    )
