"""What acts make of a MachinePower."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpu_burnin.api.machine_power import MOST_CHANGES, MachinePower, MachineStatus, Power
from gpu_burnin.api.names import SCALER_USER
from gpu_burnin.api.record import Ask
from gpu_burnin.scaler import record
from gpu_burnin.scaler.model import Failed, Reached, SetWish

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
GPU_1 = MachinePower("gpu-1")


def test_a_wish_names_who_why_and_what_for() -> None:
    wished = record.with_wish(GPU_1, SetWish("gpu-1", Power.ON, "for a/b", "a/b", "boot-1"), NOW)
    wish = wished.spec.wanted
    assert wish is not None and (wish.who, wish.request, wish.boot_id) == (SCALER_USER, "a/b", "boot-1")
    assert record.with_wish(wished, SetWish("gpu-1", None, "work has come"), NOW).spec.wanted is None


def test_failures_count_until_it_comes_on_and_going_off_is_no_success() -> None:
    one = record.with_wish(GPU_1, SetWish("gpu-1", Power.ON, "x"), NOW)
    one = record.with_outcome(one, Failed("gpu-1", "LATE", "gpu-1: late"), NOW)
    assert one.status.failures == 1 and one.status.last_failure is not None
    off = record.with_wish(one, SetWish("gpu-1", Power.OFF, "x"), NOW + timedelta(seconds=1))
    off = record.with_outcome(off, Reached("gpu-1", "off"), NOW)
    assert off.status.failures == 1 and off.status.reached == off.spec.wanted.since  # type: ignore[union-attr]
    on = record.with_wish(off, SetWish("gpu-1", Power.ON, "x"), NOW + timedelta(seconds=2))
    assert record.with_outcome(on, Reached("gpu-1", "on"), NOW).status.failures == 0


def test_what_a_person_released_begins_anew() -> None:
    one = record.with_wish(GPU_1, SetWish("gpu-1", Power.ON, "x"), NOW)
    for held in (False, True):
        one = record.with_outcome(one, Failed("gpu-1", "LATE", "gpu-1: late", held=held), NOW)
    assert record.held(one) == "LATE: gpu-1: late" and record.failures(one) == 2
    early = replace(one, spec=replace(one.spec, release=Ask("ann", "x", "2026-11-27T11:00:00.000Z")))
    assert record.held(early)
    free = replace(one, spec=replace(one.spec, release=Ask("ann", "x", "2026-11-27T12:00:01.000Z")))
    assert (record.held(free), record.failures(free)) == ("", 0)
    again = record.with_outcome(free, Failed("gpu-1", "LATE", "late"), NOW)
    assert (again.status.failures, again.status.held) == (1, "")


def test_the_history_is_bounded_and_keeps_the_newest() -> None:
    status = MachineStatus()
    for number in range(MOST_CHANGES + 5):
        status = record.with_change(status, "on", f"{number}", NOW)
    assert [change.message for change in status.changes][::19] == ["5", "24"]


def test_the_time_of_a_power_is_that_of_its_change() -> None:
    on = record.with_power(MachineStatus(), Power.ON, NOW)
    assert record.with_power(on, Power.ON, NOW + timedelta(hours=1)) is on
    assert record.with_power(on, Power.OFF, NOW + timedelta(hours=1)).since == "2026-11-27T13:00:00Z"
