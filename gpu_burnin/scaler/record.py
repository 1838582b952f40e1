"""What an act makes of a MachinePower: spec and status as they are to be written. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpu_burnin.admission.decide.times import stamp
from gpu_burnin.admission.decide.words import sentence
from gpu_burnin.api.machine_power import (
    MOST_CHANGES,
    Change,
    Failure,
    MachinePower,
    MachineStatus,
    Power,
    Wish,
)
from gpu_burnin.api.names import SCALER_USER
from gpu_burnin.scaler.model import Failed, Reached, SetWish
from gpu_burnin.system.clock import rfc3339

# What a change is called where nothing was wanted of the machine any more.
LEFT = "left"


def with_wish(machine: MachinePower, act: SetWish, now: datetime) -> MachinePower:
    """The wish. It is told from the one before by its time, which is finer than a second."""
    if act.power is None:
        return replace(machine, spec=replace(machine.spec, wanted=None))
    wish = Wish(act.power, SCALER_USER, sentence(act.why), rfc3339(now), act.request, act.boot_id)
    return replace(machine, spec=replace(machine.spec, wanted=wish))


def with_power(status: MachineStatus, power: Power, now: datetime) -> MachineStatus:
    """What its provider says."""
    return status if power is status.power else replace(status, power=power, since=stamp(now))


def with_outcome(machine: MachinePower, act: Reached | Failed, now: datetime) -> MachinePower:
    """What became of the wish."""
    status, wish = machine.status, machine.spec.wanted
    since = wish.since if wish is not None else ""
    if isinstance(act, Reached):
        status, what = replace(status, reached=since), "off"
        # That it went off says nothing of whether it comes on.
        if wish is not None and wish.power is Power.ON:
            status, what = replace(status, failures=0, last_failure=None, held="", held_since=""), "ready"
        return replace(machine, status=with_change(status, what, act.message, now))
    failure = Failure(stamp(now), act.code, sentence(act.message), since)
    status = replace(_released(machine), failures=failures(machine) + 1, last_failure=failure)
    if act.held:
        status = replace(status, held=sentence(f"{act.code}: {act.message}"), held_since=rfc3339(now))
    return replace(machine, status=with_change(status, "held" if act.held else "failed", act.message, now))


def with_change(status: MachineStatus, what: str, message: str, now: datetime, who: str = "") -> MachineStatus:
    """One more line of its history; the oldest goes."""
    change = Change(stamp(now), what, sentence(message), who or SCALER_USER)
    return replace(status, changes=(*status.changes, change)[-MOST_CHANGES:])


def held(machine: MachinePower) -> str:
    """Why a failure keeps it for a person, who has not released it since; "" where none does."""
    status = machine.status
    return status.held if status.held and not _is_released(machine) else ""


def failures(machine: MachinePower) -> int:
    """Those in a row, since a person has last released it."""
    return 0 if _is_released(machine) else machine.status.failures


def _is_released(machine: MachinePower) -> bool:
    release, status = machine.spec.release, machine.status
    return release is not None and bool(status.held) and release.since > status.held_since


def _released(machine: MachinePower) -> MachineStatus:
    return replace(machine.status, held="", held_since="") if _is_released(machine) else machine.status
