"""Every rule of the state check: the healthy GPU passes, and each fault alone is found."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.state.check import expected_from, own_family
from gpu_burnin.checks.state.node import judge_state, persistence_off
from gpu_burnin.checks.state.rules import JUDGED_FIELDS, Expected, HostLink
from gpu_burnin.hardware import load_skus
from gpu_burnin.judge.persistence import judge_persistence
from gpu_burnin.settings.expectations import KEYS, Expectations
from gpu_burnin.telemetry.node_links import NodeLinks, decide
from gpu_burnin.telemetry.state import ProcessUse, Unsupported
from gpu_burnin.types import JSON, Action, CheckResult, Gpu, Verdict
from tests.support.coverages import coverage
from tests.support.observed import observed
from tests.support.telemetry_helpers import NOT_SUPPORTED, healthy, in_any_slot


def codes(*states: Any, **expected: Any) -> list[str]:
    """Codes of the reasons against these GPUs; what the operator expects goes with the rest."""
    expected.setdefault("host_links", in_any_slot(*states))
    configured = Expectations(**{name: expected.pop(name) for name in KEYS if name in expected})
    links = NodeLinks() if configured.nvlink_links is None else decide(states, configured, load_skus())
    return [reason.code for reason in judge_state(states, Expected(configured=configured, links=links, **expected))]


def test_healthy_gpus_give_no_reason() -> None:
    assert codes(healthy(0), healthy(1), gpu_count=2, gpu_uuids=frozenset({"GPU-0000", "GPU-0001"})) == []


def test_gpus_with_one_uuid_are_one_reason_about_the_node() -> None:
    twin = replace(healthy(1), uuid=healthy(0).uuid)
    (reason,) = judge_state((healthy(0), twin), Expected(gpu_count=2, gpu_uuids=frozenset({twin.uuid})))
    assert (reason.code, reason.gpu, reason.action) == ("GPU_UUID_SHARED", None, Action.HOLD)
    # Lost GPUs without a name are no twins.
    lost = [replace(healthy(i), uuid="", lost="gpu_is_lost") for i in range(2)]
    assert "GPU_UUID_SHARED" not in codes(*lost)


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("GPU_LOST", {"lost": "gpu_is_lost"}),
    ("GPU_UNKNOWN_SKU", {"pci_device_id": 0xFFFF10DE}),
    ("GPU_UNKNOWN_SKU", {"pci_device_id": 0x23301002}),
    ("MEMORY_REDUCED", {"memory_bytes": 60 << 30}),
    ("ECC_DISABLED", {"ecc_enabled": False, "ecc_pending": False}),
    ("ECC_PENDING", {"ecc_pending": False}),
    ("ECC_UNCORRECTED", {"ecc_volatile_uncorrected_dram": 1}),
    ("ECC_UNCORRECTED", {"ecc_volatile_uncorrected_sram": 1}),
    ("ECC_UNCORRECTED", {"ecc_aggregate_uncorrected_sram": 5}),
    ("ECC_UNCORRECTED", {"sram_threshold_exceeded": True}),
    ("REMAP_PENDING", {"remap_pending": True}),
    ("REMAP_FAILED", {"remap_failure": True}),
    ("REMAP_FAILED", {"remapped_uncorrected": 513}),
    ("RETIRED_PAGES", {"retired_pending": True}),
    ("RETIRED_PAGES", {"retired_single_bit": 6, "retired_double_bit": 5}),
    ("INFOROM_CORRUPT", {"inforom_valid": False}),
    ("REPAIR_PENDING", {"channel_repair_pending": True}),
    ("REPAIR_PENDING", {"tpc_repair_pending": True}),
    ("MEMORY_UNREPAIRABLE", {"unrepairable_memory": True}),
    ("RECOVERY_ACTION", {"recovery_action": 1}),
    ("RECOVERY_ACTION", {"recovery_action": 99}),
    ("RECOVERY_ACTION", {"reset_required": True}),
    ("MIG_MISMATCH", {"mig_enabled": True, "mig_pending": True}),
    ("MIG_MISMATCH", {"mig_pending": True}),
    ("POWER_LIMIT", {"power_enforced_w": 500.0}),
    ("THROTTLED", {"clocks_event_reasons": 0x08}),
    ("THROTTLED", {"clocks_event_reasons": 0x20}),
    ("THROTTLED", {"clocks_event_reasons": 0x40}),
    ("THROTTLED", {"clocks_event_reasons": 0x80}),
    ("PCIE_DEGRADED", {"pcie_max_generation": 4}),
    ("PCIE_DEGRADED", {"pcie_width": 8}),
    ("PCIE_DEGRADED", {"pcie_width": 8, "pcie_max_width": 8}),
    ("PCIE_DEGRADED", {"pcie_fatal_errors": 1}),
    ("NVLINK_DOWN", {"nvlink_active": tuple(range(17)), "nvlink_inactive": (17,)}),
    ("NVLINK_ERRORS", {"nvlink_failed_recoveries": 1}),
    ("FABRIC_NOT_READY", {"fabric_state": 2}),
    ("FABRIC_NOT_READY", {"fabric_state": 0}),
    ("FABRIC_NOT_READY", {"fabric_status": 999}),
    ("FABRIC_NOT_READY", {"fabric_health_summary": 2}),
    ("FABRIC_NOT_READY", {"fabric_health_summary": 3}),
    ("FABRIC_NOT_READY", {"fabric_health_summary": 77}),
    ("FABRIC_NOT_READY", {"fabric_health_mask": 0b01}),
    ("FABRIC_NOT_READY", {"fabric_health_mask": 0b01 << 2}),
    ("FABRIC_NOT_READY", {"fabric_health_mask": 0b01 << 4}),
    ("FABRIC_NOT_READY", {"fabric_health_mask": 0b01 << 6}),
    ("FABRIC_NOT_READY", {"fabric_health_mask": 5 << 8}),
    ("FABRIC_NOT_READY", {"fabric_health_mask": 2 << 14}),
    ("GPU_BUSY", {"processes": (ProcessUse(4242, 1 << 30),)}),
    ("DRIVER_MIXED", {"driver_version": "570.86.15"}),
    ("DRIVER_MIXED", {"gsp_firmware": "570.86.15"}),
    ("VBIOS_MIXED", {"vbios": "96.00.74.00.01"}),
]


@pytest.mark.parametrize(("code", "changes"), FAULTS, ids=lambda value: str(value))
def test_each_fault_alone_is_found(code: str, changes: dict[str, Any]) -> None:
    states = [healthy(0), healthy(1, **changes)]
    reasons = judge_state(states, Expected(gpu_count=2, host_links=in_any_slot(*states)))
    assert [reason.code for reason in reasons] == [code]
    if not code.endswith("_MIXED"):
        assert reasons[0].gpu == "GPU-0001"
        assert "GPU 1 (0000:11:00.0 GPU-0001)" in reasons[0].message


@pytest.mark.parametrize(
    ("code", "changes"),
    [
        ("ECC_UNCORRECTED", {"ecc_volatile_uncorrected_dram": 5}),
        ("REMAP_FAILED", {"remap_failure": True}),
        ("RETIRED_PAGES", {"retired_double_bit": 11}),
        ("RECOVERY_ACTION", {"recovery_action": 2}),
        ("INFOROM_CORRUPT", {"inforom_valid": False}),
        ("THROTTLED", {"clocks_event_reasons": 0x08}),
        ("PCIE_DEGRADED", {"pcie_fatal_errors": 1}),
        ("UNSUPPORTED_FIELD", {"ecc_enabled": Unsupported("unknown")}),
    ],
)
def test_a_sick_gpu_of_an_unknown_model_is_told_for_what_needs_no_model(code: str, changes: dict[str, Any]) -> None:
    """After azhpc-diagnostics issue 73: the model was not in the table, and nothing else was said."""
    strange = {"pci_device_id": 0xFFFF10DE, "nvlink_active": (), "memory_bytes": 1 << 30}
    assert codes(healthy(0, **strange, **changes)) == [code, "GPU_UNKNOWN_SKU"]


@pytest.mark.parametrize("name", ["temperature_c", "power_draw_w", "clock_sm_mhz", "pcie_replays"])
def test_a_value_that_nvml_knows_and_cannot_read_is_a_doubt(name: str) -> None:
    """After dcgm-exporter issue 604: "Unknown Error" for what every GPU has. Who may not ask says nothing of it."""
    (reason,) = judge_state([healthy(0, **{name: Unsupported("unknown")})], Expected())
    assert (reason.code, reason.severity) == ("UNSUPPORTED_FIELD", Verdict.INCONCLUSIVE)
    assert f"{name} (unknown)" in reason.message
    for why in ("not_supported", "no_permission", "invalid_argument"):
        assert judge_state([healthy(0, **{name: Unsupported(why)})], Expected()) == ()


def test_every_rule_is_covered_by_a_fault() -> None:
    from gpu_burnin.checks.state.rules import MODEL_RULES, RULES

    table = Expected().table
    sku = table.skus["h100-sxm5-80gb"]
    for rule in RULES:
        assert any(list(rule(healthy(0, **changes), Expected())) for _, changes in FAULTS), rule.__name__
    for of_model in MODEL_RULES:
        states = [healthy(0, **changes) for _, changes in FAULTS]
        other = Expectations(model="h200-sxm")
        found = [list(of_model(s, sku, Expected(configured=other, host_links=in_any_slot(s)))) for s in states]
        assert any(found), of_model.__name__


@pytest.mark.parametrize("name", JUDGED_FIELDS)
def test_judged_value_that_cannot_be_read_is_inconclusive(name: str) -> None:
    reasons = judge_state([healthy(0, **{name: Unsupported("timeout")})], Expected())
    assert [reason.code for reason in reasons] == ["UNSUPPORTED_FIELD"]
    assert reasons[0].severity is Verdict.INCONCLUSIVE
    assert reasons[0].details == {"fields": {name: "timeout"}}


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("nvlink_active", Unsupported("unknown"), "UNSUPPORTED_FIELD"),
        ("fabric_state", NOT_SUPPORTED, "UNSUPPORTED_FIELD"),
        ("nvlink_active", NOT_SUPPORTED, "NVLINK_DOWN"),  # it says that there are none
    ],
)
def test_links_that_are_not_told_count_where_links_are_expected(name: str, value: Unsupported, code: str) -> None:
    assert codes(healthy(0, **{name: value})) == [code]
    assert codes(healthy(0, **{name: value}), nvlink_links=0) == []


def test_field_is_excused_only_where_the_data_say_so() -> None:
    # Newer than the driver: excused; the driver should know it: not; an error is never excused.
    assert codes(healthy(0, recovery_action=NOT_SUPPORTED, driver_version="550.1", gsp_firmware="550.1")) == []
    assert codes(healthy(0, recovery_action=NOT_SUPPORTED)) == ["UNSUPPORTED_FIELD"]
    assert codes(healthy(0, unrepairable_memory=Unsupported("function_not_found"))) == []
    assert codes(healthy(0, unrepairable_memory=Unsupported("no_permission"))) == ["UNSUPPORTED_FIELD"]


@pytest.mark.parametrize(("present", "wanted"), [(1, 2), (2, 1), (0, None)])
def test_wrong_number_of_gpus(present: int, wanted: int | None) -> None:
    assert codes(*(healthy(n) for n in range(present)), gpu_count=wanted) == ["GPU_COUNT"]


def test_gpu_of_the_plan_that_is_gone_is_lost() -> None:
    assert codes(healthy(0), gpu_uuids=frozenset({"GPU-0000", "GPU-0001"})) == ["GPU_LOST"]
    # A lost GPU that cannot say who it is explains the missing one.
    nameless = healthy(1, lost="gpu_is_lost", uuid="")
    assert codes(healthy(0), nameless, gpu_uuids=frozenset({"GPU-0000", "GPU-0001"})) == ["GPU_LOST"]


@pytest.mark.parametrize(
    ("expected", "wanted"),
    [
        ({"mig": True}, ["MIG_MISMATCH"]),
        ({"power_limit_w": 650.0}, ["POWER_LIMIT"]),
        ({"driver_version": "590.10"}, ["DRIVER_MIXED"]),
        ({"vbios": "96.00.99.00.01"}, ["VBIOS_MIXED"]),
        ({"nvlink_links": 20}, ["NVLINK_DOWN"]),
        ({"model": "h100-sxm5-80gb"}, []),
        ({"model": "h200-sxm"}, ["GPU_MODEL"]),
        # Nobody knows what is expected, so nothing speaks against the GPU.
        ({"model": "h300"}, ["GPU_UNKNOWN_SKU"]),
    ],
)
def test_what_the_fleet_expects_counts(expected: dict[str, Any], wanted: list[str]) -> None:
    assert codes(healthy(0), **expected) == wanted


def test_a_gpu_of_another_model_is_told_by_its_pci_id_and_not_by_its_name() -> None:
    """One that calls itself as expected is another all the same; one that nobody knows has its own reason."""
    h200 = load_skus().skus["h200-sxm"]
    ids = {"pci_device_id": h200.device_id << 16 | 0x10DE, "pci_subsystem_id": h200.subsystem_ids[0] << 16 | 0x10DE}
    other = healthy(1, memory_bytes=h200.memory_bytes, **ids)
    wanted = Expected(configured=Expectations(model="h100-sxm5-80gb"), host_links=in_any_slot(healthy(0), other))
    (reason,) = judge_state([healthy(0), other], wanted)
    assert (reason.code, reason.gpu, reason.action) == ("GPU_MODEL", "GPU-0001", Action.HOLD)
    assert "it is of the model h200-sxm (NVIDIA H200), and expect.model is h100-sxm5-80gb" in reason.message
    assert codes(healthy(0, pci_device_id=0xFFFF10DE), model="h100-sxm5-80gb") == ["GPU_UNKNOWN_SKU"]


def test_odd_one_out_is_named() -> None:
    mixed = [healthy(0), healthy(1), healthy(2, gsp_firmware="570.86.15")]
    (reason,) = judge_state(mixed, Expected())
    assert (reason.code, reason.gpu) == ("DRIVER_MIXED", "GPU-0002")
    assert "570.86.15 on GPU 2; 580.95.05 on GPU 0, 1, 2" in reason.message
    halves = [healthy(n, vbios="96.00.74.00.01" if n < 2 else "96.00.89.00.01") for n in range(4)]
    (reason,) = judge_state(halves, Expected())
    assert (reason.code, reason.gpu) == ("VBIOS_MIXED", None)
    # The fleet's version is known: the GPU that has another one is it, even of two.
    (reason,) = judge_state(
        [healthy(0), healthy(1, vbios="old")], Expected(configured=Expectations(vbios="96.00.89.00.01"))
    )
    assert (reason.code, reason.gpu) == ("VBIOS_MIXED", "GPU-0001")


def test_own_processes_do_not_count_as_foreign() -> None:
    busy = healthy(0, processes=(ProcessUse(1, None), ProcessUse(2, None)))
    assert codes(busy, own_pids=frozenset({1, 2})) == []
    assert codes(busy, own_pids=frozenset({1})) == ["GPU_BUSY"]


@pytest.mark.parametrize(
    ("value", "action"), [(1, Action.RESET_GPU), (2, Action.REBOOT), (6, Action.POWER_CYCLE), (42, Action.HOLD)]
)
def test_recovery_action_of_the_driver_is_followed(value: int, action: Action) -> None:
    assert judge_state([healthy(0, recovery_action=value)], Expected())[0].action is action


def test_persistence_off_warns_and_holds_nothing_back() -> None:
    states = [healthy(0), healthy(1, persistence=False)]
    assert codes(*states) == []
    result = CheckResult(
        "state", None, Verdict.PASS, 1.0, coverage=coverage("state", persistence_off=[*persistence_off(states)])
    )
    (notice,) = judge_persistence(observed([result])).notices
    assert (notice.code, notice.gpu, notice.check) == ("PERSISTENCE_OFF", "GPU-0001", "state")
    assert judge_persistence(observed([replace(result, coverage=coverage("state", persistence_off=[]))])) == ((), ())


def test_mixed_models_may_have_different_vbios() -> None:
    other = healthy(1, pci_device_id=0x233510DE, pci_subsystem_id=0x18BE10DE, vbios="other", memory_bytes=150754820096)
    assert codes(healthy(0), other) == []


def test_expectations_come_from_the_options() -> None:
    gpu = Gpu(0, "GPU-0000", "", "", "", "", 0, "")
    configured: dict[str, JSON] = {"gpus": 4, "mig": True, "power_limit_w": 500}
    expected, source = expected_from({"expect": configured}, (gpu,), frozenset({7}), on_bus=("0000:10:00.0",))
    assert (expected.gpu_count, expected.configured.mig, expected.configured.power_limit_w) == (4, True, 500)
    assert (expected.gpu_uuids, expected.own_pids) == ({"GPU-0000"}, {7})
    assert source == "expect.gpus"
    with pytest.raises(ValueError, match=r"expect\.gpus must be"):
        expected_from({"expect": {"gpus": True}}, (gpu,), frozenset())
    assert expected_from({}, (gpu,), frozenset())[1] == "none"
    expected, source = expected_from({}, (gpu,), frozenset(), on_bus=("0000:10:00.0", "0000:11:00.0"))
    assert (expected.gpu_count, source) == (2, "PCI bus")


def test_fabric_that_is_healthy_or_does_not_say_is_no_complaint() -> None:
    # Fields of two bits: 0 not supported, 2 no; configuration: 1 not incorrect; partition and manager: 1 yes.
    good = 0b10 | 0b10 << 2 | 0b10 << 4 | 0b10 << 6 | 1 << 8 | 1 << 12 | 1 << 14
    assert codes(healthy(0, fabric_health_summary=1, fabric_health_mask=good)) == []


@pytest.mark.parametrize(
    ("code", "action", "changes"),
    [
        ("GPU_LOST", Action.POWER_CYCLE, {"lost": "gpu_is_lost"}),
        ("REMAP_PENDING", Action.RESET_GPU, {"remap_pending": True}),
        ("REMAP_FAILED", Action.REPAIR, {"remap_failure": True}),
        ("MEMORY_UNREPAIRABLE", Action.REPAIR, {"unrepairable_memory": True}),
        ("RECOVERY_ACTION", Action.REBOOT, {"recovery_action": 2}),
        ("MIG_MISMATCH", Action.RESET_GPU, {"mig_enabled": True}),
        ("PCIE_DEGRADED", Action.POWER_CYCLE, {"pcie_width": 8}),
        ("FABRIC_NOT_READY", Action.REBOOT, {"fabric_state": 1}),
        ("NVLINK_DOWN", Action.RESET_GPU, {"nvlink_active": (), "nvlink_inactive": tuple(range(18))}),
        ("DRIVER_MIXED", Action.REBOOT, {"driver_version": "570.86.15"}),
        ("ECC_UNCORRECTED", Action.REPAIR, {"sram_threshold_exceeded": True}),
    ],
)
def test_each_fault_names_what_to_do(code: str, action: Action, changes: dict[str, Any]) -> None:
    (reason,) = judge_state([healthy(0), healthy(1, **changes)], Expected(gpu_count=2))
    assert (reason.code, reason.action) == (code, action)


def test_gpu_at_rest_may_slow_its_link_down_but_not_narrow_it() -> None:
    assert codes(healthy(0, pcie_generation=1)) == []
    assert codes(healthy(0, pcie_generation=1, pcie_width=8)) == ["PCIE_DEGRADED"]


@pytest.mark.parametrize(
    ("slot", "link", "found"),
    [
        (HostLink(4, 16), {"pcie_max_generation": 4}, []),  # a Gen5 card in a Gen4 host
        (HostLink(5, 16), {"pcie_max_generation": 4}, ["PCIE_DEGRADED"]),
        (HostLink(4, 16), {"pcie_max_generation": 3}, ["PCIE_DEGRADED"]),
        (HostLink(5, 8), {"pcie_width": 8, "pcie_max_width": 8}, []),  # a slot of eight lanes
        (HostLink(5, 8), {"pcie_width": 4, "pcie_max_width": 8}, ["PCIE_DEGRADED"]),
        (HostLink(5, 8), {"pcie_width": 8, "pcie_max_width": 16}, []),  # NVML's highest is the card's own
        # A virtual machine that hides the slot: generation and lanes may be the slot's.
        (HostLink(), {"pcie_max_generation": 4}, []),
        (HostLink(), {"pcie_width": 8, "pcie_max_width": 16}, []),
    ],
)
def test_link_is_held_to_what_model_and_slot_can_do(slot: HostLink, link: dict[str, int], found: list[str]) -> None:
    gpu = healthy(0, **link)
    assert codes(gpu, host_links={gpu.pci_bus_id: slot}) == found


def test_recovery_actions_of_the_state_and_of_xid_154_are_the_same() -> None:
    from gpu_burnin.checks.state.rules import RECOVERY
    from gpu_burnin.hardware import load_xids

    policy = load_xids().xids[154]
    for value, (_, action) in RECOVERY.items():
        assert policy.for_text(f"GPU recovery action changed from 0x0 (None) to {value:#x} (Any)")[2] is action


def test_names_of_other_processes_do_not_matter_to_the_own_family(tmp_path: Path) -> None:
    names = {"7": b"\xe2\x82", "8": b"a) R 1 (b", "9": b""}  # cut inside a character, brackets, one that has ended
    for pid, name in names.items():
        (tmp_path / pid).mkdir()
        content = b"%s (%s) S %d 1 1" % (pid.encode(), name, os.getppid()) if name else b""
        (tmp_path / pid / "stat").write_bytes(content)
    assert own_family(tmp_path) == {os.getpid(), os.getppid(), 7, 8}
