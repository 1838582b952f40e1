"""The GPUs of a lab host: the fake NVML and its scenario, or a machine to which the stand-in packages are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpu_burnin.fleet.mirror.commands import run
from gpu_burnin.system.files import replace_symlink

from .error import LabError
from .image import SUITES, suite
from .nvml import driver_version, fake_nvml
from .packages import distribution
from .packages.build import MACHINE_DEB
from .packages.machine import scenario as machine_scenario
from .paths import REPOSITORY

LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LIST = "import json; from tests.lab.packages.machine import nvml; print(json.dumps(nvml.Nvml().gpus()))"


def install_scenario(merged: Path, name: str, scenario: str) -> None:
    """Give a host a GPU scenario and, where one lies beside it, its kernel log at boot.

    A host with a stand-in machine gets GPUs on its PCI bus by that, and the library by a package; all others get the
    library at once. Raises LabError for a scenario that does not exist.
    """
    source = REPOSITORY / "tests/lab/scenarios" / f"{scenario}.scenario"
    if not source.exists():
        known = ", ".join(sorted(p.stem for p in source.parent.glob("*.scenario")))
        raise LabError(f"host {name}: there is no GPU scenario {scenario!r}: lab_gpu_scenario is one of {known}")
    target = merged / "etc/fake-nvml"
    target.mkdir(exist_ok=True)
    # Programs of the host may be reading it.
    machine_scenario.write_whole(target / "scenario", f"identity = {name}\n{source.read_text()}")
    kernel_log = source.with_suffix(".kmsg")
    if kernel_log.exists():
        shutil.copyfile(kernel_log, target / "kmsg")
    else:
        (target / "kmsg").unlink(missing_ok=True)
    hardware = merged / machine_scenario.HARDWARE
    if hardware.parent.exists():
        machine_scenario.write_whole(hardware, json.dumps(pci_devices(target / "scenario"), indent=1) + "\n")
    else:
        _install_driver(merged / LIBRARIES, driver_version(source.read_text()))


def _install_driver(libraries: Path, version: str) -> None:
    """The files of a driver's libraries that the container toolkit looks for; CUDA's is empty.

    A program of the host that starts meanwhile finds the old ones or the new ones, and one that has them loaded keeps
    what it has.
    """
    link, library = libraries / "libnvidia-ml.so.1", libraries / f"libnvidia-ml.so.{version}"
    machine_scenario.write_whole(library, fake_nvml().read_bytes())
    (libraries / f"libcuda.so.{version}").touch()
    replace_symlink(link, library.name)
    for old in (*libraries.glob("libnvidia-ml.so.*.*"), *libraries.glob("libcuda.so.*.*")):
        if not old.name.endswith(f".so.{version}"):
            old.unlink()


def install_machine(merged: Path, differs: dict[str, Any], repository: Path, mirror_address: str) -> None:
    """Make a host a stand-in machine, not booted yet: kernel tools, the scenario, the distribution's packages."""
    distributed = SUITES[suite()]
    folder = merged / "etc/muster-lab"
    folder.mkdir(parents=True, exist_ok=True)
    scenario = {"kernel": distribution.KERNELS[distributed][0]} | differs
    (merged / machine_scenario.FILE).write_text(json.dumps(scenario, indent=1) + "\n")
    # In the host's tree: its own users are named in dpkg's database.
    shutil.copyfile(repository / MACHINE_DEB, merged / "var/cache" / MACHINE_DEB)
    run(["chroot", merged, "dpkg", "--install", f"/var/cache/{MACHINE_DEB}"])
    key = merged / "etc/apt/keyrings/lab-distribution.asc"
    key.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(repository / "keys/good.asc", key)
    url = f"http://{mirror_address}/nvidia/distribution/{distributed}"
    # In the place of the archive that the image was made from: the lab needs no package source while it runs.
    for archive in (merged / "etc/apt/sources.list.d").iterdir():
        archive.unlink()
    (merged / "etc/apt/sources.list").write_text(f"deb [signed-by=/{key.relative_to(merged)}] {url} ./\n")


def pci_devices(scenario: Path) -> list[dict[str, str]]:
    """The GPUs of a fake NVML scenario as they are on the PCI bus. Raises LabError for a scenario without them."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(fake_nvml().parent),
        "MUSTER_FAKE_NVML_SCENARIO": str(scenario),
        "MUSTER_FAKE_NVML_KERNEL": "/nonexistent",
    }
    command = [sys.executable, "-c", _LIST]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=REPOSITORY)
    if done.returncode != 0:
        raise LabError(f"{scenario}: its GPUs cannot be listed: {done.stderr.strip()[-300:]}")
    return [
        {
            "address": gpu["pci"].lower()[-12:],
            "vendor": f"{gpu['device_id'] & 0xFFFF:04x}",
            "device": f"{gpu['device_id'] >> 16:04x}",
            "subsystem_vendor": f"{gpu['subsystem_id'] & 0xFFFF:04x}",
            "subsystem_device": f"{gpu['subsystem_id'] >> 16:04x}",
            "class": "030200",
        }
        for gpu in json.loads(done.stdout)
    ]
