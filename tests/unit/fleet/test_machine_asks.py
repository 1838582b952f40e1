"""What people ask of machines, how a machine that is off is counted, and what is told of it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api.machine_power import Change, MachineError, MachinePower, MachineSpec, MachineStatus, parse_machine
from gpu_burnin.api.names import PROVISIONER_USER, SCALER_USER, Names
from gpu_burnin.api.record import Ask
from gpu_burnin.fleet.cluster.machines import hold, release
from gpu_burnin.fleet.cluster.rows import OFF, row
from gpu_burnin.fleet.why.of_machine import of_machine
from gpu_burnin.scaler import record
from tests.support.fake_api import FakeApi

NAMES = Names()
NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.fixture
def api() -> Any:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def kube(api: FakeApi, tmp_path: Path) -> KubeApi:
    return KubeApi(api.kubeconfig(tmp_path / "kubeconfig"))


def put(api: FakeApi, **status: Any) -> None:
    api.put("machinepowers", {"metadata": {"name": "gpu-1"}, "spec": {"gpus": 8}, "status": status})


def machine(api: FakeApi) -> MachinePower:
    return parse_machine(api.objects["machinepowers"]["gpu-1"])


def test_a_hold_stands_until_it_is_released(api: FakeApi, kube: KubeApi) -> None:
    put(api, power="off")
    assert "the scaler leaves it as it is (off)" in hold(kube, NAMES, "gpu-1", "ann", "cable", NOW)
    assert machine(api).spec.hold == Ask("ann", "cable", "2026-11-27T12:00:00.000Z")
    assert "ann holds it already: cable" in hold(kube, NAMES, "gpu-1", "bob", "other", NOW)
    assert "may switch it again" in release(kube, NAMES, "gpu-1", "bob", "done", NOW)
    assert machine(api).spec.hold is None and machine(api).spec.release is None
    assert "nothing keeps it" in release(kube, NAMES, "gpu-1", "bob", "done", NOW)


def test_what_failed_twice_is_released_once_and_counts_no_more(api: FakeApi, kube: KubeApi) -> None:
    put(api, failures=2, held="LATE: late", heldSince="2026-11-27T11:00:00.000Z")
    assert record.held(machine(api))
    assert "may switch it again" in release(kube, NAMES, "gpu-1", "ann", "cable", NOW)
    assert not record.held(machine(api)) and record.failures(machine(api)) == 0
    assert "nothing keeps it" in release(kube, NAMES, "gpu-1", "ann", "cable", NOW)


def test_a_machine_that_nobody_switches_is_one_sentence(api: FakeApi, kube: KubeApi) -> None:
    api.objects["machinepowers"] = {}
    with pytest.raises(MachineError, match="gpu-9: it has no MachinePower, so the scaler does not switch it"):
        hold(kube, NAMES, "gpu-9", "ann", "cable", NOW)


def entry(who: str, why: str = "powered off: idle", code: str = "HELD_BY_PERSON", state: str = "held") -> str:
    ask = {"who": who, "why": why, "since": "2026-11-27T11:00:00Z"}
    item = {"metadata": {"name": "gpu-1"}, "spec": {"hold": ask}, "status": {"state": state, "code": code}}
    return row(item, NOW).state


def test_a_node_that_the_scaler_has_closed_is_counted_as_off_and_needs_nobody() -> None:
    assert entry(SCALER_USER) == OFF
    assert entry(PROVISIONER_USER, "hold of muster:scaler, carried over the restore of etcd: x") == OFF
    assert entry(SCALER_USER, code="QUARANTINED_BY_PERSON", state="quarantined") == OFF
    assert entry("ann") == "held"
    assert entry(PROVISIONER_USER, "hold of ann, carried over the restore of etcd: x") == "held"
    # A fault stands for itself, whoever has closed the node.
    assert entry(SCALER_USER, code="GEMM_MISMATCH", state="quarantined") == "quarantined"


def test_each_act_is_an_entry_of_the_story() -> None:
    changes = (
        Change("2026-11-27T11:00:00Z", "wanted on", "for vision/train", SCALER_USER),
        Change("2026-11-27T11:15:00Z", "ready", "gpu-1: it is admitted, 900 s after it was wanted", SCALER_USER),
    )
    spec = MachineSpec(hold=Ask("ann", "cable", "2026-11-27T11:30:00.000Z"))
    told = [(one.message, one.who) for one in of_machine(MachinePower("gpu-1", spec, MachineStatus(changes=changes)))]
    assert told == [
        ("machine wanted on: for vision/train", SCALER_USER),
        ("machine ready: it is admitted, 900 s after it was wanted", SCALER_USER),
        ("machine hold: cable", "ann"),
    ]
