"""nvidia-smi: the listing, `--query-gpu`, and what sets a mode. Anything else is refused rather than made up."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from . import nvml, scenario
from .kernel import Kernel

_MESSAGES = {
    nvml.DRIVER_NOT_LOADED: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n",
    nvml.LIBRARY_NOT_FOUND: "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.",
    nvml.MISMATCH: "Failed to initialize NVML: Driver/library version mismatch",
}


def _mode(name: str, position: int) -> Callable[[dict[str, Any]], str]:
    return lambda gpu: "[N/A]" if gpu[name] is None else "Enabled" if gpu[name][position] else "Disabled"


_FIELDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "index": lambda gpu: str(gpu["index"]),
    "name": lambda gpu: str(gpu["name"]),
    "uuid": lambda gpu: str(gpu["uuid"]),
    "serial": lambda gpu: str(gpu["serial"]),
    "pci.bus_id": lambda gpu: str(gpu["pci"]),
    "driver_version": lambda gpu: str(gpu["driver"]),
    "persistence_mode": lambda gpu: "Enabled" if gpu["persistence"] else "Disabled",
    "ecc.mode.current": _mode("ecc", 0),
    "ecc.mode.pending": _mode("ecc", 1),
    "mig.mode.current": _mode("mig", 0),
    "mig.mode.pending": _mode("mig", 1),
    "power.limit": lambda gpu: f"{gpu['power_limit_mw'] / 1000:.2f} W",
    "power.default_limit": lambda gpu: f"{gpu['power_default_mw'] / 1000:.2f} W",
    "temperature.gpu": lambda gpu: str(gpu["temperature_c"]),
    "fabric.state": lambda gpu: nvml.FABRIC_STATES[gpu["fabric_state"]],
    "fabric.status": lambda gpu: "Success" if gpu["fabric_status"] == 0 else "Failure",
}
# Option, long option: the key of the fake NVML and how a value is told.
_SETTINGS = {
    "-pm": "persistence",
    "--persistence-mode": "persistence",
    "-e": "ecc_pending",
    "--ecc-config": "ecc_pending",
    "-mig": "mig",
    "--multi-instance-gpu": "mig",
    "-pl": "power_limit_mw",
    "--power-limit": "power_limit_mw",
}


def main(arguments: list[str]) -> int:
    """Run nvidia-smi; its exit code."""
    try:
        library = nvml.Nvml()
        gpus = [gpu | {"driver": library.driver_version()} for gpu in library.gpus()]
    except nvml.NvmlError as error:
        print(_MESSAGES.get(error.code, f"Failed to initialize NVML: error {error.code}"))
        return error.code
    if not gpus:
        print("No devices were found")
        return 6
    options = _options(arguments)
    chosen = options.pop("-i", options.pop("--id", ""))
    if chosen:
        words = [word.lower() for word in chosen.split(",")]
        gpus = [gpu for gpu in gpus if {str(gpu["index"]), gpu["uuid"].lower(), gpu["pci"].lower()} & set(words)]
    query, form = options.pop("--query-gpu", ""), options.pop("--format", "")
    settings = {key: options.pop(key) for key in list(options) if key in _SETTINGS}
    listing = options.pop("-L", options.pop("--list-gpus", None))
    if options:
        print(
            f"Invalid combination of input arguments: this stand-in does not know {next(iter(options))}",
            file=sys.stderr,
        )
        return 2
    for option, value in settings.items():
        _set(Kernel(scenario.root()), gpus, _SETTINGS[option], value)
    if settings:
        print("All done.")
    elif query:
        return _query(gpus, query.split(","), form.split(","))
    elif listing is not None:
        print("".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n" for gpu in gpus), end="")
    else:
        print(f"NVIDIA-SMI {gpus[0]['driver']}  Driver Version: {gpus[0]['driver']} (stand-in of the Muster lab)")
        print("".join(f"|   {gpu['index']}  {gpu['name']}  {gpu['pci']} |\n" for gpu in gpus), end="")
    return 0


def _options(arguments: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        key, equals, value = word.partition("=")
        options[key] = value if equals or key in ("-L", "--list-gpus") else next(rest, "")
    return options


def _query(gpus: list[dict[str, Any]], fields: list[str], form: list[str]) -> int:
    unknown = [field for field in fields if field.strip() not in _FIELDS]
    if unknown:
        print(f'Field "{unknown[0]}" is not a valid field to query.')
        return 2
    if "noheader" not in form:
        print(", ".join(fields))
    for gpu in gpus:
        values = [_FIELDS[field.strip()](gpu) for field in fields]
        print(", ".join(value.removesuffix(" W") if "nounits" in form else value for value in values))
    return 0


def _set(kernel: Kernel, gpus: list[dict[str, Any]], key: str, value: str) -> None:
    for gpu in gpus:
        values = {key: "yes" if value in ("1", "ENABLED") else "no"}
        if key == "power_limit_mw":
            values = {name: str(int(float(value) * 1000)) for name in (key, "power_enforced_mw")}
        elif key == "mig":
            # GPUs since Ampere need no reset of the machine for it: the mode holds at once where nothing runs.
            values = {"mig_current": values[key], "mig_pending": values[key]}
        kernel.set_nvml({f"gpu{gpu['index']}.{name}": text for name, text in values.items()})
