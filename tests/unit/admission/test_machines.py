"""The inventory's machines in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.machines import forget_machines, have_machines
from gpu_burnin.api.machine_power import MachineSpec, Supply
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Place
from tests.support.fake_api import FakeApi

NAMES = Names()
SPEC = MachineSpec(Supply("redfish", "10.0.0.1", uuid="u"), 8, "h100", Place("r1"))
WISH = {"power": "off", "who": "muster:scaler", "why": "idle", "since": "2026-11-27T12:00:00.000Z"}


@pytest.fixture
def there(api: FakeApi) -> FakeApi:
    api.objects["machinepowers"] = {}
    return api


def spec_of(api: FakeApi, name: str) -> dict[str, Any]:
    found: dict[str, Any] = api.objects["machinepowers"][name]["spec"]
    return found


def test_machines_are_made_changed_and_left_alone(there: FakeApi, kube: KubeApi) -> None:
    first = have_machines(kube, NAMES, {"gpu-1": SPEC}, apply=True)
    assert first.changed and spec_of(there, "gpu-1")["supply"]["address"] == "10.0.0.1"
    assert not have_machines(kube, NAMES, {"gpu-1": SPEC}, apply=True).changed
    there.merge("machinepowers", "gpu-1", {"spec": {"wanted": WISH}})
    moved = MachineSpec(SPEC.supply, 8, "h100", Place("r2"))
    assert have_machines(kube, NAMES, {"gpu-1": moved}, apply=True).changed
    assert spec_of(there, "gpu-1")["wanted"] == WISH and spec_of(there, "gpu-1")["place"] == {"rack": "r2"}


def test_check_mode_writes_nothing_also_before_there_is_a_definition(api: FakeApi, kube: KubeApi) -> None:
    api.unknown.add("machinepowers")
    assert have_machines(kube, NAMES, {"gpu-1": SPEC}, apply=False).after.keys() == {"gpu-1"}
    assert not api.objects.get("machinepowers")


def test_a_machine_that_left_goes_unless_it_is_off(there: FakeApi, kube: KubeApi) -> None:
    have_machines(kube, NAMES, {"gpu-1": SPEC, "gpu-2": SPEC}, apply=True)
    there.merge("machinepowers", "gpu-1", {"status": {"power": "off"}})
    done = have_machines(kube, NAMES, {}, apply=True)
    assert set(there.objects["machinepowers"]) == {"gpu-1"}
    assert done.notes[0].startswith("gpu-1: its machine is off, and the inventory says no more how")


def test_without_the_scaler_all_go_and_those_that_are_off_are_named(there: FakeApi, kube: KubeApi) -> None:
    have_machines(kube, NAMES, {"gpu-1": SPEC, "gpu-2": SPEC, "gpu-3": SPEC}, apply=True)
    there.merge("machinepowers", "gpu-1", {"status": {"power": "off"}})
    there.merge("machinepowers", "gpu-3", {"spec": {"wanted": WISH}, "status": {"power": "on"}})
    assert forget_machines(kube, NAMES, apply=False).changed and len(there.objects["machinepowers"]) == 3
    done = forget_machines(kube, NAMES, apply=True)
    assert done.changed and there.objects["machinepowers"] == {}
    first, second = done.notes
    assert first.startswith("gpu-1: its machine is off") and "muster node release gpu-1 --reason" in first
    assert second.startswith("gpu-3: its machine is off or on its way there")
    assert not forget_machines(kube, NAMES, apply=True).changed


def test_a_fleet_that_never_had_a_scaler_has_nothing_to_forget(api: FakeApi, kube: KubeApi) -> None:
    api.unknown.add("machinepowers")
    assert not forget_machines(kube, NAMES, apply=True).changed


def written_once(api: FakeApi, resource: str, change: dict[str, Any]) -> None:
    """Somebody writes gpu-1's object between when it is read and when it is deleted."""
    left = [change]

    def meanwhile(path: str) -> None:
        if path.endswith(f"/{resource}/gpu-1") and api.requests[-1][0] == "DELETE" and left:
            api.merge(resource, "gpu-1", left.pop())

    api.before_write = meanwhile


def test_a_machine_that_is_written_meanwhile_stays_with_what_was_written(there: FakeApi, kube: KubeApi) -> None:
    have_machines(kube, NAMES, {"gpu-1": SPEC, "gpu-2": SPEC}, apply=True)
    written_once(there, "machinepowers", {"spec": {"wanted": WISH}})
    done = have_machines(kube, NAMES, {}, apply=True)
    assert set(done.before) == {"gpu-2"} and spec_of(there, "gpu-1")["wanted"] == WISH
    (note,) = done.notes
    assert note.startswith("gpu-1: its MachinePower was written since it was read (") and "run this again" in note
    assert set(have_machines(kube, NAMES, {}, apply=True).before) == {"gpu-1"} and not there.objects["machinepowers"]


def test_without_the_scaler_a_wish_that_comes_meanwhile_is_named(there: FakeApi, kube: KubeApi) -> None:
    have_machines(kube, NAMES, {"gpu-1": SPEC}, apply=True)
    written_once(there, "machinepowers", {"spec": {"wanted": WISH}})
    (note,) = forget_machines(kube, NAMES, apply=True).notes
    assert note.startswith("gpu-1: its machine is off or on its way there") and not there.objects["machinepowers"]
