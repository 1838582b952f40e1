"""One machine as decisions see it, from its MachinePower, its ledger entry, its Node and its pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_burnin.admission.decide.desired import ledger_labels
from gpu_burnin.admission.decide.facts import doubted
from gpu_burnin.admission.decide.nodes import boot_id, condition, labelled_ready, taints
from gpu_burnin.admission.decide.times import when
from gpu_burnin.admission.decide.words import active
from gpu_burnin.admission.view import Node, Pod
from gpu_burnin.api.machine_power import MachinePower, Power
from gpu_burnin.api.names import NO_EXECUTE, NO_SCHEDULE, PROVISIONER_USER, READY_LABEL, SCALER_USER, Names
from gpu_burnin.api.record import Ask, NodeAdmission, Spec, State
from gpu_burnin.scaler.model import Machine
from gpu_burnin.scaler.record import failures, held
from gpu_burnin.types import Verdict

_AT_WORK = (State.READY, State.EXPIRING, State.TESTING)


@dataclass(frozen=True)
class Seen:
    """What this leader knows of a machine and no object has: its provider's newest word, and of its orders.

    `wish` is the `since` of the wish that `error` is about.
    """

    power: Power = Power.UNKNOWN
    at: datetime | None = None
    switching: bool = False
    error: str = ""
    wish: str = ""


def machine_of(
    record: NodeAdmission,
    node: Node | None,
    pods: Iterable[Pod],
    power: MachinePower | None,
    seen: Seen,
    names: Names,
    now: datetime,
    window: str = "",
) -> Machine:
    """`window` is why a maintenance window of the inventory keeps it from work, "" for none."""
    spec, status = record.spec, record.status
    work = [pod for pod in pods if not pod.ended]
    hold = own_ask("hold", spec, now)
    kubelet = node is not None and (condition(node, "Ready") or {}).get("status") == "True"
    closed = [taint for taint in taints(node) if _closes(taint, names)] if node is not None else []
    use = status.use
    machine = Machine(
        name=record.name,
        model=spec.hardware.model,
        gpus=spec.hardware.gpus,
        place=spec.place,
        labels=_labels(spec, status.team),
        switched=False,
        there=node is not None,
        kubelet=kubelet,
        ready=node is not None and kubelet and labelled_ready(node) and not closed,
        admitted=node is not None and kubelet and labelled_ready(node),
        boot_id=boot_id(node) if node is not None else "",
        state=status.state,
        asked=_asked(record, node, names, now, window),
        hold=hold.since if hold is not None else "",
        leave=own_ask("quarantine", spec, now) is not None,
        swings=active(spec.swing, now) is not None,
        failed=_failed(record),
        used_gpus=sum(pod.gpus for pod in work),
        others=sum(not (pod.gpus or pod.daemon) for pod in work),
        idle_since=when(use.since) if use is not None and not use.busy else None,
        restored_at=when(spec.restored.since) if spec.restored is not None else None,
        unheard=doubted(spec, status) is not None,
    )
    machine = _changed(machine, doubt=not machine.asked and not machine.hold and _doubt(machine))
    if power is None:
        return machine
    wish = power.spec.wanted
    known = seen.at is not None
    # Who led before may have given the order and died: what was recorded is of before it.
    pending = wish is not None and power.status.reached != wish.since
    recorded = Power.UNKNOWN if pending else power.status.power
    return _changed(
        machine,
        switched=True,
        power=seen.power if known else recorded,
        power_since=when(power.status.since),
        seen_at=seen.at,
        wish=wish,
        reached=power.status.reached,
        failures=failures(power),
        failure=power.status.last_failure,
        held=held(power) or _person(power, now),
        error=seen.error if wish is not None and seen.wish == wish.since else "",
        blind=not known and bool(seen.error),
        switching=seen.switching,
    )


def _changed(machine: Machine, **changes: object) -> Machine:
    return Machine(**{**vars(machine), **changes})


def _labels(spec: Spec, team: str) -> Mapping[str, str]:
    """Those that its Node has, or will have once it is let in."""
    found = {key: value for key, value in ledger_labels(spec, team).items() if value}
    return {**found, READY_LABEL: "true"}


def own_ask(what: str, spec: Spec, now: datetime) -> Ask | None:
    """An ask of the scaler, also one that a restore of etcd has carried over in the provisioner's name (restore.py)."""
    found: Ask | None = active(getattr(spec, what), now)
    if found is None:
        return None
    carried = found.who == PROVISIONER_USER and found.why.startswith(f"{what} of {SCALER_USER}, carried over")
    return found if found.who == SCALER_USER or carried else None


def _asked(record: NodeAdmission, node: Node | None, names: Names, now: datetime, window: str) -> str:
    """Who asks what else of the node, and what is under way there; "" for nothing."""
    spec, status = record.spec, record.status
    for what in ("repair", "quarantine", "hold"):
        ask = active(getattr(spec, what), now)
        if ask is not None and own_ask(what, spec, now) is None:
            return f"{what} of {ask.who}: {ask.why}"
    if spec.retest is not None and active(spec.retest, now) and spec.retest.since != status.retested:
        return f"a test was asked for by {spec.retest.who}"
    if status.request is not None:
        return f"its test ({status.request.level}) is under way"
    if (swing := active(spec.swing, now)) is not None:
        return swing.why
    if status.power_cycle is not None:
        return f"it owes {status.power_cycle.what} for {status.power_cycle.code}"
    if window:
        return window
    if node is not None and any(taint.get("key") == names.maintenance for taint in taints(node)):
        return "a maintenance window is near or open"
    return ""


def _closes(taint: Mapping[str, object], names: Names) -> bool:
    """A team's own taint keeps others away, and not the team."""
    return taint.get("key") != names.team and taint.get("effect") in (NO_SCHEDULE, NO_EXECUTE)


def _failed(record: NodeAdmission) -> tuple[datetime, str] | None:
    """The newest run, where it found something or could not tell."""
    test = record.status.last_test
    ended = when(test.finished_at) if test is not None else None
    if test is None or ended is None or test.verdict == Verdict.PASS:
        return None
    return ended, test.code or test.verdict


def _doubt(machine: Machine) -> bool:
    return not machine.kubelet or machine.state not in _AT_WORK


def _person(power: MachinePower, now: datetime) -> str:
    ask = active(power.spec.hold, now)
    return f"held by {ask.who}: {ask.why}" if ask is not None else ""
