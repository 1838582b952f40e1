"""Reconciles one node: what is known of it, what decide() makes of that, and the writes, the ledger first."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from gpu_burnin.admission.calendar import Window, windows
from gpu_burnin.admission.calendar import changes_at as calendar_changes_at
from gpu_burnin.admission.client import JSON_TYPE, METADATA_ONLY, Conflict, KubeApi, Object, admissions_path, node_path
from gpu_burnin.admission.decide import Decision, decide, gated, withheld
from gpu_burnin.admission.decide.desired import map_patch, version_test
from gpu_burnin.admission.decide.finding import AGENT_SILENT
from gpu_burnin.admission.decide.times import earliest
from gpu_burnin.admission.schedule.pick import Choice
from gpu_burnin.admission.service.budgets import GRANTED, Budgets
from gpu_burnin.admission.service.cache import Nodes, Pods, Records
from gpu_burnin.admission.service.evict import Evictor
from gpu_burnin.admission.service.heartbeats import Heartbeats
from gpu_burnin.admission.service.journal import EventRecorder, Journal, lease_reference, node_reference
from gpu_burnin.admission.service.marks import Marks
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.pod_notes import PodNotes
from gpu_burnin.admission.service.verify import Verifier
from gpu_burnin.admission.view import Budget, Evidence, HeartbeatState, Patch, Rules, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.names import KIND, SYSTEM_NAMESPACE
from gpu_burnin.api.record import NodeAdmission, State, Status, new_steps, parse, status_document
from gpu_burnin.api.remedies import DEFINITIONS, admit
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.canonical import canonical_json

# A wait that is shorter is not worth a line in the record.
SHORT_WAIT_S = 5.0
# A budget that denies is told at most once in this time; the metric counts each.
ALARM_EVERY_S = 60.0
_FENCED = "fenced"


class Forgotten(GpuBurninError):
    """The API server has not kept what was written to a record."""


class Stale(Exception):
    """What the cache has is older than the cluster: look again."""


@dataclass
class Reconciler:
    """Reconciles nodes. Raises what the API client raises: after a Conflict it is done again."""

    api: KubeApi
    rules: Rules
    nodes: Nodes
    records: Records
    pods: Pods
    heartbeats: Heartbeats
    verifier: Verifier
    budgets: Budgets
    evictor: Evictor
    pod_notes: PodNotes
    journal: Journal
    recorder: EventRecorder
    metrics: Metrics
    calendar: Sequence[Window] = ()
    paused: Callable[[], str] = lambda: ""
    choices: dict[str, Choice] = field(default_factory=dict)
    team_moves: dict[str, str] = field(default_factory=dict)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    _alarmed: dict[Budget, float] = field(default_factory=dict)
    _marks: Marks = field(init=False)

    def __post_init__(self) -> None:
        self._marks = Marks(self.rules.names)

    def reconcile(self, name: str) -> datetime | None:
        """Decide on one node and carry it out; when to look again though nothing changes."""
        record, node, now = self.records.get(name), self.nodes.get(name), self.now()
        if record is None and node is None:
            self.verifier.forget(name)
            self.budgets.settled(name)
            self._marks.forget(name)
            self.heartbeats.forget(name)
            return None
        if node is not None:
            self._notice(name, node)
        view = self.view(name, record, node, now)
        decision = decide(view, self.rules, now)
        self.metrics.add("decisions")
        budget, wait_s = decision.needs, 0.0
        if budget is not None:
            grant = self.budgets.ask(budget, name)
            if grant is not GRANTED:
                self.metrics.add("brake_denials", {"brake": str(budget)})
                wait_s = grant.after_s
                until = now + timedelta(seconds=wait_s)
                if wait_s < SHORT_WAIT_S:
                    return until
                decision = withheld(decision, grant.why, until)
                self._denied(budget, view, grant.why, decision)
        self._served(view, decision)
        try:
            changed_meanwhile = self._carry_out(view, decision)
        except BaseException:
            self.budgets.broke_off(name)
            raise
        if not wait_s:
            self.budgets.settled(name)
            if budget is Budget.JOIN:
                self.metrics.add("joins")
        wake_at = earliest(decision.wake_at, self._evict(view, decision), calendar_changes_at(self.calendar, name, now))
        return now if changed_meanwhile else wake_at

    def view(self, name: str, record: NodeAdmission | None, node: Mapping[str, Any] | None, now: datetime) -> View:
        """All that is known of one node."""
        choice = self.choices.get(name)
        known = record is not None and node is not None
        agent = self.verifier.agent(node) if node is not None else None
        return View(
            name=name,
            record=record,
            node=node,
            evidence=self.verifier.evidence(record, node) if record is not None and node is not None else Evidence(),
            agent=agent,
            heartbeat=self._heartbeat(record, node, agent) if record is not None and node is not None else None,
            pods=self.pods.on(name) if known else (),
            calendar=windows(self.calendar, name, now),
            test=choice.level if choice else "",
            test_why=choice.why if choice else "",
            paused=self.paused(),
            team=self.team_moves.get(name),
        )

    def _heartbeat(
        self, record: NodeAdmission, node: Mapping[str, Any], agent: AgentNote | None
    ) -> HeartbeatState | None:
        if agent is not None and not agent.heartbeat:
            self.heartbeats.sends_none(record.name)
            return None
        awaited = gated(node, self.rules.names) or record.status.code == AGENT_SILENT
        return self.heartbeats.state_of(record.name, expected=agent is not None, awaited=awaited)

    def _carry_out(self, view: View, decision: Decision) -> bool:
        """Whether Node or record was changed by others meanwhile."""
        stores = self.records, self.nodes
        for store in stores:
            store.begin_writing(view.name)
        try:
            self._write(view, decision)
        finally:
            changed = [store.end_writing(view.name) for store in stores]
        return any(changed)

    def _write(self, view: View, decision: Decision) -> None:
        """Ledger, Node, condition: each of the version that was decided on, so that a late write meets a conflict."""
        name, record, node, written = view.name, view.record, view.node, False
        version = str(node["metadata"]["resourceVersion"]) if node is not None else ""
        if record is not None and decision.status != record.status:
            # It changes nothing that marks are.
            if node is not None and self._in_flight(record, node, decision):
                version = self._write_node(name, self._fence(node), last=decision.node_patch is None)
            self._write_record(record, decision.status)
            written = True
        if decision.node_patch is not None:
            if not written and record is not None:
                self._confirm(record)
            last = decision.node_status_patch is None
            version = self._write_node(name, _of_version(decision.node_patch, version), last=last)
            if node is not None and not last:
                self._marks.written(node, decision.node_patch)
        if decision.node_status_patch is not None:
            self._write_node(name, _of_version(decision.node_status_patch, version), status=True)

    def _write_record(self, record: NodeAdmission, status: Status) -> None:
        path = f"{admissions_path(self.rules.names, record.name)}/status"
        patch: Patch = [
            {"op": "test", "path": "/metadata/resourceVersion", "value": record.version},
            {"op": "add", "path": "/status", "value": status_document(status)},
        ]
        item = self._patch(path, patch, f"write the status of {KIND} {record.name}")
        document = patch[-1]["value"]
        if item.get("status") != document and parse(item).status != status:
            raise Forgotten(
                f"{record.name}: the API server does not keep all of a {KIND}'s status, so its CRD is of another "
                f"version of muster: {DEFINITIONS}; until then its Node is left as it is"
            )
        self.records.wrote(item)
        for change in new_steps(record.status.transitions, status.transitions):
            labels = {"from": str(change.before), "to": str(change.after), "code": change.code}
            self.metrics.add("transitions", labels)
            self.journal.transition(record.name, change)
            self.recorder.transition(record.name, change)

    def _write_node(self, name: str, patch: Patch, *, status: bool = False, last: bool = True) -> str:
        """The version that the Node has after the patch. `last`: no other of ours follows at once."""
        path = f"{node_path(name)}/status" if status else node_path(name)
        what = f"patch {'the status of ' if status else ''}node {name}"
        try:
            item = self._patch(path, patch, what, JSON_TYPE if last else METADATA_ONLY)
        except Conflict:
            raise  # nothing was written
        except BaseException:
            self._marks.forget(name)
            raise
        if last:
            self.nodes.wrote(item)
            self._marks.left(item)
        return str(item["metadata"]["resourceVersion"])

    def _patch(self, path: str, patch: Patch, what: str, answer: str = JSON_TYPE) -> Object:
        began_s = self.monotonic_s()
        try:
            return self.api.patch(path, patch, what, answer=answer)
        finally:
            self.metrics.patched(self.monotonic_s() - began_s)

    def _confirm(self, record: NodeAdmission) -> None:
        """Before a Node is changed without a write to its record: no newer record (a hold) may exist."""
        item = self.api.get(admissions_path(self.rules.names, record.name), f"read {KIND} {record.name}")
        if str(item["metadata"]["resourceVersion"]) != record.version:
            self.records.put(item)
            raise Stale(record.name)

    def _in_flight(self, record: NodeAdmission, node: Mapping[str, Any], decision: Decision) -> bool:
        """Whether a leader that was stopped between its two writes may still open this Node, which must stay shut.

        It wrote `ready` to the record and its patch of the Node is to come, which tests the Node's version alone.
        """
        opening = record.status.state is State.READY and decision.status.state is not State.READY
        return opening and gated(node, self.rules.names)

    def _fence(self, node: Mapping[str, Any]) -> Patch:
        """A patch that changes nothing but the version (and one note), so that an older one meets a conflict."""
        metadata, key = node["metadata"], self.rules.names.admitted
        note = canonical_json({_FENCED: self.now().isoformat()}).decode("ascii")
        return [version_test(node), *map_patch("/metadata/annotations", metadata.get("annotations"), {key: note})]

    def _notice(self, name: str, node: Mapping[str, Any]) -> None:
        """Tell once that somebody else has changed the fleet's taints and labels."""
        changed = self._marks.changed(node)
        self._marks.left(node)
        if not changed:
            return
        self.metrics.add("foreign_changes")
        message = (
            f"{name}: somebody else {changed}, which the gate lets nobody but the admitter do: look in the API "
            "servers' audit logs who it was, and whether the gate holds (muster gate-probe)"
        )
        self.journal.say(message, node=name)
        self.recorder.alarm("default", node_reference(name), "MusterForeignChange", message)

    def _evict(self, view: View, decision: Decision) -> datetime | None:
        """Ask pods to leave, and tell those that hold; when to ask again those that could not."""
        leave = decision.status.leave
        why = leave.why if leave else decision.status.message
        self.evictor.announce(view.name, decision.pod_events, why)
        try:
            self.pod_notes.write(view.pods, leave)
        finally:
            again_at = self.evictor.ask(view.name, decision.evict, why)
        return again_at

    def _served(self, view: View, decision: Decision) -> None:
        """The schedule's choice ends with the test: its level may be due again before the next pass of the schedule."""
        before = view.record.status.request if view.record is not None else None
        if before is not None and decision.status.request != before:
            self.choices.pop(view.name, None)

    def _denied(self, budget: Budget, view: View, why: str, decision: Decision) -> None:
        name, now_s = view.name, self.monotonic_s()
        # Nodes that wait for their turn to join, or for a test, are no alarm, nor is one that a hold has closed.
        quiet = budget in (Budget.JOIN, Budget.TEST) or decision.status.state is State.HELD
        if quiet or now_s < self._alarmed.get(budget, -ALARM_EVERY_S) + ALARM_EVERY_S:
            return
        self._alarmed[budget] = now_s
        message = f"{name} and maybe others {_kept_from(view, decision, why, self.rules.mode)}"
        self.journal.say(message, brake=str(budget), node=name)
        self.recorder.alarm(SYSTEM_NAMESPACE, lease_reference(), "MusterBrake", message)


def _kept_from(view: View, decision: Decision, why: str, mode: Mode) -> str:
    """What a budget keeps from being done about a node, and what a person can do."""
    if view.record is None:
        return (
            f"work and have no NodeAdmission, so nobody says which machines they are: {why}; "
            f"{admit(view.name, mode)}, or keep new work away with `kubectl cordon`"
        )
    decide = (
        "look at `muster status`: a fault of many nodes at once is often one of the software, and a person has to "
        "decide (muster node quarantine)"
    )
    if decision.opens:
        return f"should be kept from work and are not: {why}; {decide}"
    return f"take no new work, and what runs on them is not asked to leave: {why}; {decide}"


def _of_version(patch: Patch, version: str) -> Patch:
    """The patch with its `test` for the version that our own patch before it has made."""
    test, *rest = patch
    return [{**test, "value": version}, *rest]
