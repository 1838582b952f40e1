"""What the admitter, and services like it, tell: lines of JSON on standard output, entries with fields of the journal
where that is its output, and Kubernetes events, in the background."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TextIO

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.view import Pod
from gpu_burnin.api.names import LEASE, SYSTEM_NAMESPACE
from gpu_burnin.api.record import State, Transition
from gpu_burnin.system import journald
from gpu_burnin.system.clock import rfc3339, rfc3339_s
from gpu_burnin.system.journald import Entry, Priority

COMPONENT = "muster-admitter"
# Events that wait to be written: five for each node of a large fleet. The journal has them all.
MOST_EVENTS = 50_000
# To the API server an event is as dear as a PATCH: at most 10 a second, so that both are idle for the most part after a
# whole fleet has changed. Its last event is written minutes later then, with the time at which it happened.
EVENT_EVERY_S = 0.1
# While many nodes wait to be looked at, each event lets them go first for so long.
GIVE_WAY_S = 1.0
_GOOD = (State.READY, State.TESTING)


def node_reference(name: str) -> dict[str, str]:
    """A Node as events name it: kubelet's own have the name in the place of the UID too."""
    return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}


def lease_reference(lease: str = LEASE) -> dict[str, str]:
    """The admitters' Lease, for events on the fleet as a whole."""
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": lease, "namespace": SYSTEM_NAMESPACE}


# What calls for somebody to look.
_ALARMING = (State.SUSPECT, State.QUARANTINED)


def _native(entry: Entry) -> bool:
    return journald.is_output() and journald.send(entry)


@dataclass
class Journal:
    """Lines of JSON with time and kind, whole lines at a time; in the journal each is an entry with fields.

    `native` gives an entry to the journal and says whether that took it; else it is a line of `out`.
    """

    out: TextIO = field(default_factory=lambda: sys.stdout)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    native: Callable[[Entry], bool] = _native
    component: str = COMPONENT
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def say(self, message: str, **more: object) -> None:
        """One sentence on the service itself."""
        text = self._text({"kind": "message", "message": message, **more})
        node, pod = (str(more.get(name, "")) for name in ("node", "pod"))
        self._write(Entry(text, self.component, kind="message", node=node, pod=pod))

    def transition(self, node: str, change: Transition) -> None:
        """One change of a node's state."""
        line = {"kind": "transition", "node": node, "from": change.before, "to": change.after, "code": change.code}
        text = self._text({**line, "message": change.message, "who": change.who})
        priority = Priority.WARNING if change.after in _ALARMING else Priority.INFO
        self._write(
            Entry(
                text, self.component, priority, "transition", node,
                code=change.code, before=change.before, after=change.after, who=change.who,
            )
        )  # fmt: skip

    def _text(self, line: Mapping[str, object]) -> str:
        text = json.dumps({"at": rfc3339(self.now()), **line}, ensure_ascii=False)
        # Half a character, as a node may write one, would be an error of whoever tells of it.
        return text.encode("utf-8", "replace").decode()

    def _write(self, entry: Entry) -> None:
        if self.native(entry):
            return
        with self._lock:
            self.out.write(f"{entry.message}\n")
            self.out.flush()


class _Event(NamedTuple):
    """An event that waits: small, since there may be many."""

    at: datetime
    namespace: str
    about: Mapping[str, str]
    reason: str
    message: str
    good: bool
    component: str

    def document(self) -> dict[str, Any]:
        """As the API has it."""
        time_text = rfc3339_s(self.at)
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self.about['name']}.", "namespace": self.namespace},
            "involvedObject": dict(self.about),
            "reason": self.reason,
            "message": self.message,
            "type": "Normal" if self.good else "Warning",
            "source": {"component": self.component},
            "reportingComponent": self.component,
            "firstTimestamp": time_text,
            "lastTimestamp": time_text,
            "count": 1,
        }


@dataclass
class EventRecorder:
    """Writes events, one after the other, on a thread of its own: nobody waits for them.

    What calls for people or for work to leave comes before the rest. One is written each EVENT_EVERY_S at most, and
    each GIVE_WAY_S while there is more urgent work (`busy`).
    """

    api: KubeApi
    metrics: Metrics
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    busy: Callable[[], bool] = lambda: False
    wait: Callable[[float], object] = time.sleep
    component: str = COMPONENT
    _urgent: deque[_Event] = field(default_factory=deque)
    _waiting: deque[_Event] = field(default_factory=deque)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _closed: bool = False

    def transition(self, node: str, change: Transition) -> None:
        """Tell of a change of a node's state on the Node."""
        good = change.after in _GOOD
        reason = f"Muster{State(change.after).value.capitalize()}"
        self._add("default", node_reference(node), reason, f"{change.code}: {change.message}", good)

    def leave(self, node: str, pod: Pod, why: str) -> None:
        """Tell a pod that it is asked to leave."""
        reference = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        self._add(pod.namespace, reference, "MusterAskedToLeave", f"node {node}: {why}", False)

    def alarm(self, namespace: str, reference: Mapping[str, str], reason: str, message: str) -> None:
        """Tell of something that a person should look at."""
        self._add(namespace, reference, reason, message, False)

    def notice(self, namespace: str, reference: Mapping[str, str], reason: str, message: str) -> None:
        """Tell of something that goes well."""
        self._add(namespace, reference, reason, message, True)

    def run(self) -> None:
        """Write until closed."""
        while True:
            with self._changed:
                while not len(self) and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                event = (self._urgent or self._waiting).popleft()
            if self.busy():
                self.wait(GIVE_WAY_S)
            try:
                self.api.create(f"/api/v1/namespaces/{event.namespace}/events", event.document(), "write an event")
                self.metrics.add("events", {"result": "written"})
            except (ApiError, Conflict, NotLeader):
                self.metrics.add("events", {"result": "refused"})
            self.wait(EVENT_EVERY_S)

    def __len__(self) -> int:
        """How many wait to be written."""
        return len(self._urgent) + len(self._waiting)

    def close(self) -> None:
        """Write no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _add(self, namespace: str, reference: Mapping[str, str], reason: str, message: str, good: bool) -> None:
        event = _Event(self.now(), namespace, reference, reason, message[:1024], good, self.component)
        with self._changed:
            if len(self) >= MOST_EVENTS:
                self.metrics.add("events", {"result": "dropped"})
                return
            (self._waiting if good else self._urgent).append(event)
            self._changed.notify()
