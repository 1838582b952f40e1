"""Each model of skus.yaml under each driver branch, from recordings: healthy passes, each fault has its own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pynvml
import pytest

from gpu_burnin.checks.state.check import mig_coverage
from gpu_burnin.checks.state.node import judge_state
from gpu_burnin.checks.state.rules import Expected, HostLink
from gpu_burnin.hardware import Sku, load_skus
from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.system.codec import to_json
from gpu_burnin.telemetry.counters import CounterTrack
from gpu_burnin.telemetry.counters_nvml import CounterReader
from gpu_burnin.telemetry.findings import GpuSeries, Source, TelemetryFindings
from gpu_burnin.telemetry.node_links import decide
from gpu_burnin.telemetry.nvml import Nvml, read_inventory
from gpu_burnin.telemetry.nvml_reader import Reader
from gpu_burnin.telemetry.sampler_columns import Columns
from gpu_burnin.telemetry.sampling_record import SAMPLES
from gpu_burnin.telemetry.simulated_nvml.library import installed
from gpu_burnin.telemetry.simulated_nvml.node import uuid
from gpu_burnin.telemetry.simulated_nvml.profiles import Profile, models, profile
from gpu_burnin.telemetry.state import GpuState, Unsupported, to_gpu
from gpu_burnin.types import Reason
from tests.support.coverages import coverage
from tests.support.observed import observed

SKUS = load_skus().skus
CASES = [(model, branch) for model, data in models().items() for branch in data["branches"]]
BOARDS = [(model, branch) for model, branch in CASES if SKUS[model].fabric]


def read(*gpus: Profile) -> tuple[GpuState, ...]:
    """What gpu_burnin reads of these GPUs."""
    with installed(gpus), Nvml() as nvml:
        return read_inventory(nvml)


def judged(states: Sequence[GpuState], said: Expectations | None = None, **expected: Any) -> tuple[Reason, ...]:
    """What is against a node of these GPUs, whose NVLinks were decided by its shape unless somebody said."""
    told = said or Expectations()
    links = decide(states, told, load_skus())
    return judge_state(states, Expected(configured=told, links=links, gpu_count=len(states), **expected))


def codes(*gpus: Profile, **said: Any) -> list[str]:
    """Codes of the reasons against a node of these GPUs, of which the operator said something."""
    return [reason.code for reason in judged(read(*gpus), Expectations(**said))]


@cache
def healthy(model: str, branch: str) -> GpuState:
    """The reading of a healthy GPU, number 0 of its node."""
    return read(profile(model, branch))[0]


def test_every_model_is_recorded() -> None:
    assert set(models()) == set(SKUS)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "branch"), CASES)
def test_a_healthy_node_passes(model: str, branch: str) -> None:
    for count in models()[model]["gpus"]:
        states = read(*[profile(model, branch)] * count)
        assert judged(states) == ()
        found = [load_skus().find(state.pci_device_id, state.pci_subsystem_id) for state in states]
        assert {sku.key for sku in found if sku} == {model}
        assert len({state.uuid for state in states}) == count


@pytest.mark.parametrize(("model", "branch"), BOARDS)
def test_one_gpu_of_a_board_given_to_a_machine_without_its_switches_passes(model: str, branch: str) -> None:
    alone = profile(model, branch, alone=True)
    assert codes(alone) == []
    assert codes(alone, nvlink_links=0) == []
    assert "NVLINK_DOWN" in codes(alone, nvlink_links=SKUS[model].nvlink_links)
    assert codes(alone, alone).count("NVLINK_DOWN") == 2, "two have something to be linked with"


@pytest.mark.parametrize("no_fabric", ["not_supported", {"state": 0}])
def test_four_gpus_linked_without_switches_have_no_fabric_and_pass(no_fabric: Any) -> None:
    for model, branch in BOARDS:
        direct = profile(model, branch).changed(fabric=no_fabric)
        assert codes(*[direct] * 4) == [], (model, branch)


# --- faults: code, from which branch on NVML can tell, and the GPU that has it (None: this model cannot) ---

Fault = tuple[str, int, Callable[[Profile, Sku], Profile | None]]


def _calls(code: str, calls: dict[str, Any], since: int = 0) -> Fault:
    return code, since, lambda gpu, _: gpu.changed(calls=calls)


def _field(code: str, field: int, value: Any, since: int) -> Fault:
    return code, since, lambda gpu, _: gpu.changed(fields={field: value})


def _fabric(since: int = 0, **changes: int) -> Fault:
    def faulty(gpu: Profile, sku: Sku) -> Profile | None:
        return gpu.changed(fabric=changes) if sku.fabric_probe else None

    return "FABRIC_NOT_READY", since, faulty


def _no_fabric(gpu: Profile, sku: Sku) -> Profile | None:
    return gpu.changed(fabric="not_supported") if sku.fabric_probe else None


def _link_down(gpu: Profile, sku: Sku) -> Profile | None:
    links = gpu.links or {}
    linked = links.get("active", links.get("count", 0))  # cards are recorded without their bridges
    return gpu.changed(links={**links, "active": linked - 1}) if linked else None


def _failed_recoveries(gpu: Profile, sku: Sku) -> Profile | None:
    return gpu.changed(fields={214: 1}) if 214 in gpu.fields and sku.nvlink_links else None


def _mig(*modes: int) -> Callable[[Profile, Sku], Profile | None]:
    return lambda gpu, sku: gpu.changed(calls={"nvmlDeviceGetMigMode": [*modes]}) if sku.mig_capable else None


def _less_memory(gpu: Profile, sku: Sku) -> Profile | None:
    if "memory_bytes" in sku.unsupported:
        return None
    total = gpu.calls["nvmlDeviceGetMemoryInfo"]["total"] * 7 // 8
    return gpu.changed(calls={"nvmlDeviceGetMemoryInfo": {"total": total}})


def _less_power(gpu: Profile, sku: Sku) -> Profile | None:
    if "power_limit_w" in sku.unsupported:
        return None
    less = gpu.calls["nvmlDeviceGetPowerManagementDefaultLimit"] - 50_000
    return gpu.changed(calls={"nvmlDeviceGetPowerManagementLimit": less, "nvmlDeviceGetEnforcedPowerLimit": less})


def _no_rows(gpu: Profile, sku: Sku) -> Profile | None:
    """Of models that retire pages instead, NVML has no rows to tell of."""
    unknown = {"nvmlDeviceGetRemappedRows": "not_supported"}
    return None if "remap_failure" in sku.unsupported else gpu.changed(calls=unknown)


def _narrow(gpu: Profile, _: Sku) -> Profile | None:
    width = gpu.calls["nvmlDeviceGetCurrPcieLinkWidth"] // 2
    return gpu.changed(calls={"nvmlDeviceGetCurrPcieLinkWidth": width}) if width else None


def _slow_link(gpu: Profile, sku: Sku) -> Profile:
    return gpu.changed(calls={"nvmlDeviceGetMaxPcieLinkGeneration": sku.pcie_generation - 1})


_ECC_OFF = {
    "nvmlDeviceGetEccMode": [0, 0],
    "nvmlDeviceGetMemoryErrorCounter": "not_supported",
    "nvmlDeviceGetMemoryErrorCounter 1 1 2": "not_supported",
    "nvmlDeviceGetSramEccErrorStatus": "not_supported",
}
_COUNTER = "nvmlDeviceGetMemoryErrorCounter"
_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"

FAULTS: dict[str, Fault] = {
    "fell off the bus": _calls("GPU_LOST", {"*": "gpu_is_lost"}),
    "gives no handle": _calls("GPU_LOST", {"nvmlDeviceGetHandleByIndex_v2": "gpu_is_lost"}),
    "unknown model": _calls("GPU_UNKNOWN_SKU", {"ids": (0xFFFF, 0x1234)}),
    "uncorrectable DRAM error": _calls("ECC_UNCORRECTED", {f"{_COUNTER} 1 0 2": 1}),
    "uncorrectable SRAM error": _calls("ECC_UNCORRECTED", {f"{_COUNTER} 1 0 7": 1}),
    "many SRAM errors in its life": _calls("ECC_UNCORRECTED", {f"{_COUNTER} 1 1 7": 5}),
    "SRAM threshold": _calls("ECC_UNCORRECTED", {"nvmlDeviceGetSramEccErrorStatus": {"bThresholdExceeded": 1}}, 550),
    "ECC off": ("ECC_DISABLED", 0, lambda gpu, sku: gpu.changed(calls=_ECC_OFF) if sku.ecc else None),
    "ECC off after a reset": _calls("ECC_PENDING", {"nvmlDeviceGetEccMode": [1, 0]}),
    "remap pending": _calls("REMAP_PENDING", {"nvmlDeviceGetRemappedRows": [0, 1, 1, 0]}),
    "remap failed": _calls("REMAP_FAILED", {"nvmlDeviceGetRemappedRows": [0, 1, 0, 1]}),
    "too many rows remapped": _calls("REMAP_FAILED", {"nvmlDeviceGetRemappedRows": [0, 513, 0, 0]}),
    "InfoROM": _calls("INFOROM_CORRUPT", {"nvmlDeviceValidateInforom": "corrupted_inforom"}),
    "channel repair pending": _calls(
        "REPAIR_PENDING", {"nvmlDeviceGetRepairStatus": {"bChannelRepairPending": 1, "bTpcRepairPending": 0}}, 580
    ),
    "TPC repair pending": _calls(
        "REPAIR_PENDING", {"nvmlDeviceGetRepairStatus": {"bChannelRepairPending": 0, "bTpcRepairPending": 1}}, 580
    ),
    "unrepairable memory": _calls(
        "MEMORY_UNREPAIRABLE", {"nvmlDeviceGetUnrepairableMemoryFlag_v1": {"unrepairableMemory": 1}}, 580
    ),
    "driver asks for a reset": _field("RECOVERY_ACTION", 230, 1, 570),
    "driver asks for something new": _field("RECOVERY_ACTION", 230, 99, 570),
    "calls want a reset": _calls("RECOVERY_ACTION", {"nvmlDeviceGetClockInfo 1": "reset_required"}),
    "MIG on": ("MIG_MISMATCH", 0, _mig(1, 1)),
    "MIG on after a reset": ("MIG_MISMATCH", 0, _mig(0, 1)),
    "power limit": ("POWER_LIMIT", 0, _less_power),
    "hardware slowdown": _calls("THROTTLED", {_REASONS: 0x08}),
    "software thermal slowdown": _calls("THROTTLED", {_REASONS: 0x20}),
    "hardware thermal slowdown": _calls("THROTTLED", {_REASONS: 0x48}),
    "power brake": _calls("THROTTLED", {_REASONS: 0x88}),
    "less memory": ("MEMORY_REDUCED", 0, _less_memory),
    "narrow PCIe link": ("PCIE_DEGRADED", 0, _narrow),
    "slow PCIe link": ("PCIE_DEGRADED", 0, _slow_link),
    "fatal PCIe errors": _field("PCIE_DEGRADED", 180, 1, 0),
    "link down": ("NVLINK_DOWN", 0, _link_down),
    "link recovery failed": ("NVLINK_ERRORS", 570, _failed_recoveries),
    "fabric not started": _fabric(state=1),
    "fabric in progress": _fabric(state=2),
    "fabric failed": _fabric(status=pynvml.NVML_ERROR_UNKNOWN),
    "fabric has a bad route": _fabric(550, healthMask=0x10),
    "fabric unhealthy": _fabric(580, healthSummary=2),
    "fabric cannot be asked": ("UNSUPPORTED_FIELD", 0, _no_fabric),
    "VBIOS differs": _calls("VBIOS_MIXED", {"nvmlDeviceGetVbiosVersion": "96.00.00.00.01"}),
    "firmware differs": _calls("DRIVER_MIXED", {"nvmlDeviceGetGspFirmwareVersion": "535.0.0"}),
    "ECC mode times out": _calls("UNSUPPORTED_FIELD", {"nvmlDeviceGetEccMode": "timeout"}),
    "rows cannot be read": ("UNSUPPORTED_FIELD", 0, _no_rows),
    "an id that the driver should know": _field("UNSUPPORTED_FIELD", 230, "invalid_argument", 570),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_in_one_of_two_gpus_gives_its_code_alone(name: str) -> None:
    code, since, make = FAULTS[name]
    tried = 0
    for model, branch in CASES:
        gpu = make(profile(model, branch), SKUS[model])
        if gpu is None or int(branch) < since:
            continue
        tried += 1
        faulty = replace(read(gpu)[0], index=1, pci_bus_id="0000:11:00.0")
        faulty = replace(faulty, uuid=uuid(1) if faulty.uuid else "")
        width = healthy(model, branch).pcie_width
        assert isinstance(width, int)
        slots = {faulty.pci_bus_id: HostLink(SKUS[model].pcie_generation, width)}
        reasons = judged([healthy(model, branch), faulty], host_links=slots)
        assert [reason.code for reason in reasons] == [code], (model, branch, reasons)
        assert code.endswith("_MIXED") or "GPU 1" in reasons[0].message
    assert tried


def test_lanes_that_the_slot_may_not_have_are_missed_only_where_another_gpu_has_them() -> None:
    narrow, wide = profile("l40s", "580"), {"nvmlDeviceGetCurrPcieLinkWidth": 16}
    assert codes(narrow, narrow) == []
    assert codes(narrow, narrow.changed(calls=wide)) == ["PCIE_DEGRADED"]


def test_a_power_cap_of_the_module_is_no_limit_that_somebody_set() -> None:
    grace = profile("gh200-480gb", "550")
    assert grace.calls["nvmlDeviceGetEnforcedPowerLimit"] < grace.calls["nvmlDeviceGetPowerManagementLimit"]
    assert codes(grace) == []
    hopper = profile("h100-sxm5-80gb", "550").changed(calls={"nvmlDeviceGetEnforcedPowerLimit": 500_000})
    assert codes(hopper) == ["POWER_LIMIT"]


# Of an A100 with 80 GB, by NVIDIA's MIG user guide: seven small instances reach 7 of 8 slices of the memory.
SEVEN = (("1g.10gb", 14, 9728),) * 7
TWO = (("3g.40gb", 42, 40192), ("4g.40gb", 56, 40192))


def in_mig(instances: tuple[tuple[str, int, int], ...]) -> Profile:
    """An A100 in MIG mode, whose instances hide its rows."""
    return profile("a100-pcie-80gb", "580").in_mig(instances)


def test_gpus_of_a_node_in_mig_mode_have_the_same_instances() -> None:
    assert codes(*[in_mig(SEVEN)] * 4, mig=True) == []
    assert codes(in_mig(TWO), in_mig(TWO[::-1]), mig=True) == [], "whatever their order"
    (reason,) = judged(read(in_mig(SEVEN), in_mig(SEVEN), in_mig(TWO)), Expectations(mig=True))
    assert (reason.code, reason.gpu) == ("MIG_MISMATCH", uuid(2))
    assert "7 x 1g.10gb on GPU 0, 1; 1 x 3g.40gb + 1 x 4g.40gb on GPU 2" in reason.message
    (reason,) = judged(read(in_mig(SEVEN), in_mig(TWO)), Expectations(mig=True))
    assert reason.gpu is None, "of two nobody is the odd one"


def test_a_gpu_in_mig_mode_without_instances_is_unlike_the_others() -> None:
    (reason,) = judged(read(in_mig(SEVEN), in_mig(SEVEN), in_mig(())), Expectations(mig=True))
    assert (reason.code, reason.gpu) == ("MIG_MISMATCH", uuid(2)) and "none on GPU 2" in reason.message
    assert codes(in_mig(()), in_mig(()), mig=True) == [], "the mode may be on before anybody makes instances"


def test_instances_that_the_driver_does_not_tell_are_a_doubt() -> None:
    state = replace(read(in_mig(SEVEN))[0], mig_instances=Unsupported("function_not_found"))
    (reason,) = judged([state], Expectations(mig=True))
    assert reason.code == "UNSUPPORTED_FIELD" and "does not tell its instances" in reason.message


def test_what_no_instance_reaches_is_counted() -> None:
    states = read(in_mig(SEVEN), profile("a100-pcie-80gb", "580"))
    covered = mig_coverage(states[0])
    assert covered is not None and mig_coverage(states[1]) is None
    assert (covered.layout, covered.multiprocessors, len({one.uuid for one in covered.instances})) == (
        "7 x 1g.10gb", 98, 7,
    )  # fmt: skip
    assert covered.unreached_memory_bytes == (81920 - 7 * 9728) << 20
    told = coverage("state", mig={"GPU 0": to_json(covered), "GPU 1": to_json(covered)}).summary()
    assert told[-1].startswith("MIG: 7 x 1g.10gb on each of 2 GPUs, which reach 98 multiprocessors of it and all but ")
    assert told[-1].endswith("of its memory")
    empty = mig_coverage(read(in_mig(()))[0])
    assert empty is not None and (empty.layout, empty.unreached_memory_bytes) == ("none", 81920 << 20)


def test_what_mig_instances_hide_is_not_asked_for() -> None:
    assert codes(in_mig(SEVEN), mig=True) == []


def test_the_refusal_of_a_user_without_rights_says_what_to_do() -> None:
    refused = profile("h100-sxm5-80gb", "580").changed(calls={"nvmlDeviceGetSramEccErrorStatus": "no_permission"})
    (reason,) = judge_state(read(refused), Expected())
    assert (reason.code, reason.message.endswith("; run as root")) == ("UNSUPPORTED_FIELD", True)


# --- fabric information by driver ---


@pytest.mark.parametrize(("branch", "version"), [("535", 1), ("550", 2), ("570", 2), ("580", 3)])
def test_the_newest_fabric_information_that_the_driver_knows_is_read(branch: str, version: int) -> None:
    fabric = {"state": 3, "status": 0, "healthMask": 0x82, "healthSummary": 1}
    (gpu,) = read(profile("h100-sxm5-80gb", branch).changed(fabric=fabric))
    too_old = Unsupported("driver_too_old")
    assert (gpu.fabric_version, gpu.fabric_state, gpu.fabric_status) == (version, 3, 0)
    assert gpu.fabric_health_mask == (0x82 if version > 1 else too_old)
    assert gpu.fabric_health_summary == (1 if version > 2 else too_old)


@pytest.mark.parametrize("why", ["gpu_is_lost", "timeout", "unknown"])
def test_an_error_that_is_no_matter_of_versions_is_told_as_it_is(why: str) -> None:
    (gpu,) = read(profile("h100-sxm5-80gb", "580").changed(fabric=why))
    assert gpu.fabric_version == gpu.fabric_state == Unsupported(why)
    assert gpu.lost == ("gpu_is_lost" if why == "gpu_is_lost" else "")


# --- counters and samples ---


@pytest.mark.parametrize(("model", "branch"), CASES)
def test_counters_and_samples_of_a_healthy_gpu_leave_nothing_to_complain_of(model: str, branch: str) -> None:
    with installed([profile(model, branch)]), Nvml() as nvml:
        reader = Reader(pynvml.nvmlDeviceGetHandleByIndex(0))
        counters, columns = CounterReader(reader, nvml.driver_version()), Columns(reader)
        track = CounterTrack()
        for _ in range(2):
            track.feed(counters.read())
        sample, limits = columns.sample(), columns.limits()
    assert None not in sample.values()
    gpu = to_gpu(healthy(model, branch), model)
    rest = {name: (value,) * 10 for name, value in sample.items()}
    found = TelemetryFindings(
        counters=track.result(gpu.uuid, complete=True),
        series=(GpuSeries(gpu.uuid, tuple(map(float, range(10))), rest, limits=limits, samples=100),),
        sources=(Source(SAMPLES, gpu.uuid, alive=True),),
    )
    assert judge_telemetry(observed(gpus=(gpu,), telemetry=found)).reasons == ()


def test_an_id_of_a_counter_that_the_driver_should_know_is_lost() -> None:
    faulty = profile("b200-sxm", "580").changed(fields={208: "invalid_argument"})
    with installed([faulty]), Nvml() as nvml:
        reader = CounterReader(Reader(pynvml.nvmlDeviceGetHandleByIndex(0)), nvml.driver_version())
        assert reader.read()["nvlink_receive_errors"] == "invalid_argument"
