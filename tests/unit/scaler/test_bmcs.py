"""The scaler with real Redfish: a BMC that is well, one of another machine, one that takes orders and does nothing."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.api.machine_power import Power, Supply
from gpu_burnin.power import redfish
from gpu_burnin.power.redfish import Redfish
from gpu_burnin.scaler.model import Rules
from tests.support.admitter_helpers import until, working
from tests.support.bmc import PASSWORD, USER, UUID, FakeBmc, fake_bmc
from tests.support.scaler_service import Ground, scaling

RULES = Rules(idle_s=3600.0, settle_s=0.2, on_per_feed=100, ready_within_s=600.0, retry_s=3600.0)


@pytest.fixture
def bmc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBmc]:
    monkeypatch.setattr(redfish, "SWITCH_S", 1.0)
    # The emulator's machines draw their times by the module itself, which fake_bmc has made 0: no watch would last.
    monkeypatch.setattr("gpu_burnin.admission.service.reflector.random", random.Random())
    with contextlib.ExitStack() as stack:
        folder = tmp_path / "bmc"
        folder.mkdir()
        yield stack.enter_context(fake_bmc(folder, monkeypatch, power="Off"))


@pytest.mark.parametrize(
    ("uuid", "obeys", "says"),
    [
        (UUID, True, ""),
        ("00000000-0000-0000-0000-000000000001", True, "is not shown to be that of this node"),
        (UUID, False, "took the order On, and 1 s later the power is still off"),
    ],
)
def test_an_order_goes_to_the_pinned_machine_alone_and_counts_when_it_shows(
    ground: Ground, bmc: FakeBmc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uuid: str, obeys: bool, says: str
) -> None:
    bmc.obeys = obeys
    ground.machine("gpu-1", supply=Supply(address=bmc.address, uuid=uuid))
    way = {"redfish": Redfish(USER, PASSWORD, str(bmc.ca_file))}
    with (
        working(ground.fleet.api, tmp_path),
        scaling(ground, tmp_path, monkeypatch, RULES, providers=way) as scaler,
    ):
        ground.request("train", 1)
        if not says:
            until("the power", lambda: ground.power("gpu-1").status.power is Power.ON)
            assert bmc.orders == ["On"]
            ground.cloud.boot("gpu-1")
            until("the machine", lambda: ground.provisioned("train"))
            return
        until("its name", lambda: any(says in message for message in scaler.messages()))
        until("the answer", lambda: "Failed" in ground.conditions("train"))
        assert bmc.orders == ([] if obeys else ["On"])
        assert PASSWORD not in scaler.out.getvalue()
