"""Where one machine stands between off and at work, and its next step. Pure.

Everything is told from what is: a leader that dies between a wish, its order and the record leaves the next one the
same step to take.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum

from gpu_burnin.admission.decide.times import LONG_AGO, later, when
from gpu_burnin.api.machine_power import Power
from gpu_burnin.api.record import State
from gpu_burnin.scaler.model import (
    LATE,
    POWER_ORDER,
    SICK,
    Act,
    Close,
    Failed,
    Machine,
    Observe,
    Reached,
    Reopen,
    Rules,
    SetWish,
    Switch,
)

# A machine that is off stops to report; Kubernetes says so within a minute.
LIE_S = 300.0
FRESH_S = 60.0


class Stage(StrEnum):
    """Where a machine stands."""

    FOREIGN = "foreign"  # no MachinePower: a node as all others
    HELD = "held"  # a person's
    UNSEEN = "unseen"  # nobody knows its power
    OFF = "off"
    STARTING = "starting"  # on is wanted, and the node does not take work yet
    SICK = "sick"  # on, and what it was put on for has failed
    UP = "up"
    STOPPING = "stopping"  # off is wanted
    ASTRAY = "astray"  # not as it was left: somebody else has switched it


def stage(machine: Machine) -> Stage:
    """Of one machine."""
    wish = machine.wish
    if not machine.switched:
        return Stage.FOREIGN
    if machine.held:
        return Stage.HELD
    if wish is None:
        return {Power.ON: Stage.UP, Power.OFF: Stage.OFF, Power.UNKNOWN: Stage.UNSEEN}[machine.power]
    if _void(machine):
        return Stage.ASTRAY
    reached = machine.reached == wish.since
    if wish.power is Power.OFF:
        if not reached:
            return Stage.STOPPING
        return Stage.ASTRAY if machine.power is Power.ON else Stage.OFF
    if reached:
        return Stage.ASTRAY if machine.power is Power.OFF else Stage.UP
    if _failed(machine):
        return Stage.SICK
    return Stage.STARTING


def missed(machine: Machine) -> bool:
    """Whether it should be at work by now: not off, on its way, or a person's.

    One that somebody else has put off is missed, so that a power cut is seen; not one of before a restore of etcd, nor
    a node of the inventory that has never joined.
    """
    where = stage(machine)
    return (
        where is Stage.UP
        or (where is Stage.FOREIGN and machine.there)
        or (where is Stage.ASTRAY and not _void(machine))
    )


def steps(machine: Machine, rules: Rules, now: datetime) -> Iterator[Act]:
    """What is next for it, whoever wants what; nothing while an order is being carried out."""
    if machine.switching:
        return
    match stage(machine):
        case Stage.UNSEEN:
            yield Observe(machine.name)
        case Stage.STARTING:
            yield from _start(machine, rules, now)
        case Stage.SICK:
            yield from _after_failure(machine)
        case Stage.STOPPING:
            yield from _stop(machine, rules, now)
        case Stage.OFF | Stage.ASTRAY if _reports_without_power(machine, now):
            yield Failed(machine.name, POWER_ORDER, _lie(machine), held=True)
        case Stage.OFF if machine.there and not (machine.hold or machine.asked):
            yield Close(machine.name, "its power is off")
        case Stage.ASTRAY:
            yield from _astray(machine)
        case Stage.UP if machine.hold and machine.power is Power.ON:
            yield Reopen(machine.name, "its power stays on")


def ready_to_switch_off(machine: Machine, rules: Rules, now: datetime) -> str:
    """Why its power may not be cut now, "" where it may: asked of each order anew."""
    closed = when(machine.hold)
    if machine.used_gpus:
        return "it has work"
    if machine.unheard:
        return "nobody has spoken for it since etcd was restored"
    if closed is None or machine.state not in (State.HELD, State.QUARANTINED):
        return "the admitter has not closed it yet"
    if now < later(closed, rules.settle_s):
        return "pods that were placed a moment ago may come"
    if machine.others:
        return f"{machine.others} pods leave it"
    return ""


def _start(machine: Machine, rules: Rules, now: datetime) -> Iterator[Act]:
    wish, name = machine.wish, machine.name
    assert wish is not None
    since = when(wish.since) or LONG_AGO
    if machine.error:
        yield _failure(machine, rules, POWER_ORDER, machine.error)
    elif machine.failed is not None and machine.failed[0] >= since:
        message = f"{name}: it was put on, and its burn-in found {machine.failed[1]}"
        yield _failure(machine, rules, SICK, message)
    elif machine.power is Power.OFF and machine.kubelet and machine.boot_id != wish.boot_id:
        yield Failed(name, POWER_ORDER, _lie(machine), held=True)
    elif machine.admitted:
        yield Reached(name, f"{name}: it is admitted, {(now - since).total_seconds():.0f} s after it was wanted")
    elif now >= later(since, rules.ready_within_s):
        seen = "its kubelet reports" if machine.kubelet else "its kubelet does not report"
        late = f"{name}: it does not take work {rules.ready_within_s:.0f} s after it was wanted"
        yield _failure(machine, rules, LATE, f"{late} ({seen}); look at its console")
    elif machine.power is Power.UNKNOWN:
        yield Observe(name)
    elif machine.power is Power.OFF:
        yield Switch(name, Power.ON)
    elif machine.hold and machine.kubelet and machine.boot_id != wish.boot_id:
        yield Reopen(name, "its kubelet reports in a new boot")


def _failure(machine: Machine, rules: Rules, code: str, message: str) -> Failed:
    return Failed(machine.name, code, message, held=machine.failures + 1 >= rules.most_failures)


def _after_failure(machine: Machine) -> Iterator[Act]:
    failure = machine.failure
    assert failure is not None
    if machine.admitted:
        yield Reached(machine.name, f"{machine.name}: it is admitted after all")
    elif failure.code == SICK:
        # What is wrong with it stands in the ledger, where people and the repair ladder look.
        if machine.hold:
            yield Reopen(machine.name, "what its burn-in found stands for itself")
    elif not machine.used_gpus:
        yield _off(machine, f"it did not come ({failure.code})")


def _reports_without_power(machine: Machine, now: datetime) -> bool:
    """Its provider was asked just now, and has said so for long: somebody may have put it on since an older word."""
    off = machine.power is Power.OFF and machine.kubelet
    fresh = machine.seen_at is not None and now <= later(machine.seen_at, FRESH_S)
    return off and fresh and now >= later(machine.power_since or now, LIE_S)


def _lie(machine: Machine) -> str:
    return (
        f"{machine.name}: its provider says that the power is off, and its kubelet reports; correct its supply "
        "(fleet_power): an order would go to another machine"
    )


def _off(machine: Machine, why: str) -> SetWish:
    return SetWish(machine.name, Power.OFF, why, boot_id=machine.boot_id)


def _stop(machine: Machine, rules: Rules, now: datetime) -> Iterator[Act]:
    name, wish = machine.name, machine.wish
    assert wish is not None
    if machine.power is Power.OFF:
        yield Reached(name, f"{name}: its power is off")
    elif machine.used_gpus:
        yield SetWish(name, None, "work has come to it")
    elif machine.asked:
        yield SetWish(name, None, machine.asked)
    elif not machine.hold:
        yield Close(name, wish.why)
    elif machine.others and not machine.leave and machine.state is State.HELD:
        yield Close(name, wish.why, leave=True)
    elif machine.error:
        if not _failed(machine):
            yield _failure(machine, rules, POWER_ORDER, machine.error)
        elif now >= later(when(machine.failure.at) or LONG_AGO, rules.retry_s):  # type: ignore[union-attr]
            yield Observe(name)
    elif machine.power is Power.UNKNOWN:
        yield Observe(name)
    elif not ready_to_switch_off(machine, rules, now):
        yield Switch(name, Power.OFF)


def _astray(machine: Machine) -> Iterator[Act]:
    """An old wish counts for nothing: what is on stays on, and what is off stays off."""
    why = "etcd was restored since it was wanted" if _void(machine) else "somebody else has switched it"
    if machine.power is Power.UNKNOWN:
        yield Observe(machine.name)
    elif machine.power is Power.ON:
        yield SetWish(machine.name, None, f"it is on, and {why}")
    elif _void(machine):
        yield _off(machine, f"it is off, and {why}")


def _void(machine: Machine) -> bool:
    """Whether the wish is of before the restore of etcd: nobody knows what was wanted since."""
    wish = machine.wish
    if wish is None or machine.restored_at is None:
        return False
    return (when(wish.since) or LONG_AGO) <= machine.restored_at


def _failed(machine: Machine) -> bool:
    """Whether the wish of now has failed already."""
    return machine.wish is not None and machine.failure is not None and machine.failure.wish == machine.wish.since
