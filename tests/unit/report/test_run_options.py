"""What options and configuration make of a run: DCGM, power waves, the version of NCCL, and what is a shortfall."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_helpers import GPUS

from gpu_burnin.config import Config
from gpu_burnin.deadlines import deadlines
from gpu_burnin.discover import Found
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.prepare import Prepared, RunOptions, plan_options, planned, prepare, wanted_checks
from gpu_burnin.telemetry.inventory import InventoryError
from gpu_burnin.telemetry.state import NodeState

FOUND = Found(gpus=GPUS, simulated=False)
STATE = Path("/var/lib/x")


def prepared(config: Config | None = None, **asked: object) -> Prepared:
    options = RunOptions(config=config or Config(state_dir=STATE), **asked)  # type: ignore[arg-type]
    return planned(options, FOUND, "cuda", ())


def test_dcgm_is_asked_for_by_the_configuration_and_added_once() -> None:
    assert "dcgm" not in wanted_checks(Config())
    assert wanted_checks(Config(dcgm=True))[-1] == "dcgm"
    assert wanted_checks(Config(dcgm=True, checks=("state", "dcgm"))) == ("state", "dcgm")


def test_leaving_out_a_configured_dcgm_is_no_pass() -> None:
    config = Config(state_dir=STATE, dcgm=True)
    assert prepared(config).plan.checks[-1].name == "dcgm"
    assert prepared(config).left_out == ()
    assert prepared(config, skip=("dcgm",)).left_out == ("dcgm",)
    assert prepared(skip=()).left_out == (), "nobody asked for it"


def test_power_waves_run_unless_somebody_says_otherwise() -> None:
    said = plan_options(RunOptions(config=Config(state_dir=STATE)))
    assert said == {"power_waves": "always", "wave_dir": "/var/lib/x/waves", "wave_wait_s": 1800.0}
    fleet = Config(state_dir=STATE, power_waves="granted", wave_wait_s=60.0)
    assert plan_options(RunOptions(config=fleet))["power_waves"] == "granted"
    assert plan_options(RunOptions(config=fleet))["wave_wait_s"] == 60
    asked = plan_options(RunOptions(config=fleet, waves="never", wave_wait_s=5.0))
    assert (asked["power_waves"], asked["wave_wait_s"]) == ("never", 5.0)


def test_the_configured_version_of_nccl_and_count_of_gpus_reach_the_checks() -> None:
    options = prepared(Config(state_dir=STATE, expect_nccl="2.28.3", expect_gpus=2)).plan.options
    assert (options["expect_nccl"], options["expect_gpus"]) == ("2.28.3", 2)
    assert prepared(Config(state_dir=STATE, expect_gpus=2), expect_gpus=4).plan.options["expect_gpus"] == 4
    assert "expect_nccl" not in prepared().plan.options


@pytest.mark.parametrize(
    ("configured", "asked", "short"),
    [
        ("always", None, False), ("always", "never", True), ("always", "granted", True), ("always", "always", False),
        # What needs a grant may go without it: the run at boot does.
        ("granted", "never", False), ("granted", "always", False), ("never", "never", False),
        (None, "never", False),
    ],
)  # fmt: skip
def test_fewer_waves_than_always_is_a_shortfall(configured: str | None, asked: str | None, short: bool) -> None:
    found = prepared(Config(state_dir=STATE, power_waves=configured), waves=asked)
    assert any("power waves" in shortfall for shortfall in found.shortfalls) is short
    quick = prepared(Config(state_dir=STATE, power_waves=configured), waves=asked, level="quick")
    assert not any("power waves" in shortfall for shortfall in quick.shortfalls), "that level has none"
    without = prepared(Config(state_dir=STATE, power_waves=configured), waves=asked, checks=("state", "gemm"))
    assert not any("power waves" in shortfall for shortfall in without.shortfalls)


def test_nvml_may_hang_for_a_part_of_the_levels_time_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[float] = []

    def hangs(timeout_s: float) -> NodeState:
        asked.append(timeout_s)
        raise InventoryError("NVML did not answer")

    monkeypatch.setattr("gpu_burnin.discover.read_inventory_in_child", hangs)
    for level in ("quick", "standard"):
        with pytest.raises(GpuBurninError, match="NVML did not answer"):
            prepare(RunOptions(config=Config(state_dir=tmp_path), level=level, backend="cuda"))
    assert asked == [deadlines(60.0).discover_s, deadlines(300.0).discover_s]
