"""Counters over a run, and how the sampler reads them from the fake NVML."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from gpu_burnin.telemetry.counters import UNITS, CounterTrack, Reading, base_name

Run = Callable[..., subprocess.CompletedProcess[str]]
READ = """
import json
import pynvml
from gpu_burnin.telemetry.counters_nvml import CounterReader
from gpu_burnin.telemetry.nvml_reader import Reader
pynvml.nvmlInit()
reader = CounterReader(Reader(pynvml.nvmlDeviceGetHandleByIndex(0)), pynvml.nvmlSystemGetDriverVersion())
print(json.dumps(reader.read()))
"""
NOT_SUPPORTED = "not_supported"


def read(run_python: Run, scenario: str) -> dict[str, Reading]:
    done = run_python(f"gpus = 1\n{scenario}\n", READ)
    assert done.returncode == 0, done.stderr
    found: dict[str, Reading] = json.loads(done.stdout)
    return found


def result(*readings: dict[str, Reading], complete: bool = True) -> list[tuple[int | None, int | None, str]]:
    track = CounterTrack()
    for reading in readings:
        track.feed(reading)
    return [(counter.before, counter.after, counter.why) for counter in track.result("GPU-0", complete)]


@pytest.mark.parametrize(
    ("readings", "wanted"),
    [
        ([{"pcie_replays": 3}], (3, 3, "")),
        ([{"pcie_replays": 3}, {}, {"pcie_replays": 9}, {}], (3, 9, "")),
        ([{"pcie_replays": 3}, {"pcie_replays": 1}], (3, 1, "fell from 3 to 1")),
        ([{"pcie_replays": 0}, {"pcie_replays": 7}, {"pcie_replays": 0}], (0, 0, "fell from 7 to 0")),
        ([{"pcie_replays": 3}, {"pcie_replays": "timeout"}], (3, None, "timeout")),
        ([{"pcie_replays": "timeout"}, {"pcie_replays": 3}], (None, 3, "timeout")),
        ([{"pcie_replays": NOT_SUPPORTED}], (None, None, NOT_SUPPORTED)),
    ],
)
def test_a_counter_over_a_run(readings: list[dict[str, Reading]], wanted: tuple[int | None, int | None, str]) -> None:
    assert result(*readings) == [wanted]


def test_a_sampler_that_ended_early_leaves_its_last_reading_marked() -> None:
    ((before, after, why),) = result({"pcie_replays": 3}, {"pcie_replays": 4}, complete=False)
    assert (before, after) == (3, 4)
    assert "ended early" in why


def test_counters_come_in_a_fixed_order_and_single_links_only_where_they_changed() -> None:
    track = CounterTrack()
    track.feed({"nvlink_replays_link1": 0, "nvlink_replays_link0": 2, "energy_mj": 5, "nvlink_replays": 2})
    track.feed({"nvlink_replays_link1": 4, "nvlink_replays": 6})
    counters = track.result("GPU-0", complete=True)
    assert [(counter.name, counter.delta, counter.unit) for counter in counters] == [
        ("nvlink_replays", 4, "replays"),
        ("nvlink_replays_link1", 4, "replays"),
        ("energy_mj", 0, "mJ"),
    ]


def test_names_of_links() -> None:
    assert base_name("nvlink_replays_link17") == "nvlink_replays"
    assert base_name("nvlink_replays") == "nvlink_replays"


def test_every_counter_of_a_healthy_gpu_is_read(run_python: Run) -> None:
    found = read(run_python, "")
    assert {base_name(name) for name in found} == set(UNITS)
    unread = {name for name, value in found.items() if isinstance(value, str)}
    # Page retirement ended with Volta, the receive errors came with NVLink 5.
    assert unread == {"retired_single_bit", "retired_double_bit", "nvlink_receive_errors"}
    assert "nvlink_replays_link17" in found


def test_every_counter_reads_its_own_value(run_python: Run) -> None:
    lines = {
        "ecc_corrected_volatile": "ecc_volatile_corrected_dram",
        "ecc_corrected_volatile_sram": "ecc_volatile_corrected_sram",
        "ecc_uncorrected_volatile": "ecc_volatile_uncorrected_dram",
        "ecc_uncorrected_volatile_sram": "ecc_volatile_uncorrected_sram",
        "ecc_corrected_aggregate": "ecc_aggregate_corrected_dram",
        "ecc_corrected_aggregate_sram": "ecc_aggregate_corrected_sram",
        "ecc_uncorrected_aggregate": "ecc_aggregate_uncorrected_dram",
        "ecc_uncorrected_aggregate_sram": "ecc_aggregate_uncorrected_sram",
        "remapped_corrected": "remapped_corrected",
        "remapped_uncorrected": "remapped_uncorrected",
        "retired_pages_single_bit": "retired_single_bit",
        "retired_pages_double_bit": "retired_double_bit",
        "pcie_replay": "pcie_replays",
        "pcie_correctable_errors": "pcie_correctable_errors",
        "pcie_nonfatal_errors": "pcie_nonfatal_errors",
        "pcie_fatal_errors": "pcie_fatal_errors",
        "nvlink_replay": "nvlink_replays",
        "nvlink_recovery": "nvlink_recoveries",
        "nvlink_recovery_failed": "nvlink_failed_recoveries",
        "nvlink_crc": "nvlink_crc_errors",
        "throttle_power_ns": "throttle_power_ns",
        "throttle_thermal_ns": "throttle_thermal_ns",
        "throttle_board_limit_ns": "throttle_board_limit_ns",
        "throttle_reliability_ns": "throttle_reliability_ns",
        "throttle_sw_thermal_ns": "throttle_sw_thermal_ns",
        "throttle_hw_thermal_ns": "throttle_hw_thermal_ns",
        "throttle_power_brake_ns": "throttle_power_brake_ns",
        "energy_mj": "energy_mj",
    }
    values = {key: 100 + number for number, key in enumerate(lines)}
    scenario = "".join(f"{key} = {value}\n" for key, value in values.items())
    found = read(run_python, f"{scenario}remap_pending = yes\nremap_failure = no\nretired_pages_supported = yes\n")
    assert {name: found[name] for name in lines.values()} == {name: values[key] for key, name in lines.items()}
    assert (found["remap_pending"], found["remap_failure"]) == (1, 0)
    assert (found["nvlink_replays_link0"], found["nvlink_replays_link1"]) == (values["nvlink_replay"], 0)


def test_nvlink_5_has_other_counters_and_the_old_ones_are_not_zero(run_python: Run) -> None:
    found = read(run_python, "nvlink_version = 7\nnvlink_recovery = 3\nnvlink_receive_errors = 4\n")
    assert (found["nvlink_recoveries"], found["nvlink_receive_errors"]) == (3, 4)
    assert (found["nvlink_replays"], found["nvlink_crc_errors"]) == (NOT_SUPPORTED, NOT_SUPPORTED)


def test_a_gpu_without_nvlink_has_no_nvlink_counters(run_python: Run) -> None:
    found = read(run_python, "nvlink_links = 0\n")
    assert {value for name, value in found.items() if name.startswith("nvlink")} == {NOT_SUPPORTED}


def test_links_that_are_down_count_nothing(run_python: Run) -> None:
    found = read(run_python, "nvlink_down = 0, 5\nnvlink_replay = 9\n")
    assert found["nvlink_replays"] == 0
    assert {"nvlink_replays_link0", "nvlink_replays_link5"}.isdisjoint(found)
    assert "nvlink_replays_link17" in found


@pytest.mark.parametrize(("driver", "known"), [("575.57.08", False), ("580.65.06", False), ("580.82.07", True)])
def test_field_ids_that_meant_something_else_are_not_read_from_older_drivers(
    run_python: Run, driver: str, known: bool
) -> None:
    found = read(run_python, f"driver_version = {driver}\nthrottle_hw_thermal_ns = 5\n")
    assert found["throttle_hw_thermal_ns"] == (5 if known else "driver_too_old")


def test_field_values_stand_in_for_the_call_that_goes_with_cuda_14(run_python: Run) -> None:
    gone = "error.nvmlDeviceGetViolationStatus = function_not_found\nthrottle_thermal_ns = 6\n"
    assert read(run_python, gone)["throttle_thermal_ns"] == 6
    failing = gone.replace("function_not_found", "timeout")
    assert read(run_python, failing)["throttle_thermal_ns"] == "timeout"


def test_one_unreadable_link_makes_the_sum_unreadable(run_python: Run) -> None:
    # The first of the links' readings is for link 0: the second fails.
    found = read(run_python, "error.nvmlDeviceGetNvLinkErrorCounter@1reads = timeout\n")
    assert found["nvlink_replays"] == "timeout"
