"""What options and configuration make of a run: DCGM, power waves, the version of NCCL, and what is a shortfall."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpu_burnin.api.evidence import Statement
from gpu_burnin.engine.deadlines import deadlines
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.prepare import Prepared, RunOptions, check_options, plan_options, planned, prepare, wanted_checks
from gpu_burnin.node.store import Store
from gpu_burnin.run import run_burnin
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.expectations import KEYS, Expectations, expectations_of, parse, parse_arguments
from gpu_burnin.settings.options import OptionError
from gpu_burnin.system import hardware_identity, host
from gpu_burnin.telemetry.discover import Found
from gpu_burnin.telemetry.inventory import InventoryError
from gpu_burnin.telemetry.state import NodeState
from gpu_burnin.types import JSON
from tests.support.report_helpers import BOOT, MACHINE, leave_run
from tests.support.run_helpers import GPUS

FOUND = Found(gpus=GPUS, simulated=False)
STATE = Path("/var/lib/x")
ROOT = Path(__file__).resolve().parents[3]


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
    options = plan_options(RunOptions(config=Config(state_dir=STATE)), FOUND)
    assert {name: options[name] for name in ("power_waves", "wave_dir", "wave_wait_s")} == {
        "power_waves": "always", "wave_dir": "/var/lib/x/power_grant", "wave_wait_s": 1800.0,
    }  # fmt: skip
    fleet = Config(state_dir=STATE, power_waves="granted", wave_wait_s=60.0)
    assert plan_options(RunOptions(config=fleet), FOUND)["power_waves"] == "granted"
    assert plan_options(RunOptions(config=fleet), FOUND)["wave_wait_s"] == 60
    asked = plan_options(RunOptions(config=fleet, waves="never", wave_wait_s=5.0), FOUND)
    assert (asked["power_waves"], asked["wave_wait_s"]) == ("never", 5.0)


def test_what_is_expected_reaches_the_checks() -> None:
    config = Config(state_dir=STATE, expect=Expectations(gpus=2, nccl="2.28.3"))
    asked = Expectations(nvlink_links=0, nccl="2.28.3")
    found = prepared(config, expect=asked)
    assert expectations_of(found.plan.options) == Expectations(gpus=2, nvlink_links=0, nccl="2.28.3")
    assert found.shortfalls == ()
    assert expectations_of(prepared().plan.options) == Expectations()


@pytest.mark.parametrize("where", ["config", "run"])
def test_a_model_that_is_none_is_refused_before_anything_runs(where: str) -> None:
    wrong = Expectations(model="h100-sxm-80gb")
    config = Config(state_dir=STATE, expect=wrong if where == "config" else Expectations())
    with pytest.raises(GpuBurninError, match=r"expect\.model h100-sxm-80gb: .* did you mean h100-sxm5-80gb"):
        check_options(RunOptions(config=config, expect=wrong if where == "run" else Expectations()))


def test_a_run_that_expects_something_else_than_the_configuration_is_no_pass() -> None:
    config = Config(state_dir=STATE, expect=Expectations(gpus=8, power_limit_w=700))
    found = prepared(config, expect=Expectations(gpus=4, power_limit_w=700.0))
    assert expectations_of(found.plan.options).gpus == 4
    assert found.shortfalls == ("the run expects gpus 4, this host's configuration 8",)


HERE = hardware_identity.identity(FOUND.gpus, FOUND.driver, os.uname().release)
RELOADED = {**HERE, "driver": "999.1"}


@pytest.mark.parametrize(
    ("levels", "hardware", "revoked", "stands"),
    [
        (("standard",), HERE, False, True),
        (("extended", "quick"), HERE, False, True),
        ((), HERE, False, False),
        (("quick",), HERE, False, False),
        (("standard",), RELOADED, False, False),
        (("standard",), HERE, True, False),
    ],
)
def test_a_lower_level_takes_nothing_from_a_pass_that_stands_and_makes_none(
    levels: tuple[str, ...],
    hardware: dict[str, JSON],
    revoked: bool,
    stands: bool,
    config: Config,
    statement: Statement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tests of idle nodes are of level quick, where the nodes' own is standard: by the gate as it is."""
    monkeypatch.setattr(host, "machine_id", lambda root: MACHINE)
    monkeypatch.setattr(host, "boot_id", lambda root: BOOT)
    for level in levels:
        leave_run(config, replace(statement, level=level), hardware)
    if revoked:
        Store(config.state_dir).revoke("by hand")
    config = replace(config, level="standard")
    found = prepared(config, level="quick").shortfalls
    assert len(found) == (not stands) and all("no pass of standard stands that is of this boot" in one for one in found)
    fewer = prepared(config, level="quick", gpus=("0",)).shortfalls
    assert len(fewer) == 1 + (not stands), "what else is less stays so"
    assert prepared(config).shortfalls == prepared(config, level="extended").shortfalls == ()


def test_a_revocation_while_a_run_is_prepared_is_none_that_it_may_clear(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may clear is read before the gate is asked whether a pass stands, so it stood when the gate was asked."""
    seen: list[str | None] = []
    read = Store.revoked

    def prepared_last(_: RunOptions) -> Prepared:
        assert seen == [None]
        raise GpuBurninError("enough")

    monkeypatch.setattr(Store, "revoked", lambda store: seen.append(read(store)) or seen[-1])
    monkeypatch.setattr("gpu_burnin.run.prepare", prepared_last)
    with pytest.raises(GpuBurninError, match="enough"):
        run_burnin(RunOptions(config=config))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), Expectations()),
        (("model=h100-sxm5-80gb",), Expectations(model="h100-sxm5-80gb")),
        (("gpus=8", "nvlink_links=0", "mig=true"), Expectations(gpus=8, nvlink_links=0, mig=True)),
        (("power_limit_w=500", "mig=false"), Expectations(power_limit_w=500.0, mig=False)),
        (
            ("driver_version=580.95", "vbios=96.00.89.00.01", "nccl=2.28"),
            Expectations(driver_version="580.95", vbios="96.00.89.00.01", nccl="2.28"),
        ),
    ],
)
def test_the_command_line_says_what_the_configuration_may(words: tuple[str, ...], expected: Expectations) -> None:
    assert parse_arguments(words) == expected
    assert parse(expected.to_json()) == expected


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("gpus",), "'gpus' is not KEY=VALUE; the keys are gpus, model, nvlink_links"),
        (("=8",), "'=8' is not KEY=VALUE"),
        (("gpus=eight",), "gpus must be a whole number of 1 or more, not 'eight'"),
        (("gpus=8", "gpus=4"), "gpus is given twice"),
        (("mig=on",), "mig must be true or false, not 'on'"),
        (("power_limit_w=nan",), "power_limit_w must be watts above 0, such as 500, not 'nan'"),
        (("driver_version=",), "driver_version must be a version, such as '580.95.05', not ''"),
        (("nvlnk_links=0",), "did you mean nvlink_links?"),
    ],
)
def test_a_wrong_word_of_the_command_line_is_named(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(OptionError, match=re.escape(says)):
        parse_arguments(words)


def test_each_key_is_an_option_of_the_role_and_has_words() -> None:
    specs = yaml.safe_load((ROOT / "roles/gpu_burnin/meta/argument_specs.yml").read_text())
    assert tuple(specs["argument_specs"]["main"]["options"]["gpu_burnin_expect"]["options"]) == KEYS
    text = Expectations(8, None, 0, True, 600.5, "580.95.05", "96", "2.28.3").summary()
    assert text == (
        "expected as given: gpus 8, nvlink_links 0, mig on, power_limit_w 600.5, driver_version 580.95.05, vbios 96, "
        "nccl 2.28.3"
    )


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

    monkeypatch.setattr("gpu_burnin.telemetry.discover.read_inventory_in_child", hangs)
    for level in ("quick", "standard"):
        with pytest.raises(GpuBurninError, match="NVML did not answer"):
            prepare(RunOptions(config=Config(state_dir=tmp_path), level=level, backend="cuda"))
    assert asked == [deadlines(60.0).discover_s, deadlines(300.0).discover_s]
