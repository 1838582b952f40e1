"""GPUs that are new to a host ask for an extended burn-in, once, and make a run one where the host wants it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin import run as run_module
from gpu_burnin.engine.plan import make_plan
from gpu_burnin.hardware import load_reasons
from gpu_burnin.judge.verdict import judge
from gpu_burnin.node.known_gpus import (
    CODE,
    KNOWN_GPUS,
    KnownGpu,
    RecordError,
    makes_known,
    new_gpus,
    read_known,
    remember,
    wanted_notice,
)  # fmt: skip
from gpu_burnin.node.prepare import RunOptions, planned, prepare
from gpu_burnin.settings.config import LEAST_EXTENDED_S, Config
from gpu_burnin.settings.durations import parse_duration, write_duration
from gpu_burnin.telemetry.discover import Found
from gpu_burnin.types import Gpu
from tests.support.run_helpers import GPUS, healthy, plan

AT = "2026-01-02T03:05:05Z"
FOUND = Found(gpus=GPUS, simulated=False)


def known(state: Path, *gpus: Gpu, simulated: bool = False) -> tuple[KnownGpu, ...]:
    return remember(state, gpus, run_id="r", passed_at=AT, simulated=simulated)


def test_nobody_is_known_at_first_and_who_passed_is_known_from_then_on(tmp_path: Path) -> None:
    assert read_known(tmp_path) == ()
    assert new_gpus(GPUS, (), simulated=False) == GPUS
    known(tmp_path, GPUS[0])
    assert new_gpus(GPUS, read_known(tmp_path), simulated=False) == (GPUS[1],)
    known(tmp_path, *GPUS)
    assert new_gpus(GPUS, read_known(tmp_path), simulated=False) == ()
    assert len(read_known(tmp_path)) == 2, "one entry for each"
    assert (tmp_path / KNOWN_GPUS).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "back", [replace(GPUS[0], serial="999"), replace(GPUS[0], uuid="GPU-x"), replace(GPUS[0], serial="")]
)
def test_a_board_that_comes_back_with_another_serial_or_uuid_is_new(back: Gpu, tmp_path: Path) -> None:
    known(tmp_path, GPUS[0])
    assert new_gpus([back], read_known(tmp_path), simulated=False) == (back,)


def test_a_gpu_that_was_away_and_one_in_another_slot_are_still_known(tmp_path: Path) -> None:
    known(tmp_path, *GPUS)
    known(tmp_path, GPUS[1])  # GPU 0 was out of the machine
    moved = replace(GPUS[0], index=5, pci_bus_id="0000:99:00.0", vbios="97.00")
    assert new_gpus([moved], read_known(tmp_path), simulated=False) == ()


def test_without_a_serial_the_uuid_decides(tmp_path: Path) -> None:
    nameless = replace(GPUS[0], serial="")
    known(tmp_path, nameless)
    assert new_gpus([nameless, replace(nameless, uuid="GPU-x")], read_known(tmp_path), simulated=False) == (
        replace(nameless, uuid="GPU-x"),
    )


def test_what_passed_in_simulation_is_not_known_for_real_nor_replaces_it(tmp_path: Path) -> None:
    known(tmp_path, *GPUS, simulated=True)
    assert new_gpus(GPUS, read_known(tmp_path), simulated=True) == ()
    assert new_gpus(GPUS, read_known(tmp_path), simulated=False) == GPUS
    known(tmp_path, *GPUS)
    known(tmp_path, *GPUS, simulated=True)
    assert new_gpus(GPUS, read_known(tmp_path), simulated=False) == ()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": "other/v1", "gpus": []}', '{"schema": "muster-known-gpus/v1", "gpus": [{"x": 1}]}'],
)
def test_a_damaged_record_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / KNOWN_GPUS).write_text(text)
    with pytest.raises(RecordError, match=f"{tmp_path}/{KNOWN_GPUS} cannot be read .*remove it") as caught:
        read_known(tmp_path)
    assert "\n" not in str(caught.value)
    notice = wanted_notice(GPUS, None, str(caught.value))
    assert notice is not None
    assert f"{KNOWN_GPUS} cannot be read" in notice.message
    known(tmp_path, GPUS[0])
    assert [entry.uuid for entry in read_known(tmp_path)] == ["GPU-0"], "it is begun anew"


def test_a_damaged_record_does_not_keep_a_node_from_being_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / KNOWN_GPUS).write_text("{")
    monkeypatch.setattr("gpu_burnin.node.prepare.discover", lambda _: FOUND)
    made = prepare(RunOptions(config=Config(state_dir=tmp_path), backend="cpu"))
    assert made.new_gpus == GPUS
    assert "cannot be read" in made.record_problem
    (tmp_path / KNOWN_GPUS).unlink()
    assert prepare(RunOptions(config=Config(state_dir=tmp_path), backend="cpu")).record_problem == ""


def test_only_a_whole_extended_run_makes_a_gpu_known() -> None:
    def made(level: str, **settings: object) -> bool:
        return makes_known(make_plan(level, backend="cuda", gpus=GPUS, seed=1, **settings))  # type: ignore[arg-type]

    assert made("extended")
    assert made("extended", duration_s=LEAST_EXTENDED_S)
    assert not made("extended", duration_s=LEAST_EXTENDED_S - 1)
    assert not made("standard")
    assert not made("extended", checks=["state"])
    assert not made("extended", inject=["gemm:nan"])
    # In MIG mode no GPU reaches another, and else its burn-in would be wanted for ever.
    names = ("state", "sm", "gemm", "hbm", "pcie", "power")
    without_links = make_plan("extended", backend="cuda", gpus=GPUS, seed=1, checks=names)
    assert not makes_known(without_links)
    assert makes_known(replace(without_links, gpus=tuple(replace(gpu, instances=()) for gpu in GPUS)))


def test_the_warning_names_gpu_serial_and_command_and_holds_nothing_back() -> None:
    notice = wanted_notice(GPUS, 5400.0)
    assert notice is not None
    assert "GPU 0 (serial 1650), GPU 1 (serial 1651) have not passed" in notice.message
    assert notice.message.endswith("run once: `gpu-burnin run --level extended --for 90m`")
    assert notice.code in load_reasons()
    judged, without = (judge(replace(healthy(), notices=found)) for found in ((notice,), ()))
    assert (judged.verdict, judged.reasons, judged.action) == (without.verdict, without.reasons, without.action)
    assert judged.notices == (notice, *without.notices)
    one = wanted_notice((replace(GPUS[0], serial=""),))
    assert one is not None
    assert (one.gpu, one.code) == ("GPU-0", CODE)
    assert "GPU 0 (GPU-0) has not passed" in one.message
    assert "--for 2h" in one.message
    assert wanted_notice(()) is None
    many = wanted_notice(tuple(replace(GPUS[0], index=index, serial=str(index)) for index in range(8)))
    assert many is not None
    assert many.message.startswith("8 GPUs (0, 1, 2, 3, 4, 5, 6, 7) have not passed")
    assert "'serial': '7'" in str(many.details)


def test_a_new_gpu_makes_a_run_extended_where_the_host_wants_it_and_nobody_said_otherwise(tmp_path: Path) -> None:
    config = Config(state_dir=tmp_path, extended_for_new_s=5400.0)

    def level(seen: tuple[KnownGpu, ...] = (), config: Config = config, **asked: object) -> tuple[str, float]:
        made = planned(RunOptions(config=config, **asked), FOUND, "cuda", seen).plan  # type: ignore[arg-type]
        return made.level, made.total_s

    everyone = known(tmp_path, *GPUS)
    assert level() == ("extended", 5400)
    assert level(everyone) == ("standard", 300)
    assert level(everyone[:1]) == ("extended", 5400)
    assert level(everyone[:1], gpus=("0",)) == ("standard", 300), "the new one is not tested"
    assert level(level="quick") == ("quick", 60)
    assert level(duration_s=600.0) == ("extended", 600)
    assert level(config=Config(state_dir=tmp_path)) == ("standard", 300), "only the warning"


def test_new_gpus_of_a_run_are_those_that_it_tests(tmp_path: Path) -> None:
    options = RunOptions(config=Config(state_dir=tmp_path), gpus=("1",))
    assert planned(options, FOUND, "cuda", ()).new_gpus == (GPUS[1],)


@pytest.mark.parametrize("text", ["90s", "30m", "2h", "1d", "0s"])
def test_durations_are_written_as_they_are_read(text: str) -> None:
    assert parse_duration(write_duration(parse_duration(text))) == parse_duration(text)
    assert write_duration(7200.4) == "2h"


def test_the_record_is_whole_json(tmp_path: Path) -> None:
    known(tmp_path, *GPUS)
    document = json.loads((tmp_path / KNOWN_GPUS).read_text())
    assert document["gpus"][0] == {
        "serial": "1650", "uuid": "GPU-0", "run_id": "r", "passed_at": AT, "simulated": False,
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == [KNOWN_GPUS], "nothing half-written is left"


def test_a_plan_of_the_helpers_is_not_extended() -> None:
    assert not makes_known(plan())


@pytest.mark.parametrize(
    ("level", "inject", "warns"), [("quick", (), True), ("extended", (), False), ("quick", ("gemm:nan",), False)]
)
def test_a_run_warns_of_new_gpus_unless_it_is_what_they_want(
    level: str, inject: tuple[str, ...], warns: bool, tmp_path: Path
) -> None:
    options = RunOptions(config=Config(state_dir=tmp_path), level=level, inject=inject)
    found = run_module._notices(options, planned(options, FOUND, "cuda", ()))
    assert [notice.code for notice in found] == ([CODE] if warns else [])
    everyone = known(tmp_path, *GPUS)
    assert run_module._notices(options, planned(options, FOUND, "cuda", everyone)) == ()
