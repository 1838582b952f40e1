"""The scaler at work beside an admitter, both on a fake API server: from a request to machines that are off again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.machine_power import Power
from gpu_burnin.api.names import SCALER_USER, SYSTEM_NAMESPACE
from gpu_burnin.power.port import PowerError
from gpu_burnin.scaler.model import Rules
from gpu_burnin.scaler.service import dry_run
from gpu_burnin.scaler.settings import ScalerConfig
from tests.support.admitter_helpers import ASK, settled, until, working
from tests.support.fake_api import FakeApi, Refused
from tests.support.scaler_service import QUICK, Ground, scaling

CAREFUL = Rules(idle_s=3600.0, settle_s=0.2, on_per_feed=100, ready_within_s=60.0, retry_s=0.0)


def test_a_gang_of_two_gets_machines_which_go_when_it_has_ended(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        ground.machine(name)
    with working(ground.fleet.api, tmp_path), scaling(ground, tmp_path, monkeypatch):
        ground.request("train", 2)
        until("the machines", lambda: ground.provisioned("train"))
        on = sorted(ground.cloud.on)
        assert len(on) == 2 and all(ground.fleet.ready(name) for name in on)
        ground.begin("train", *on)
        assert settled(lambda: sorted(ground.cloud.on) == on, 2.5)
        ground.end("train")
        until("the end of both", lambda: not ground.cloud.on)
        until("the record", lambda: all(ground.power(name).off for name in on))
        for name in on:
            asks, status = ground.asks(name), ground.fleet.status(name)
            assert asks["hold"]["who"] == SCALER_USER and status["state"] == "held"
            done = ["wanted on", "switched on", "ready", "wanted off", "switched off", "off"]
            until("the history", lambda: [change.what for change in ground.power(name).status.changes] == done)  # noqa: B023
        ground.request("again", 3)
        until("all three", lambda: ground.provisioned("again"))
        assert not any("hold" in ground.asks(name) for name in on)


def test_a_sick_machine_is_replaced_and_what_it_has_stands_in_the_ledger(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpu-1", "gpu-2"):
        ground.machine(name)
    ground.cloud.faults["gpu-1"] = "sick"
    with working(ground.fleet.api, tmp_path), scaling(ground, tmp_path, monkeypatch, CAREFUL) as scaler:
        ground.request("train", 1)
        until("the machine", lambda: ground.provisioned("train"))
        assert ground.fleet.ready("gpu-2")
        until("the finding", lambda: ground.fleet.status("gpu-1")["state"] == "quarantined")
        failure = ground.power("gpu-1").status.last_failure
        assert failure is not None and failure.code == "SICK"
        assert "gpu-1: it was put on, and its burn-in found GEMM_MISMATCH" in scaler.messages()


def test_a_deaf_bmc_is_named_and_after_the_second_time_it_is_a_persons(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.machine("gpu-1")
    ground.cloud.faults["gpu-1"] = "deaf"
    with working(ground.fleet.api, tmp_path), scaling(ground, tmp_path, monkeypatch, CAREFUL) as scaler:
        ground.request("train", 1)
        until("the failure", lambda: ground.power("gpu-1").status.failures == 1)
        until("the answer", lambda: "Failed" in ground.conditions("train"))
        assert "room for 0" in ground.conditions("train")["Failed"]["message"]
        until("its being off", lambda: ground.power("gpu-1").off)
        ground.request("later", 1)
        until("the hold", lambda: ground.power("gpu-1").status.held)
        assert "took the order, and the power is still off" in ground.power("gpu-1").status.held
        until("its word", lambda: any("gpu-1: it is held" in message for message in scaler.messages()))
        orders = len(ground.cloud.orders)
        ground.request("third", 1)
        until("the answer", lambda: "Failed" in ground.conditions("third"))
        assert len(ground.cloud.orders) == orders


def test_a_pause_stops_it_and_its_end_lets_it_go_on(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.machine("gpu-1")
    pause: dict[str, Any] = {"metadata": {"namespace": SYSTEM_NAMESPACE, "name": "muster-pause"}}
    ground.fleet.api.put("configmaps", {**pause, "data": {"who": "ada", "why": "power work", "until": ""}})
    with working(ground.fleet.api, tmp_path), scaling(ground, tmp_path, monkeypatch) as scaler:
        ground.request("train", 1)
        until("its word", lambda: any("power work" in message for message in scaler.messages()))
        assert settled(lambda: not ground.cloud.orders, 1.0)
        ground.fleet.api.remove("configmaps", f"{SYSTEM_NAMESPACE}/muster-pause")
        until("the machine", lambda: ground.provisioned("train"))


def test_an_api_that_cannot_be_read_stops_it(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ground.machine("gpu-1")
    api = ground.fleet.api

    def refuse(path: str) -> None:
        if "machinepowers" in path:
            raise Refused(503, "etcd is slow")

    with working(api, tmp_path), scaling(ground, tmp_path, monkeypatch, quiet_s=3.0) as scaler:
        until("a look", lambda: ground.power("gpu-1").status.power is Power.OFF)
        api.before_write = refuse
        ground.request("train", 1)
        until("its word", lambda: any("nothing is switched" in message for message in scaler.messages()))
        api.before_write = lambda path: None
        assert settled(lambda: not ground.cloud.orders, 1.0)
        until("the machine", lambda: ground.provisioned("train"))


def test_work_that_came_after_the_decision_keeps_its_power(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.machine("gpu-1")
    ground.cloud.on.add("gpu-1")
    ground.cloud.boot("gpu-1")

    def before(what: str, name: str) -> None:
        assert what != "off", "it is asked off under work"

    ground.cloud.before = before
    api = ground.fleet.api
    with working(api, tmp_path), scaling(ground, tmp_path, monkeypatch, QUICK):
        until("the wish", lambda: ground.power("gpu-1").spec.wanted)
        # Its pod is on the node, and no watch tells of it.
        api.objects.setdefault("pods", {})["vision/late"] = {
            "metadata": {"namespace": "vision", "name": "late", "uid": "u", "resourceVersion": "1"},
            "spec": {
                "nodeName": "gpu-1",
                "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            },
        }
        assert settled(lambda: "gpu-1" in ground.cloud.on, 3.0)


def test_a_hold_of_a_person_is_left_alone(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpu-1", "gpu-2"):
        ground.machine(name)
        ground.cloud.on.add(name)
        ground.cloud.boot(name)
    ground.fleet.ask("gpu-1", hold=ASK)
    with working(ground.fleet.api, tmp_path), scaling(ground, tmp_path, monkeypatch):
        until("the end of the other", lambda: ground.cloud.on == {"gpu-1"})
        assert settled(lambda: ground.cloud.on == {"gpu-1"}, 2.0)
        assert ground.asks("gpu-1")["hold"] == ASK


def test_a_dry_run_says_what_it_would_do_and_does_nothing(
    ground: Ground, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.machine("gpu-1")
    ground.request("train", 2)
    config = ScalerConfig(kubeconfig=str(api.kubeconfig(tmp_path / "dry")), identity="x")
    said = list(dry_run(config))
    assert "gpu-1: ask its provider whether it is on" in said
    assert any(line.startswith("vision/train: tell it wait: 1 machines are looked at") for line in said)
    assert not [one for one in api.requests if one[0] not in ("GET",)]
    with scaling(ground, tmp_path, monkeypatch, dry_run=True) as scaler:
        until(
            "its word",
            lambda: any("dry run: vision/train: tell it failed: 2 pods of 8 GPUs" in m for m in scaler.messages()),
        )
        assert "Failed" not in ground.conditions("train") and not ground.cloud.orders


def test_it_tells_numbers_and_its_events_are_on_the_node(
    ground: Ground, api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.machine("gpu-1")
    with working(api, tmp_path), scaling(ground, tmp_path, monkeypatch, CAREFUL) as scaler:
        ground.request("train", 1)
        until("the machine", lambda: ground.provisioned("train"))
        page = scaler.service.metrics.text().decode()
        assert 'muster_scaler_machines{stage="up"} 1.0' in page and "muster_scaler_leader 1.0" in page
        assert 'muster_scaler_orders_total{power="on",result="done"} 1.0' in page
        assert "muster_admitter" not in page
        until("the events", lambda: "MusterPower" in str(api.objects.get("events")))
        event = next(one for one in api.objects["events"].values() if one["reason"] == "MusterPower")
        assert event["reportingComponent"] == "muster-scaler" and event["involvedObject"]["name"] == "gpu-1"
        assert api.objects["leases"][f"{SYSTEM_NAMESPACE}/muster-scaler"]["spec"]["holderIdentity"].startswith("api-1")


def test_a_bmc_that_is_busy_while_its_machine_boots_has_failed_at_nothing(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.machine("gpu-1")
    asked = iter(range(1000))

    def before(what: str, name: str) -> None:
        # The first word and the order are well; each look after that is not.
        if what == "is_on" and ground.cloud.orders and next(asked) > 0:
            raise PowerError(f"{name}: its BMC does not answer; check the way to it")

    ground.cloud.before = before
    with working(ground.fleet.api, tmp_path), scaling(ground, tmp_path, monkeypatch, CAREFUL, observe_s=0.2) as scaler:
        ground.request("train", 1)
        until("the machine", lambda: ground.provisioned("train"))
        until("a look in vain", lambda: any("does not answer" in message for message in scaler.messages()))
        assert ground.power("gpu-1").status.failures == 0 and "gpu-1" in ground.cloud.on
