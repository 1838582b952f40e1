"""NVML events through the fake library, the sampler's columns and its tally of events."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_burnin.telemetry.sampler import EventTally, Schedule
from gpu_burnin.telemetry.sampler_columns import Bucket

Run = Callable[..., subprocess.CompletedProcess[str]]
WAIT = """
import json, time
import pynvml
from gpu_burnin.telemetry.events import EventWatch
pynvml.nvmlInit()
watch = EventWatch(pynvml.nvmlDeviceGetHandleByIndex(0))
found, waited_s = [], []
while not waited_s or len(found) < EXPECTED:  # on a slow machine not all come in one wait
    started_s = time.monotonic()
    found += watch.wait(started_s + 0.3)
    waited_s.append(time.monotonic() - started_s)
print(json.dumps([found, list(watch.kinds), watch.why, min(waited_s)]))
"""
COLUMNS = """
import json
import pynvml
from gpu_burnin.telemetry.nvml_reader import Reader
from gpu_burnin.telemetry.sampler_columns import Columns
pynvml.nvmlInit()
columns = Columns(Reader(pynvml.nvmlDeviceGetHandleByIndex(0)))
print(json.dumps([columns.sample(), columns.unsupported, columns.limits()]))
"""
CLOCK = """
import json, os, pathlib, time
import pynvml
from gpu_burnin.telemetry.events import EventWatch
def temperature(gpu):
    return pynvml.nvmlDeviceGetTemperatureV(gpu, pynvml.NVML_TEMPERATURE_GPU)
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
before = len(EventWatch(gpu).wait(time.monotonic() + 0.1)), temperature(gpu)
written = pathlib.Path(os.environ["MUSTER_FAKE_NVML_CLOCK"])
written.touch()
os.utime(written, (time.time() - 60, time.time() - 60))
print(json.dumps([before, temperature(gpu)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "events", "why"),
    [
        ("event@0.05s = xid 79\nevent@0.1s = double_bit_ecc", [["xid", 79], ["ecc_double_bit", 0]], ""),
        ("event@0.1s = single_bit_ecc\nevent@0s = xid 48", [["xid", 48], ["ecc_single_bit", 0]], ""),
        ("event@0.05s = xid 0", [], ""),
        ("gpus = 2\ngpu1.event@0.05s = xid 79", [], ""),
        ("event@5s = xid 79", [], ""),
        ("events_supported = 0\nevent@0s = xid 79", [], "reports no XID events"),
        ("error.nvmlDeviceGetSupportedEventTypes = function_not_found", [], "failed with function_not_found"),
        ("error.nvmlEventSetCreate = memory", [], "failed with memory"),
        ("error.nvmlDeviceRegisterEvents = not_supported", [], "failed with not_supported"),
        ("error.nvmlEventSetWait_v2@1reads = gpu_is_lost\nevent@0s = xid 79", [["xid", 79]], "failed with gpu_is_lost"),
    ],
)
def test_events_come_once_and_waiting_lasts_as_long_as_asked(
    run_python: Run, scenario: str, events: list[list[object]], why: str
) -> None:
    done = run_python(f"gpus = 1\n{scenario}\n", WAIT.replace("EXPECTED", str(len(events))))
    assert done.returncode == 0, done.stderr
    found, kinds, told, waited_s = json.loads(done.stdout)
    assert found == events
    assert why in told
    assert bool(told) == bool(why)
    assert ("xid" in kinds) == (not why or "EventSetWait" in scenario)
    assert waited_s >= 0.3


def test_the_time_of_a_scenario_may_count_from_a_file(
    run_python: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_FAKE_NVML_CLOCK", str(tmp_path / "clock"))
    ramp = "temperature_c = 40\ntemperature_c@0.001s = 140 over 100s\nevent@0.001s = xid 79\n"
    done = run_python(f"gpus = 1\n{ramp}", CLOCK)
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert before == [0, 40]
    # By the file's own time, whenever it is seen.
    assert 99 <= after < 140


def test_a_storm_of_events_does_not_keep_the_samples_from_being_taken(run_python: Run) -> None:
    storm = "".join("event@0s = xid 13\n" for _ in range(400))
    done = run_python(f"gpus = 1\n{storm}", WAIT.replace("EXPECTED", "1"))
    found, _, _, waited_s = json.loads(done.stdout)
    assert len(found) == 200
    assert waited_s >= 0.3


def test_the_schedule_does_not_drift_and_every_slot_is_taken_or_missed() -> None:
    schedule, chance = Schedule(1000.0, 0.1), random.Random(1)
    now_s, missed = 1000.0, 0
    for taken in range(1, 5001):
        now_s += chance.choice((0.01, 0.05, 0.0999, 0.11, 0.35, 2.0))  # the work of one slot
        due_s, late = schedule.following(now_s)
        missed += late
        assert due_s == pytest.approx(1000.0 + 0.1 * (taken + missed))
        assert now_s <= due_s + 1e-6
        assert due_s - now_s <= 0.1 + 1e-6
        now_s = due_s
    assert missed > 5000


def test_first_events_are_told_at_once_and_repeated_ones_counted() -> None:
    tally = EventTally()
    first = tally.add("xid", 79, 1.0)
    assert first is not None
    assert (first["kind"], first["data"], first["count"], first["t_s"]) == ("xid", 79, 1, 1.0)
    assert tally.add("xid", 79, 1.1) is None
    assert tally.add("xid", 79, 1.2) is None
    assert tally.add("xid", 48, 1.3) is not None
    assert [(one["data"], one["count"]) for one in tally.repeated(2.0)] == [(79, 2)]
    assert tally.repeated(3.0) == []


def test_a_bucket_keeps_extremes_and_counts_each_bit() -> None:
    bucket = Bucket()
    for power_w, bits in ((70.0, 0x4), (90.0, 0x44), (None, 0x4), (80.0, None)):
        bucket.add({"power_w": power_w, "clocks_event_reasons": bits})
    message = bucket.message(5.0)
    assert message["columns"] == {"power_w": [70.0, 80.0, 90.0]}
    assert (message["reasons"], message["bits"], message["samples"]) == (0x44, {"4": 3, "64": 1}, 4)
    empty = Bucket()
    empty.add({"clocks_event_reasons": None})
    assert empty.message(1.0)["reasons"] is None


@pytest.mark.parametrize(
    ("sums", "kept"),
    [
        ((10.0, 20.0, 30.0), [10.0, 20.0, 30.0]),
        # The time of a bucket is its end, and the sum at the end is not known.
        ((10.0, 20.0, None), None),
        ((10.0, None, 30.0), [30.0, 30.0, 30.0]),
    ],
)
def test_a_bucket_has_the_sum_of_its_end_or_none(sums: tuple[float | None, ...], kept: list[float] | None) -> None:
    bucket = Bucket()
    for energy_mj in sums:
        bucket.add({"energy_mj": energy_mj})
    assert bucket.message(5.0)["columns"].get("energy_mj") == kept


def test_values_an_older_driver_has_under_other_names(run_python: Run) -> None:
    done = run_python(
        "gpus = 1\ntemperature_c = 44\nclocks_event_reasons = 0x4\nutilization_gpu_percent = 97\npcie_generation = 4\n"
        "error.nvmlDeviceGetTemperatureV = function_not_found\n"
        "error.nvmlDeviceGetCurrentClocksEventReasons = function_not_found\n"
        "error.field_82 = not_supported\nerror.field_194 = not_supported\n"
        "error.nvmlDeviceGetMarginTemperature = timeout\n",
        COLUMNS,
    )
    sample, unsupported, limits = json.loads(done.stdout)
    assert (sample["temperature_c"], sample["clocks_event_reasons"], sample["utilization_percent"]) == (44, 4, 97)
    assert sample["pcie_generation"] == 4
    # What fails for once is tried again; what driver and GPU do not know at all is left out.
    assert sample["temperature_margin_c"] is None
    assert "temperature_memory_c" not in sample
    assert unsupported["temperature_memory_c"] == "not_supported"
    assert limits == {
        "slowdown_c": 89, "memory_max_c": 95, "pcie_generation": 5, "clock_sm_max_mhz": 1980, "power_limit_w": 700,
        "power_default_w": 700,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("event = xid 79", "needs a time"),
        ("event@2reads = xid 79", "needs a time"),
        ("event@1s = xid", "must name"),
        ("event@1s = triple_bit_ecc", "must name"),
        ("temperature_c@ = 3", "no number behind @"),
        ("temperature_c@-1s = 3", "no number behind @"),
        ("temperature_c@1m = 3", "neither s nor reads"),
        ("temperature_c@1.5reads = 3", "neither s nor reads"),
        ("temperature_c = 80 over 3s", "without a time"),
        ("temperature_c@1s = 80 over 3", "must end with"),
        ("temperature_c@1s = 80 over 0s", "must end with"),
        ("driver_version@1s = x over 3s", "no number"),
        ("hang.nvmlDeviceGetPowerUsage = long", "number of seconds"),
        ("temperature_cc@1s = 3", "unknown key"),
        ("memory_bytes = many", "must hold a number"),
        ("pci_device_id = h100", "must hold a number"),
        ("compute_capability = nine", "must look like 9.0"),
        ("model = h1000", "unknown model"),
        ("gpus = 17", "more than 16 GPUs"),
    ],
)
def test_wrong_lines_about_time_are_refused_with_their_number(run_python: Run, line: str, complaint: str) -> None:
    done = run_python(f"# comment\n{line}\n", "import pynvml; pynvml.nvmlInit(); print('began')")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "scenario:2: the line" in done.stderr
    assert complaint in done.stderr


def test_values_change_with_time_and_with_readings(run_python: Run) -> None:
    code = """
import json, time
import pynvml as n
began_s = time.monotonic()
n.nvmlInit()
ready_s = time.monotonic()
gpus = [n.nvmlDeviceGetHandleByIndex(number) for number in range(2)]
temperature = lambda gpu: n.nvmlDeviceGetTemperatureV(gpu, 0)
print([n.nvmlDeviceGetPcieReplayCounter(gpus[0]) for _ in range(3)], n.nvmlDeviceGetPcieReplayCounter(gpus[1]))
def read(number):
    least_s = time.monotonic() - ready_s
    value = temperature(gpus[number])
    return least_s, time.monotonic() - began_s, value
readings = [[read(0), read(1)]]
while readings[-1][0][0] < 0.4:
    time.sleep(0.01)
    readings.append([read(0), read(1)])
print(json.dumps(readings))
"""
    done = run_python(
        "gpus = 2\npcie_replay@2reads = 7\ntemperature_c@0.2s = 50\ngpu1.temperature_c = 20\n"
        "gpu1.temperature_c@0.1s = 80 over 0.2s\n",
        code,
    )
    counts, readings = done.stdout.splitlines()
    assert counts == "[0, 0, 7] 0", done.stderr
    # Each with the least and the greatest age that the scenario may have had.
    for jump, rise in json.loads(readings):
        lines = ((jump, 31, 50, 0.2, 0.2), (rise, 20, 80, 0.1, 0.3))
        for (least_s, most_s, value), before, after, from_s, to_s in lines:
            assert before <= value <= after
            assert most_s >= from_s or value == before
            assert least_s < to_s or value == after
    assert [value for _, _, value in json.loads(readings)[-1]] == [50, 80]


def test_boards_of_other_makes(run_python: Run) -> None:
    code = """
import pynvml as n
n.nvmlInit()
for number in range(2):
    gpu = n.nvmlDeviceGetHandleByIndex(number)
    pci = n.nvmlDeviceGetPciInfo(gpu)
    print(n.nvmlDeviceGetName(gpu), hex(pci.pciDeviceId), hex(pci.pciSubSystemId), n.nvmlDeviceGetMemoryInfo(gpu).total,
          n.nvmlDeviceGetVbiosVersion(gpu), n.nvmlDeviceGetCudaComputeCapability(gpu))
"""
    done = run_python(
        "gpus = 2\ngpu1.name = NVIDIA A100-SXM4-40GB\ngpu1.pci_device_id = 0x20B0\ngpu1.pci_subsystem_id = 0x1450\n"
        "gpu1.memory_bytes = 42949672960\ngpu1.vbios_version = 92.00.1\ngpu1.compute_capability = 8.0\n",
        code,
    )
    assert done.stdout.splitlines() == [
        "NVIDIA H100 80GB HBM3 0x233010de 0x16c110de 85520809984 96.00.89.00.01 (9, 0)",
        "NVIDIA A100-SXM4-40GB 0x20b010de 0x145010de 42949672960 92.00.1 (8, 0)",
    ], done.stderr
