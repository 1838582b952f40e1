"""The probe of an attached cluster: whether the gate's objects are there as they were written, and whether they refuse.

A cluster admin can take any of them away, and nothing in the cluster can keep him from it: this says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, Object, node_path
from gpu_burnin.admission.objects import path_of, shown_name
from gpu_burnin.api.attached import GATE, GATE_CONFIG, GATE_EVENT_NAME, GATE_KEY, Mode
from gpu_burnin.api.names import GATE_PROBE_NODE, READY_LABEL, SYSTEM_NAMESPACE
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.system.files import parse_json, read_text

_FORBIDDEN = 403
EVENT = "MusterGateOpen"
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
    """What is wrong, a sentence each, and what could not be asked."""

    wrong: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 in force, 1 not, 3 not known."""
        return EXIT_FAIL if self.wrong else EXIT_INCONCLUSIVE if self.unknown else EXIT_PASS


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
    """As differs, of whole objects: metadata is everybody's to add to, also of one that is being deleted."""
    says, said = ({key: it[key] for key in SAYS if key in it} for it in (found, wanted))
    return differs(says, said)


@dataclass(frozen=True)
class Wanted:
    """What `muster attach` has written. `enforcing`: an untainted GPU Node is refused too."""

    objects: Sequence[Object]
    enforcing: bool


def look(api: KubeApi, wanted: Wanted) -> Gate:
    """Compare each object, and ask by a dry run for what the gate must refuse."""
    wrong, unknown = [], []
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
        if place := changed_at(found, one):
            wrong.append(f"{name} was changed at {place}: the gate may be open")
    try:
        if not refuses(api, enforcing=wanted.enforcing):
            wrong.append("a Node that nobody admitted is not refused: the gate is open")
    except (ApiError, Conflict) as error:
        unknown.append(str(error))
    return Gate(tuple(wrong), tuple(unknown))


def read_wanted(folder: Path) -> Wanted:
    """What `muster attach` has written, from the ConfigMap's volume. Raises ApiError."""
    try:
        document = parse_json(read_text(folder / GATE_KEY))
        objects: list[Object] = [one for one in document["objects"] if one["kind"] and one["metadata"]["name"]]
        return Wanted(objects, document["mode"] == Mode.ENFORCING)
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise ApiError(f"{folder}: cannot be read ({error}); mount the ConfigMap {GATE_CONFIG}") from error


def once(api: KubeApi, folder: Path, say: Callable[[str], None]) -> int:
    """One look; the exit code. What is wrong is said, and told as an event on the namespace."""
    gate = look(api, read_wanted(folder))
    for sentence in (*gate.wrong, *gate.unknown):
        say(sentence)
    if gate.wrong:
        try:
            _tell(api, "; ".join(gate.wrong)[:1000])
        except (ApiError, Conflict) as error:
            say(str(error))
    return gate.exit_code


def forever(api: KubeApi, folder: Path, say: Callable[[str], None], every_s: float) -> None:
    """Look again and again. Each look that finds the gate in force says so once after one that did not."""
    before = -1
    while True:
        code = once(api, folder, say)
        if code == EXIT_PASS != before:
            say("the gate is in force")
        before = code
        time.sleep(every_s)


def refuses(api: KubeApi, *, enforcing: bool) -> bool:
    """Whether the gate refuses a Node without the taint, or, while it observes, one that calls itself ready."""
    metadata = {"name": GATE_PROBE_NODE, **({} if enforcing else {"labels": {READY_LABEL: "true"}})}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
    path = f"{node_path(GATE_PROBE_NODE)}?fieldManager={GATE_PROBE_NODE}&dryRun=All"
    try:
        api.apply(path, node, "ask for a Node that nobody admitted (dry run)")
    except ApiError as error:
        if error.status == _FORBIDDEN and GATE in str(error):
            return True
        raise
    return False


def _tell(api: KubeApi, message: str) -> None:
    """One event, whose count and time move: it is there as long as the gate is open, and an hour after."""
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
        "reason": EVENT,
        "message": message,
        "type": "Warning",
        "source": {"component": "muster-gate-probe"},
        "lastTimestamp": now,
    }
    api.apply(f"{path}/{name}?fieldManager=muster-gate-probe&force=true", event, "tell that the gate is open")
