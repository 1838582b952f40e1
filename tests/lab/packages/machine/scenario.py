"""What a host's machine is made of and how it behaves: /etc/muster-lab/nvidia.json over the values below."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

FILE = "etc/muster-lab/nvidia.json"
HARDWARE = "etc/muster-lab/hardware.json"
# The file system of the host that the stand-ins act on; tests set another.
ROOT_VARIABLE = "MUSTER_LAB_ROOT"

# Every key there is, with the value that a healthy host has.
DEFAULTS: dict[str, Any] = {
    # ---- hardware and kernel ----
    "kernel": "6.1.0-41-amd64",  # the release that runs from the next boot on
    "headers": False,  # the running kernel's headers are there from the start
    "nvswitches": 0,  # on the PCI bus, as up to NVLink 4
    "nvlink5": False,  # NVSwitches behind InfiniBand bridges instead, which nvlsm manages
    "gpu_modules": "either",  # open, proprietary: the GPUs refuse the other kind of kernel modules
    "nouveau": False,  # the kernel's own driver loads at boot unless a file of modprobe.d says otherwise
    "secure_boot": False,
    "key_enrolled": False,  # whether the firmware trusts the key with which DKMS signs
    # ---- installing ----
    "interrupt": [],  # names of packages at whose configuration apt and dpkg are killed, once each
    "dkms_fails": False,  # no module can be built
    "module_kernel": "",  # DKMS builds for this release instead of the running one
    "load_error": "",  # what modprobe says instead of loading the module
    # ---- services ----
    "fabric_stuck": [],  # numbers of the GPUs that never complete their registration with the fabric
    "fabric_after_s": 0.0,  # seconds from the fabric manager's start to completed
    "fabric_exits": False,  # the fabric manager ends at its start
    "dcgm_gpus": None,  # the hostengine sees this many of the GPUs
    "dcgm_exits": False,  # the hostengine ends at its start
    "dcgm_health": "Healthy",  # or Warning, Failure: what `dcgmi health -c` says
    "dcgm_deaf": False,  # the hostengine runs and answers nobody
    "persistenced_exits": False,
}


class ScenarioError(Exception):
    """The scenario makes no sense; the message says what and where."""


def root() -> Path:
    """The root of the host's file system."""
    return Path(os.environ.get(ROOT_VARIABLE, "/"))


def read(top: Path) -> dict[str, Any]:
    """The scenario of a host. Raises ScenarioError: a misspelt fault would look like a healthy host."""
    path = top / FILE
    try:
        given = json.loads(path.read_text()) if path.exists() else {}
    except ValueError as error:
        raise ScenarioError(f"{path}: {error}") from None
    return DEFAULTS | check(given, str(path))


def check(given: Any, where: str) -> dict[str, Any]:
    """The values as given. Raises ScenarioError for an unknown key or a value of another kind than its default's."""
    if not isinstance(given, dict):
        raise ScenarioError(
            f"{where}: it is no mapping of keys to values: see DEFAULTS in tests/lab/packages/machine/scenario.py"
        )
    for key, value in given.items():
        if key not in DEFAULTS:
            raise ScenarioError(f"{where}: {key} is unknown: use one of {', '.join(DEFAULTS)}")
        usual = DEFAULTS[key]
        kinds = (int, type(None)) if usual is None else (int, float) if isinstance(usual, float) else (type(usual),)
        if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(usual, bool)):
            raise ScenarioError(f"{where}: {key} is {value!r}: give it a value like {usual!r}")
    return given


def change(top: Path, values: dict[str, Any]) -> None:
    """Set some values of a host's scenario. Raises ScenarioError."""
    path = top / FILE
    old = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(old | check(values, "the new values"), indent=1) + "\n")


def write_whole(path: Path, content: str | bytes, folder: Path | None = None) -> None:
    """Write a file that programs may be reading: they find what it was or what it is now.

    Until then it is in `folder`: in its own one where nothing lists that.
    """
    fresh = (folder or path.parent) / f".{path.name}.{threading.get_native_id()}"
    fresh.write_bytes(content.encode() if isinstance(content, str) else content)
    fresh.replace(path)


def devices(top: Path) -> list[dict[str, str]]:
    """The GPUs on the PCI bus: address, vendor, device, subsystem_vendor, subsystem_device, class."""
    path = top / HARDWARE
    listing: list[dict[str, str]] = json.loads(path.read_text()) if path.exists() else []
    return listing
