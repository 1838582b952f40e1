"""A healthy node made up from a seed: model, number of GPUs, driver, and the harmless noise that real nodes have."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_burnin.hardware import Sku, load_skus
from tests.campaign.model import case_random

# Driver versions by branch. Older branches do not know some values: what they answer is in `_old_driver`.
DRIVERS = ("535.261.03", "550.163.01", "570.172.08", "580.95.05")
_FIRST_BLACKWELL_BRANCH = 570
# Watts of the boards, roughly: the check compares the enforced limit with the board's own default.
_POWER_W: Mapping[str, int] = {
    "a100": 400,
    "l4": 72,
    "l40": 300,
    "l40s": 350,
    "b200": 1000,
    "b300": 1100,
    "gb200": 1200,
}


@dataclass(frozen=True)
class Profile:
    """One healthy node. `settings` are scenario lines for all GPUs, `own` for single ones (index, key)."""

    identity: str
    sku: Sku
    gpus: int
    driver: str
    settings: Mapping[str, str]
    own: Mapping[tuple[int, str], str] = field(default_factory=dict)

    @property
    def branch(self) -> int:
        """Driver branch, such as 580."""
        return int(self.driver.split(".")[0])

    def scenario(self, changes: Mapping[str, str] | None = None) -> str:
        """The scenario file; `changes` are lines that win."""
        lines = {
            "identity": self.identity,
            "gpus": str(self.gpus),
            "driver_version": self.driver,
            "gsp_firmware_version": self.driver,
            **self.settings,
            **{f"gpu{index}.{key}": value for (index, key), value in self.own.items()},
        }
        return "".join(f"{key} = {value}\n" for key, value in {**lines, **(changes or {})}.items())


def make_profile(*case: object, gpus: int | None = None, sku: str | None = None, driver: str | None = None) -> Profile:
    """A node from the case's seed; given parts are fixed."""
    source = case_random("profile", *case)
    table = load_skus().skus
    # Of models that remap rows: older ones and GB10 leave out much of what faults are planted in.
    drawn = sorted(key for key, one in table.items() if "remap_failure" not in one.unsupported)
    model = table[sku or source.choice(drawn)]
    fitting = [d for d in DRIVERS if model.architecture != "blackwell" or int(d[:3]) >= _FIRST_BLACKWELL_BRANCH]
    version = driver or source.choice(fitting)
    # Bridges connect two cards.
    count = gpus or (2 * source.randint(1, 4) if model.nvlink_links and not model.fabric else source.randint(1, 8))
    profile = Profile(
        identity="-".join(map(str, case)),
        sku=model,
        gpus=count,
        driver=version,
        settings={**_model(model, source), **_old_driver(int(version.split(".")[0]))},
    )
    noise = {(index, key): value for index in range(count) for key, value in _noise(model, source).items()}
    return Profile(profile.identity, model, count, version, profile.settings, noise)


def _model(sku: Sku, source: random.Random) -> dict[str, str]:
    """What the model itself says."""
    power_mw = str(next((w for key, w in _POWER_W.items() if sku.key.split("-")[0] == key), 700) * 1000)
    settings = {
        "name": sku.name,
        "pci_device_id": f"{sku.device_id:#06x}",
        "pci_subsystem_id": f"{source.choice(sku.subsystem_ids):#06x}",
        # Memory that a driver shows is up to 5 % below the nominal size (reserved, ECC).
        "memory_bytes": str(int(sku.memory_bytes * source.uniform(0.955, 1.0)) & ~0xFFF),
        "vbios_version": f"96.00.{source.randrange(256):02X}.00.01",
        "pcie_max_generation": str(sku.pcie_generation),
        "pcie_max_width": str(sku.pcie_width),
        "pcie_width": str(sku.pcie_width),
        "nvlink_links": str(sku.nvlink_links),
        "fabric_state": "3" if sku.fabric_probe else "0",
        "power_limit_mw": power_mw,
        "power_enforced_mw": power_mw,
        "power_default_mw": power_mw,
        "power_max_mw": power_mw,
    }
    if not sku.mig_capable:
        settings["error.nvmlDeviceGetMigMode"] = "not_supported"
    return settings


def _old_driver(branch: int) -> dict[str, str]:
    """What a driver of this branch does not know yet (gpu_burnin/hardware/skus.yaml, new_fields)."""
    settings: dict[str, str] = {}
    if branch < 580:
        settings["error.nvmlDeviceGetRepairStatus"] = "function_not_found"
        settings["error.nvmlDeviceGetUnrepairableMemoryFlag_v1"] = "function_not_found"
    if branch < 570:
        settings["error.nvmlDeviceGetTemperatureV"] = "function_not_found"
        # An id that the driver does not know is an invalid argument.
        settings |= {f"error.field_{field}": "invalid_argument" for field in (208, 214, 215, 230)}
    if branch < 545:
        settings["error.nvmlDeviceGetSramEccErrorStatus"] = "function_not_found"
    return settings


def _noise(sku: Sku, source: random.Random) -> dict[str, str]:
    """Values in which healthy GPUs differ: heat, draw, corrected errors, replays, clocks at rest."""
    return {
        "temperature_c": str(source.randint(22, 48)),
        "temperature_margin_c": str(source.randint(35, 60)),
        "power_usage_mw": str(source.randint(25_000, 120_000)),
        "energy_mj": str(source.randint(1, 1 << 40)),
        "clock_graphics_mhz": str(source.choice([210, 345, 1980])),
        "clocks_event_reasons": source.choice(["0x0", "0x1", "0x4"]),
        # At rest the link drops to a lower generation: no fault.
        "pcie_generation": str(source.randint(1, sku.pcie_generation)),
        "pcie_replay": str(source.randint(0, 3)),
        "pcie_correctable_errors": str(source.randint(0, 3)),
        "ecc_corrected_volatile": str(source.choice([0, 0, 0, 1, 2])),
        "ecc_corrected_aggregate": str(source.randint(0, 40)),
        "ecc_uncorrected_aggregate_sram": str(source.choice([0, 0, 0, 1])),
        "remapped_corrected": str(source.choice([0, 0, 1, 4])),
        "remapped_uncorrected": str(source.choice([0, 0, 0, 1])),
        "nvlink_replay": str(source.randint(0, 2)),
    }
