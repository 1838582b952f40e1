"""Faults that the state check must see, as data: what the node's NVML says, and what must come of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_burnin.hardware import Sku
from gpu_burnin.types import JSON, Action, Verdict
from tests.campaign.profile import Profile

FAIL, INCONCLUSIVE = Verdict.FAIL, Verdict.INCONCLUSIVE
# Lines of the scenario; {t} is the index of the faulty GPU, {less} and {more} are one GPU less and more than planned.
Lines = Mapping[str, object]


@dataclass(frozen=True)
class StateFault:
    """One faulty node.

    `lines` go into the scenario, with keys like gpu{t}.remap_pending; `draw` makes more of them at random.
    `options` are those of the run. `on_gpu` False: the fault is the node's. `fits` says which models can have it,
    `driver` pins the branch where the fault needs a driver that knows the value. `target_last`: only the last GPU
    can have it.
    """

    name: str
    codes: frozenset[str]
    verdict: Verdict
    lines: Lines = field(default_factory=dict)
    draw: Callable[[random.Random, Profile], Lines] = lambda source, profile: {}
    options: Callable[[Profile], Mapping[str, JSON]] = lambda profile: {"expect": {"gpus": profile.gpus}}
    on_gpu: bool = True
    also: frozenset[str] = frozenset()
    node_codes: frozenset[str] = frozenset()
    action: Action | None = None
    fits: Callable[[Sku], bool] = lambda sku: True
    driver: str | None = None
    least_gpus: int = 1
    most_gpus: int = 8
    target_last: bool = False

    def scenario_lines(self, source: random.Random, profile: Profile, target: int) -> dict[str, str]:
        """The scenario's lines for a faulty GPU at index `target`."""
        names = {"t": target, "less": profile.gpus - 1, "more": profile.gpus + 1}
        lines = {**self.lines, **self.draw(source, profile)}
        return {key.format(**names): str(value).format(**names) for key, value in lines.items()}


def _fault(name: str, code: str, verdict: Verdict, lines: Lines | None = None, **more: object) -> StateFault:
    """A fault with one code, on one GPU by default."""
    return StateFault(name, frozenset(code.split()), verdict, lines or {}, **more)  # type: ignore[arg-type]


def _on(key: str, value: object) -> Lines:
    """One scenario line of the faulty GPU."""
    return {f"gpu{{t}}.{key}": value}


def _with(**expected: JSON) -> Callable[[Profile], Mapping[str, JSON]]:
    return lambda profile: {"expect": {"gpus": profile.gpus, **expected}}


def _one_more(profile: Profile) -> Mapping[str, JSON]:
    return {"expect": {"gpus": profile.gpus + 1}}


def _another_model(profile: Profile) -> Mapping[str, JSON]:
    return _with(model="t4" if profile.sku.key != "t4" else "l4")(profile)


def _has_links(sku: Sku) -> bool:
    return sku.nvlink_links > 0


def _has_fabric(sku: Sku) -> bool:
    return sku.fabric_probe


def _has_mig(sku: Sku) -> bool:
    return sku.mig_capable


def _lower_limit(source: random.Random, profile: Profile) -> Lines:
    lowered = int(profile.settings["power_default_mw"]) - source.randrange(2_000, 60_000, 1000)
    # Of a module that shares its power with the processor, what was asked for counts.
    return {**_on("power_enforced_mw", lowered), **_on("power_limit_mw", lowered)}


def _links_down(source: random.Random, profile: Profile) -> Lines:
    down = source.sample(range(profile.sku.nvlink_links), source.randint(2, profile.sku.nvlink_links))
    return _on("nvlink_down", ", ".join(map(str, sorted(down))))


def _less_memory(source: random.Random, profile: Profile) -> Lines:
    return _on("memory_bytes", int(profile.sku.memory_bytes * source.uniform(0.4, 0.94)) & ~0xFFF)


_RECOVERY: tuple[tuple[int, str, Action], ...] = (
    (1, "gpu reset", Action.RESET_GPU),
    (2, "node reboot", Action.REBOOT),
    (3, "drain p2p", Action.RESET_GPU),
    (4, "drain and reset", Action.RESET_GPU),
    (5, "imex domain", Action.HOLD),
    (6, "bus reset", Action.POWER_CYCLE),
    (7, "system reboot", Action.REBOOT),
    (99, "unknown demand", Action.HOLD),
)
_NEW_DRIVER = "580.95.05"

PRESENCE: tuple[StateFault, ...] = (
    _fault("lost gpu", "GPU_LOST", FAIL, _on("lost", "calls"), action=Action.POWER_CYCLE),
    # Not even a handle: nothing names the GPU, but the planned one is not there.
    _fault("lost gpu without handle", "GPU_LOST", FAIL, _on("lost", "handle"), on_gpu=False, action=Action.POWER_CYCLE),
    _fault(
        "missing gpu", "GPU_COUNT GPU_LOST", FAIL, {"gpus": "{less}"}, target_last=True,
        node_codes=frozenset({"GPU_COUNT"}), least_gpus=2,
    ),
    _fault("missing gpu, expected by the inventory", "GPU_COUNT", FAIL, on_gpu=False,
           options=_one_more),
    _fault("one gpu too many", "GPU_COUNT", FAIL, {"gpus": "{more}"}, on_gpu=False),
    _fault("memory lost", "MEMORY_REDUCED", FAIL, draw=_less_memory),
    _fault("unknown model", "GPU_UNKNOWN_SKU", INCONCLUSIVE, _on("pci_device_id", "0x1e30")),
    _fault("model not the inventory's", "GPU_MODEL", FAIL, options=_another_model, most_gpus=1, action=Action.HOLD),
    _fault("foreign process", "GPU_BUSY", INCONCLUSIVE, _on("processes", "4194303:1073741824")),
)  # fmt: skip

VERSIONS: tuple[StateFault, ...] = (
    _fault("firmware of another driver", "DRIVER_MIXED", INCONCLUSIVE, _on("gsp_firmware_version", "565.57.01"),
           least_gpus=2),
    _fault("driver not the fleet's", "DRIVER_MIXED", INCONCLUSIVE, on_gpu=False,
           options=_with(driver_version="590.12.01")),
    _fault("vbios differs on one gpu", "VBIOS_MIXED", INCONCLUSIVE, _on("vbios_version", "90.00.11.00.02"),
           least_gpus=3),
    # One against one: nothing says which of them is wrong.
    _fault("vbios differs between two gpus", "VBIOS_MIXED", INCONCLUSIVE, _on("vbios_version", "90.00.11.00.02"),
           on_gpu=False, least_gpus=2, most_gpus=2),
    # Alike on several GPUs and wrong on all of them: nothing speaks against one.
    _fault("vbios not the fleet's", "VBIOS_MIXED", INCONCLUSIVE, on_gpu=False, options=_with(vbios="1.2.3.4.5"),
           least_gpus=2),
)  # fmt: skip

MEMORY: tuple[StateFault, ...] = (
    _fault("ecc off", "ECC_DISABLED", INCONCLUSIVE, {**_on("ecc_current", "no"), **_on("ecc_pending", "no")}),
    _fault("ecc goes off after reset", "ECC_PENDING", INCONCLUSIVE, _on("ecc_pending", "no")),
    _fault("ecc comes on after reset", "ECC_DISABLED ECC_PENDING", INCONCLUSIVE, _on("ecc_current", "no")),
    _fault("uncorrected dram error", "ECC_UNCORRECTED", FAIL, _on("ecc_uncorrected_volatile", 1)),
    _fault("uncorrected sram error", "ECC_UNCORRECTED", FAIL, _on("ecc_uncorrected_volatile_sram", 2)),
    _fault("sram worn out", "ECC_UNCORRECTED", FAIL, _on("ecc_uncorrected_aggregate_sram", 5), action=Action.REPAIR),
    _fault("sram threshold exceeded", "ECC_UNCORRECTED", FAIL, _on("sram_threshold_exceeded", "yes"),
           action=Action.REPAIR, driver=_NEW_DRIVER),
    _fault("row remap pending", "REMAP_PENDING", FAIL, _on("remap_pending", "yes"), action=Action.RESET_GPU),
    _fault("row remap failed", "REMAP_FAILED", FAIL, _on("remap_failure", "yes"), action=Action.REPAIR),
    _fault("too many rows remapped", "REMAP_FAILED", FAIL, _on("remapped_uncorrected", 513), action=Action.REPAIR),
    _fault("page retirement pending", "RETIRED_PAGES", FAIL,
           {**_on("retired_pages_supported", "yes"), **_on("retired_pages_pending", "yes")}),
    _fault("too many pages retired", "RETIRED_PAGES", FAIL,
           {**_on("retired_pages_supported", "yes"), **_on("retired_pages_double_bit", 11)}, action=Action.REPAIR),
    _fault("channel repair pending", "REPAIR_PENDING", FAIL, _on("channel_repair_pending", "yes"), driver=_NEW_DRIVER),
    _fault("tpc repair pending", "REPAIR_PENDING", FAIL, _on("tpc_repair_pending", "yes"), driver=_NEW_DRIVER),
    _fault("memory beyond repair", "MEMORY_UNREPAIRABLE", FAIL, _on("unrepairable_memory", "yes"), driver=_NEW_DRIVER,
           action=Action.REPAIR),
    _fault("inforom corrupt", "INFOROM_CORRUPT", FAIL, _on("inforom_valid", "no")),
)  # fmt: skip

DEMANDS: tuple[StateFault, ...] = (
    *(
        _fault(f"recovery action {value}: {name}", "RECOVERY_ACTION", FAIL, _on("recovery_action", value),
               driver=_NEW_DRIVER, action=action)
        for value, name, action in _RECOVERY
    ),
    _fault("reset required", "RECOVERY_ACTION UNSUPPORTED_FIELD", FAIL,
           _on("error.nvmlDeviceGetRemappedRows", "reset_required"), also=frozenset({"UNSUPPORTED_FIELD"})),
)  # fmt: skip

SETTINGS: tuple[StateFault, ...] = (
    _fault("mig on", "MIG_MISMATCH", INCONCLUSIVE, {**_on("mig_current", "yes"), **_on("mig_pending", "yes")},
           fits=_has_mig),
    _fault("mig comes on after reset", "MIG_MISMATCH", INCONCLUSIVE, _on("mig_pending", "yes"), fits=_has_mig),
    _fault("mig off where it should be on", "MIG_MISMATCH", INCONCLUSIVE,
           {"mig_current": "yes", "mig_pending": "yes", **_on("mig_current", "no"), **_on("mig_pending", "no")},
           options=_with(mig=True), fits=_has_mig),
    _fault("power limit lowered", "POWER_LIMIT", INCONCLUSIVE, draw=_lower_limit),
    _fault("hardware slowdown at rest", "THROTTLED", FAIL, _on("clocks_event_reasons", "0x9")),
    _fault("software thermal slowdown at rest", "THROTTLED", FAIL, _on("clocks_event_reasons", "0x20")),
    _fault("hardware thermal slowdown at rest", "THROTTLED", FAIL, _on("clocks_event_reasons", "0x41")),
    _fault("power brake at rest", "THROTTLED", FAIL, _on("clocks_event_reasons", "0x80")),
)  # fmt: skip

LINKS: tuple[StateFault, ...] = (
    _fault("pcie generation low", "PCIE_DEGRADED", FAIL,
           draw=lambda _, p: _on("pcie_max_generation", p.sku.pcie_generation - 1)),
    _fault("pcie width low", "PCIE_DEGRADED", FAIL,
           draw=lambda source, p: _on("pcie_width", source.choice([1, 2, 4, 8]))),
    _fault("pcie fatal errors", "PCIE_DEGRADED", FAIL, _on("pcie_fatal_errors", 1)),
    _fault("one nvlink down", "NVLINK_DOWN", FAIL, fits=_has_links,
           draw=lambda source, p: _on("nvlink_down", source.randrange(p.sku.nvlink_links))),
    # One GPU alone without a link is a machine without NVLink.
    _fault("several nvlinks down", "NVLINK_DOWN", FAIL, fits=_has_links, draw=_links_down, least_gpus=2),
    _fault("fewer nvlinks than the machine has", "NVLINK_DOWN", FAIL, _on("nvlink_links", 6),
           fits=lambda sku: sku.nvlink_links > 6),
    _fault("nvlink recovery failed", "NVLINK_ERRORS", FAIL, _on("nvlink_recovery_failed", 1), fits=_has_links,
           driver=_NEW_DRIVER),
    _fault("fabric not started", "FABRIC_NOT_READY", FAIL, _on("fabric_state", 1), fits=_has_fabric),
    _fault("fabric in progress", "FABRIC_NOT_READY", FAIL, _on("fabric_state", 2), fits=_has_fabric),
    _fault("fabric completed with an error", "FABRIC_NOT_READY", FAIL, _on("fabric_status", 999), fits=_has_fabric),
    _fault("fabric unhealthy", "FABRIC_NOT_READY", FAIL, _on("fabric_health_summary", 2), fits=_has_fabric,
           driver=_NEW_DRIVER),
    *(
        _fault(f"fabric health: {what}", "FABRIC_NOT_READY", FAIL, _on("fabric_health_mask", mask), fits=_has_fabric,
               driver=_NEW_DRIVER)
        for what, mask in (
            ("bandwidth degraded", 0x1), ("route in recovery", 0x4), ("route unhealthy", 0x10),
            ("access timeout in recovery", 0x40), ("configuration incorrect", 0x200), ("manager not connected", 0x8000),
        )
    ),
    _fault("fabric of limited capacity", "FABRIC_NOT_READY", FAIL, _on("fabric_health_summary", 3), fits=_has_fabric,
           driver=_NEW_DRIVER),
)  # fmt: skip

UNREAD: tuple[StateFault, ...] = tuple(
    _fault(f"no value: {what}", "UNSUPPORTED_FIELD", INCONCLUSIVE, _on(f"error.{call}", why), driver=_NEW_DRIVER)
    for what, call, why in (
        ("remapped rows, not supported", "nvmlDeviceGetRemappedRows", "not_supported"),
        ("ecc mode, no permission", "nvmlDeviceGetEccMode", "no_permission"),
        ("ecc counters, unknown error", "nvmlDeviceGetMemoryErrorCounter", "unknown"),
        ("recovery action, not supported", "field_230", "not_supported"),
        ("pcie width, timeout", "nvmlDeviceGetCurrPcieLinkWidth", "timeout"),
        ("processes, unknown error", "nvmlDeviceGetComputeRunningProcesses_v3", "unknown"),
        ("vbios, inforom error", "nvmlDeviceGetVbiosVersion", "corrupted_inforom"),
    )
)

WHOLE: tuple[StateFault, ...] = tuple(
    _fault(f"nvml: {what}", "NVML_UNAVAILABLE", INCONCLUSIVE, lines, on_gpu=False)
    for what, lines in (
        ("driver not loaded", {"init_error": "driver_not_loaded"}),
        ("driver and library differ", {"init_error": "version_mismatch"}),
        ("no permission", {"init_error": "no_permission"}),
        ("cannot count", {"count_error": "unknown"}),
    )
)

STATE_FAULTS: dict[str, StateFault] = {
    fault.name: fault for fault in (*PRESENCE, *VERSIONS, *MEMORY, *DEMANDS, *SETTINGS, *LINKS, *UNREAD, *WHOLE)
}
