"""The probe of an attached cluster: whether the gate's objects are there as they were written, and whether they refuse.

A cluster admin can take any of them away, and nothing in the cluster can keep him from it: this says so.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, Object, node_path
from gpu_burnin.admission.objects import path_of, shown_name
from gpu_burnin.admission.webhook.certificate import AUTHORITY_RENEWED, Pair
from gpu_burnin.api.attached import (
    AUTHORITY_ENDS,
    GATE,
    GATE_CONFIG,
    GATE_EVENT_NAME,
    GATE_KEY,
    GATE_OPEN,
    WEBHOOK,
    WEBHOOK_AWAY,
    Mode,
)
from gpu_burnin.api.names import GATE_PROBE_NODE, READY_LABEL, SYSTEM_NAMESPACE
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.system.exposition import Family, page
from gpu_burnin.system.files import parse_json, read_text

_FORBIDDEN = 403
# Whoever attaches within the last AUTHORITY_RENEWED makes another authority. The alert has the same number.
WARNED_S = (AUTHORITY_RENEWED / 2).total_seconds()
# A look that is so many turns late, and no API server is that slow, hangs.
_MOST_SILENT, _SLOW_S = 3, 300.0
# Where an object of the gate says what it does.
SAYS = ("spec", "webhooks")
# What the API server adds to objects that do not say it, in Kubernetes 1.30 to 1.36.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "spec": {"failurePolicy": "Fail"},
    "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}},
    "webhooks": {"namespaceSelector": {}, "objectSelector": {}},
    "resourceRules": {"scope": "*"},
}


@dataclass(frozen=True)
class Gate:
    """What is wrong, a sentence each, and what could not be asked.

    `refused`: whether a Node that nobody admitted was refused; `changed`: of how many objects there is less or other
    than was written. None where that could not be asked. `authority_ends_s`: until when the API server believes the
    webhook, in seconds since 1970; None where none is. `tainted`: whether a GPU Node that brings no taint got it from
    the webhook; None where none is to add it, or that could not be asked, as `untold` says: it is not of the gate.
    """

    wrong: tuple[str, ...]
    unknown: tuple[str, ...]
    refused: bool | None = None
    changed: int | None = None
    authority_ends_s: float | None = None
    tainted: bool | None = None
    untold: str = ""

    @property
    def exit_code(self) -> int:
        """0 in force, 1 not, 3 not known."""
        return EXIT_FAIL if self.wrong else EXIT_INCONCLUSIVE if self.unknown else EXIT_PASS


def authority_ends_s(webhook: Object) -> float | None:
    """When the authority ends that the API server believes, of the first hook with one; None for none. Pure."""
    for hook in webhook.get("webhooks") or ():
        try:
            text = base64.b64decode(hook["clientConfig"]["caBundle"]).decode("ascii")
            return Pair(text, "").ends.timestamp()
        except (KeyError, TypeError, ValueError):
            continue
    return None


def ending(gate: Gate, now_s: float) -> str:
    """That the webhook's authority ends soon, or has; "" where it does not. Pure."""
    ends_s = gate.authority_ends_s
    if ends_s is None or ends_s - now_s >= WARNED_S:
        return ""
    day = datetime.fromtimestamp(ends_s, UTC).strftime("%Y-%m-%d")
    when = f"ends on {day}" if ends_s > now_s else f"has ended on {day}"
    return (
        f"the webhook's authority {when}, and after that no GPU Node joins that brings no taint itself: run `muster "
        "attach` again, or `helm upgrade` of its chart, which makes another one"
    )


def away(gate: Gate) -> str:
    """That the webhook adds no taint and the gate is not known to be open, so that nobody joins; "" where it is not so.
    Pure."""
    if gate.tainted is not False or gate.refused is False:
        return ""
    return (
        f"the webhook {WEBHOOK} adds no taint, so no GPU Node joins that brings none itself, and no kubelet of before "
        "1.32 starts again: see that its pods run, and that the API servers reach them"
    )


def differs(found: Any, wanted: Any, key: str = "") -> str:
    """Where an object says something else than was written, "" where nowhere; what it says beyond that counts. Pure."""
    if isinstance(wanted, Mapping):
        if not isinstance(found, Mapping):
            return key or "it"
        defaults = _DEFAULTS.get(key.rpartition(".")[2].partition("[")[0], {})
        for name in sorted({*found, *wanted}):
            if name not in wanted and found[name] == defaults.get(name, found):
                continue
            if name not in found and wanted[name] in ({}, [], "", None):
                continue
            place = f"{key}.{name}" if key else name
            if name not in wanted or name not in found:
                return place
            if inner := differs(found[name], wanted[name], place):
                return inner
        return ""
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != len(wanted):
            return key
        pairs = enumerate(zip(found, wanted, strict=True))
        return next((inner for n, (a, b) in pairs if (inner := differs(a, b, f"{key}[{n}]"))), "")
    return "" if found == wanted else key


def changed_at(found: Object, wanted: Object) -> str:
    """Where an object of the gate is not as it was written, "" where nowhere. Pure.

    Metadata is everybody's to add to; an object that is being deleted is still in force.
    """
    says, said = ({key: it[key] for key in SAYS if key in it} for it in (found, wanted))
    return differs(says, said)


@dataclass(frozen=True)
class Wanted:
    """What `muster attach` has written. `enforcing`: an untainted GPU Node is refused too. `labels` are those of a GPU
    Node that a webhook is to taint; none where nothing can tell whether it does."""

    objects: Sequence[Object]
    enforcing: bool
    labels: Mapping[str, str] = field(default_factory=dict)


def look(api: KubeApi, wanted: Wanted) -> Gate:
    """Compare each object, and ask by a dry run for what the gate must refuse."""
    wrong: list[str] = []
    unknown: list[str] = []
    ends_s: float | None = None
    for one in wanted.objects:
        name = shown_name(one)
        try:
            found = api.find(path_of(one), f"read {name}")
        except (ApiError, Conflict) as error:
            unknown.append(str(error))
            continue
        if found is None:
            wrong.append(f"{name} is gone: the gate is open")
            continue
        ends_s = authority_ends_s(found) if ends_s is None else ends_s
        if place := changed_at(found, one):
            wrong.append(f"{name} was changed at {place}: the gate may be open")
    # One that cannot be read hides nothing that was found of the others.
    changed = len(wrong) if wrong or not unknown else None
    refused = None
    try:
        refused = refuses(api, enforcing=wanted.enforcing)
    except (ApiError, Conflict) as error:
        unknown.append(str(error))
    tainted, untold = None, ""
    if wanted.labels:
        # Whatever comes of this question, it hides no answer to the one before.
        try:
            made = _dry_run(api, wanted.labels)
            tainted = made is not None and _has_taint(made)
            refused = False if made is not None and not tainted else refused
        except (ApiError, Conflict) as error:
            untold = f"whether the webhook {WEBHOOK} adds the taint is not known: {error}"
    if refused is False:
        wrong.append("a Node that nobody admitted is not refused: the gate is open")
    return Gate(tuple(wrong), tuple(unknown), refused, changed, ends_s, tainted, untold)


def read_wanted(folder: Path) -> Wanted:
    """What `muster attach` has written, from the ConfigMap's volume. Raises ApiError."""
    try:
        document = parse_json(read_text(folder / GATE_KEY))
        objects: list[Object] = [one for one in document["objects"] if one["kind"] and one["metadata"]["name"]]
        labels = {str(key): str(value) for key, value in (document.get("labels") or {}).items()}
        return Wanted(objects, document["mode"] == Mode.ENFORCING, labels)
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError(f"{folder}: cannot be read ({error}); mount the ConfigMap {GATE_CONFIG}") from error


def once(api: KubeApi, folder: Path, say: Callable[[str], None], clock: Callable[[], float] = time.time) -> Gate:
    """One look. What is wrong, or will be, is said, and written as an event of the namespace."""
    gate = look(api, read_wanted(folder))
    blocked, soon = away(gate), ending(gate, clock())
    for sentence in filter(None, (*gate.wrong, *gate.unknown, gate.untold, blocked, soon)):
        say(sentence)
    # One event, so of more than one the worst.
    told = [(GATE_OPEN, "; ".join(gate.wrong)[:1000]), (WEBHOOK_AWAY, blocked), (AUTHORITY_ENDS, soon)]
    if worst := next((one for one in told if one[1]), None):
        try:
            _tell(api, *worst)
        except (ApiError, Conflict) as error:
            say(str(error))
    return gate


class Watch:
    """Looks again and again, and keeps what the last look found. `clock` is seconds since 1970."""

    def __init__(self, api: KubeApi, folder: Path, every_s: float, clock: Callable[[], float] = time.time) -> None:
        self._api, self._folder, self._every_s, self._clock = api, folder, every_s, clock
        self._looked_s = clock()
        self._gate: Gate | None = None
        self._checked_s = 0.0

    def look(self, say: Callable[[str], None]) -> Gate:
        """Once; a gate that is in force is said after a look that did not find it so."""
        before, gate = self._gate, once(self._api, self._folder, say, self._clock)
        if gate.exit_code == EXIT_PASS and (before is None or before.exit_code != EXIT_PASS):
            say("the gate is in force")
        self._gate, self._looked_s = gate, self._clock()
        if gate.refused is not None and not gate.unknown:
            self._checked_s = self._looked_s
        return gate

    def run(self, say: Callable[[str], None]) -> None:
        """For good."""
        while True:
            self.look(say)
            time.sleep(self._every_s)

    def numbers(self) -> bytes:
        """For Prometheus. What could not be asked has no number, only the time of the last whole look."""
        gate = self._gate or Gate((), ())
        ends_s = None if gate.authority_ends_s is None else round(gate.authority_ends_s)
        # Where nothing is asked there is no answer to miss.
        answered = None if gate.tainted is None and not gate.untold else not gate.untold
        found = (
            ("gate_refused", "1 when a node without the taint was refused by the gate.", gate.refused),
            ("gate_objects_changed", "Objects of the gate that are gone or not as they were written.", gate.changed),
            ("gate_checked_timestamp_seconds", "When the whole gate was last looked at.", round(self._checked_s)),
            ("gate_webhook_taints", "1 when a GPU Node got the taint of the webhook, where one is.", gate.tainted),
            ("gate_webhook_answered", "1 when it is known whether the webhook taints, where it is asked.", answered),
            ("gate_authority_ends_timestamp_seconds", "When the webhook's authority ends, where one is.", ends_s),
        )
        return page("muster_", (Family(name, "gauge", text, (({}, value),)) for name, text, value in found)).encode()

    def unhealthy(self) -> str:
        """Why this process should be started again, "" for healthy."""
        silent_s = self._clock() - self._looked_s
        return f"no look has ended for {silent_s:.0f} s" if silent_s > _MOST_SILENT * self._every_s + _SLOW_S else ""


def refuses(api: KubeApi, *, enforcing: bool) -> bool:
    """Whether the gate refuses a Node without the taint, or, while it observes, one that calls itself ready."""
    return _dry_run(api, {} if enforcing else {READY_LABEL: "true"}) is None


def taints(api: KubeApi, labels: Mapping[str, str]) -> bool:
    """Whether a GPU Node with these labels and no taint gets it on its way in; the gate refuses it without."""
    made = _dry_run(api, labels)
    return made is not None and _has_taint(made)


def _has_taint(node: Object) -> bool:
    return any(str(one.get("key")).endswith("/preflight") for one in (node.get("spec") or {}).get("taints") or ())


def _dry_run(api: KubeApi, labels: Mapping[str, str]) -> Object | None:
    """The Node as it would be made, None where the gate refuses it. Raises ApiError and Conflict."""
    metadata = {"name": GATE_PROBE_NODE, **({"labels": dict(labels)} if labels else {})}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    path = f"{node_path(GATE_PROBE_NODE)}?fieldManager={GATE_PROBE_NODE}&dryRun=All"
    try:
        return api.apply(path, node, "ask for a Node that nobody admitted (dry run)") or {}
    except ApiError as error:
        if error.status == _FORBIDDEN and GATE in str(error):
            return None
        raise


def _tell(api: KubeApi, reason: str, message: str) -> None:
    """One event, whose time moves: it is there as long as its reason, and an hour after."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name, path = GATE_EVENT_NAME, f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/events"
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "involvedObject": {
            "kind": "ConfigMap",
            "name": GATE_CONFIG,
            "namespace": SYSTEM_NAMESPACE,
            "apiVersion": "v1",
        },
        "reason": reason,
        "message": message,
        "type": "Warning",
        "source": {"component": "muster-gate-probe"},
        "lastTimestamp": now,
    }
    api.apply(f"{path}/{name}?fieldManager=muster-gate-probe&force=true", event, "tell how the gate stands")
