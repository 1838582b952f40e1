"""The stand-in kernel of a host: a tree with proc, sys and lib/modules; what is loaded is lost at each boot."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

from . import scenario

ROOT = "var/lib/muster-lab/kernel"
# What the driver knows of the GPUs, as lines of the fake NVML library: it reads them after those of its scenario.
NVML_STATE = "nvml.scenario"
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
# Modules of the kernel itself that the stand-in has; ib_umad is what nvlsm speaks through.
BUILT_IN = ("ib_umad", "nouveau")
MARK = "# stand-in kernel module of the Muster lab"
OPEN, PROPRIETARY = "open", "proprietary"
LICENSES = {OPEN: "Dual MIT/GPL", PROPRIETARY: "NVIDIA"}
_EFI = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
# NVIDIA's NVSwitch of HGX H100; a ConnectX-7 in front of an NVSwitch of NVLink 5 has SW_MNG in its product data.
_NVSWITCH = {"vendor": "10de", "device": "22a3", "class": "068000"}
_BRIDGE = {"vendor": "15b3", "device": "1021", "class": "020700"}


class KernelError(Exception):
    """The kernel refuses; the message is what modprobe prints."""


class Kernel:
    """The stand-in kernel below a host's root."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.tree = top / ROOT
        self.scenario: dict[str, Any] = scenario.read(top)

    # ---- a boot ----

    def boot(self) -> None:
        """Begin anew: nothing loaded but what loads by itself; the disk (lib/modules) stays."""
        for name in ("proc", "sys", "holders"):
            shutil.rmtree(self.tree / name, ignore_errors=True)
        self._keep_modes()
        release = str(self.scenario["kernel"])
        self._put("proc/sys/kernel/osrelease", f"{release}\n")
        self._put("proc/version", f"Linux version {release} (stand-in of the Muster lab)\n")
        self._put("proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz-{release} root=/dev/vda1 ro quiet\n")
        self._put("proc/modules", "")
        (self.tree / "lib/modules" / release).mkdir(parents=True, exist_ok=True)
        if self.scenario["headers"]:
            self.add_headers(release)
        self._add_bus()
        if self.scenario["secure_boot"]:
            self._put(f"sys/firmware/efi/efivars/SecureBoot-{_EFI}", b"\x06\x00\x00\x00\x01")
        if self.scenario["nouveau"] and not self.blacklisted("nouveau"):
            self._set_loaded("nouveau", 2400256)
        elif self.gpus() and self.module("nvidia") and not self.blacklisted("nvidia"):
            # As udev does, by the module's alias for the GPUs; nobody sees an error then but the kernel log.
            with contextlib.suppress(KernelError):
                self.load("nvidia")

    def _add_bus(self) -> None:
        (self.tree / "sys/bus/pci/devices").mkdir(parents=True)
        for device in scenario.devices(self.top):
            self._add_device(device["address"], device)
        for number in range(int(self.scenario["nvswitches"])):
            self._add_device(f"0000:{0xC5 + number:02x}:00.0", _NVSWITCH)
        if self.scenario["nvlink5"]:
            for number in range(4):
                address = f"0000:{0x05 + number:02x}:00.0"
                self._add_device(address, _BRIDGE)
                self._put(f"sys/bus/pci/devices/{address}/vpd", b"\x82\x07\x00NVSwitch\x90SW_MNG")

    def _add_device(self, address: str, device: dict[str, str]) -> None:
        ids = {"subsystem_vendor": device["vendor"], "subsystem_device": "0000", **device}
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device", "class"):
            self._put(f"sys/bus/pci/devices/{address}/{name}", f"0x{ids[name]}\n")
        self._put(f"sys/bus/pci/devices/{address}/numa_node", "0\n")

    # ---- facts ----

    @property
    def release(self) -> str:
        """The release of the running kernel."""
        return (self.tree / "proc/sys/kernel/osrelease").read_text().strip()

    def gpus(self) -> list[dict[str, str]]:
        """The GPUs on the bus."""
        return scenario.devices(self.top)

    def has_fabric(self) -> bool:
        """Whether NVSwitches connect the GPUs."""
        return bool(self.scenario["nvswitches"]) or bool(self.scenario["nvlink5"])

    def module(self, name: str, release: str = "") -> Path | None:
        """The file of a module for a kernel (by default the running one), the one that depmod would choose."""
        folder = self.tree / "lib/modules" / (release or self.release)
        found = sorted(
            folder.rglob(f"{name}.ko"), key=lambda path: (path.relative_to(folder).parts[0] != "updates", path)
        )
        return found[0] if found else None

    def loaded(self) -> dict[str, str]:
        """The driver's version and flavour; empty when it is not loaded."""
        path = self.tree / "sys/module/nvidia/version"
        if not path.exists():
            return {}
        text = (self.tree / "proc/driver/nvidia/version").read_text()
        return {"version": path.read_text().strip(), "flavour": OPEN if "Open Kernel" in text else PROPRIETARY}

    def modules(self) -> list[str]:
        """The names of the loaded modules, as the kernel writes them."""
        return [line.split()[0] for line in (self.tree / "proc/modules").read_text().splitlines()]

    def blacklisted(self, name: str) -> bool:
        """Whether a file of modprobe.d keeps a module from loading by itself."""
        words = (["blacklist", name], ["install", name, "/bin/false"], ["install", name, "/bin/true"])
        files = [
            path for folder in ("etc", "usr/lib", "run") for path in (self.top / folder / "modprobe.d").glob("*.conf")
        ]
        return any(line.split() in words for path in files for line in path.read_text().splitlines())

    def holders(self) -> list[str]:
        """The programs that keep the driver open."""
        return sorted(path.name for path in (self.tree / "holders").glob("*") if _runs(path.read_text()))

    # ---- changes ----

    def load(self, name: str) -> None:
        """Load a module and what it needs. Raises KernelError with the kernel's reason."""
        key = name.replace("_", "-")
        if key in BUILT_IN or name in BUILT_IN:
            self._set_loaded(name, 36864)
            return
        if key != "nvidia":
            self.load("nvidia")
        path = self.module(key)
        if path is None:
            raise KernelError(f"Module {name} not found in directory /lib/modules/{self.release}")
        if key.replace("-", "_") in self.modules():
            return
        fields = describe(path)
        reason = self._refusal(fields) if key == "nvidia" else ""
        if reason:
            raise KernelError(f"could not insert '{name}': {reason}")
        self._set_loaded(key.replace("-", "_"), 9760768)
        if key == "nvidia":
            self._start_driver(fields)
        if key == "nvidia-uvm":
            self._add_node("nvidia-uvm")

    def _refusal(self, fields: dict[str, str]) -> str:
        flavour = OPEN if "GPL" in fields["license"] else PROPRIETARY
        if self.scenario["load_error"]:
            return str(self.scenario["load_error"])
        if self.scenario["secure_boot"] and not (
            fields.get("signer") and (fields["signer"].startswith("Canonical") or self.scenario["key_enrolled"])
        ):
            return "Key was rejected by service"
        if fields["vermagic"].split()[0] != self.release:
            return "Exec format error"
        if "nouveau" in self.modules():
            self.log("NVRM: GPU is already bound to nouveau.")
            return "No such device"
        if not self.gpus():
            self.log("NVRM: No NVIDIA GPU found.")
            return "No such device"
        if self.scenario["gpu_modules"] not in ("either", flavour):
            wanted = self.scenario["gpu_modules"]
            self.log(f"NVRM: installed in this system requires use of the NVIDIA {wanted} kernel modules.")
            return "No such device"
        return ""

    def _start_driver(self, fields: dict[str, str]) -> None:
        flavour = "Open Kernel Module for x86_64" if "GPL" in fields["license"] else "x86_64 Kernel Module"
        line = f"NVRM version: NVIDIA UNIX {flavour}  {fields['version']}  Release Build  (lab)\n"
        self._put("proc/driver/nvidia/version", line + "GCC version:  gcc version 12.2.0\n")
        self._put("sys/module/nvidia/version", f"{fields['version']}\n")
        for number, gpu in enumerate(self.gpus()):
            self._put(f"proc/driver/nvidia/gpus/{gpu['address']}/information", f"Device Minor: \t {number}\n")
            driver = self.tree / "sys/bus/pci/devices" / gpu["address"] / "driver"
            driver.symlink_to("../../../../bus/pci/drivers/nvidia")
            self._add_node(f"nvidia{number}")
        self._add_node("nvidiactl")
        # Persistence and power limits begin anew, and so does the fabric: 2 is in progress, 0 not supported.
        self.set_nvml({"persistence": "no", "fabric_state": "2" if self.has_fabric() else "0"})
        self.log(f"NVRM: loading NVIDIA UNIX {flavour}  {fields['version']}")

    def unload(self, name: str) -> None:
        """Unload a module and those that need it. Raises KernelError when a program keeps it open."""
        kernel_name = name.replace("-", "_")
        if kernel_name not in self.modules():
            raise KernelError(f"Module {kernel_name} is not currently loaded")
        if kernel_name == "nvidia":
            if self.holders():
                raise KernelError("Module nvidia is in use.")
            gone = [loaded for loaded in self.modules() if loaded.startswith("nvidia")]
            shutil.rmtree(self.tree / "proc/driver/nvidia")
            for gpu in self.gpus():
                (self.tree / "sys/bus/pci/devices" / gpu["address"] / "driver").unlink()
            self._keep_modes()
        else:
            gone = [kernel_name]
        for module in gone:
            shutil.rmtree(self.tree / "sys/module" / module, ignore_errors=True)
        kept = [line for line in (self.tree / "proc/modules").read_text().splitlines() if line.split()[0] not in gone]
        self._put("proc/modules", "".join(f"{line}\n" for line in kept))

    def add_headers(self, release: str) -> None:
        """Put the headers of a kernel where DKMS looks for them."""
        self._put(f"lib/modules/{release}/build/Makefile", "# stand-in\n")

    def remove_headers(self, release: str) -> None:
        """Take a kernel's headers away."""
        shutil.rmtree(self.tree / "lib/modules" / release / "build", ignore_errors=True)

    def add_module(self, release: str, version: str, flavour: str, signer: str = "") -> None:
        """Put the driver's modules for a kernel on the disk, where DKMS installs them."""
        for name in MODULES:
            text = module_text(name, version, flavour, release, signer)
            self._put(f"lib/modules/{release}/updates/dkms/{name}.ko", text)

    def remove_module(self, version: str) -> None:
        """Take the modules of a version away, from all kernels."""
        for path in (self.tree / "lib/modules").glob("*/updates/dkms/nvidia*.ko"):
            if describe(path)["version"] == version:
                path.unlink()

    def hold(self, program: str, pid: int) -> None:
        """Note that a program keeps the driver open while it runs."""
        self._put(f"holders/{program}", str(pid))

    def set_nvml(self, values: dict[str, str]) -> None:
        """Change what the driver says of the GPUs: keys of the fake NVML's scenario (`gpuN.KEY`: of one GPU)."""
        path = self.tree / NVML_STATE
        # Several services of a boot change it at the same time.
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lines = self.nvml() | values
            scenario.write_whole(path, "".join(f"{key} = {value}\n" for key, value in lines.items()))

    def nvml(self) -> dict[str, str]:
        """What the driver says of the GPUs, beyond the scenario of the fake NVML."""
        path = self.tree / NVML_STATE
        return dict(line.split(" = ", 1) for line in path.read_text().splitlines()) if path.exists() else {}

    def log(self, text: str) -> None:
        """Write a line to the kernel log of the lab host."""
        path = self.top / "run/lab/kmsg"
        if path.exists():
            with path.open("r+") as log:
                last = max((int(line.split(",")[1]) for line in log if line[:1].isdigit()), default=-1)
                log.write(f"4,{last + 1},1000000,-;{text}\n")

    def _keep_modes(self) -> None:
        """What outlives a restart of the driver is on the boards: ECC, of which the pending mode now holds.

        MIG does not, on GPUs since Hopper (NVIDIA MIG User Guide, "Enable MIG Mode").
        """
        kept = {
            key.replace("pending", "current"): value
            for key, value in self.nvml().items()
            if key.endswith("ecc_pending")
        }
        kept |= {key: value for key, value in self.nvml().items() if key.endswith("ecc_pending")}
        self.tree.mkdir(parents=True, exist_ok=True)
        scenario.write_whole(self.tree / NVML_STATE, "".join(f"{key} = {value}\n" for key, value in kept.items()))

    def _set_loaded(self, name: str, size_bytes: int) -> None:
        if name not in self.modules():
            with (self.tree / "proc/modules").open("a") as modules:
                modules.write(f"{name} {size_bytes} 0 - Live 0x0000000000000000\n")
            (self.tree / "sys/module" / name).mkdir(parents=True, exist_ok=True)

    def _add_node(self, name: str) -> None:
        """A device file that can be opened: with the numbers of /dev/null, since nobody answers for NVIDIA's."""
        path = self.top / "dev" / name
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        with contextlib.suppress(PermissionError):
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            path.chmod(0o666)

    def _put(self, name: str, content: str | bytes) -> None:
        path = self.tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scenario.write_whole(path, content, self.tree)


def module_text(name: str, version: str, flavour: str, release: str, signer: str = "") -> str:
    """The content of a stand-in module: what modinfo says of it."""
    fields = {"license": LICENSES[flavour], "version": version, "name": name.replace("-", "_"),
              "vermagic": f"{release} SMP preempt mod_unload modversions ", "signer": signer}  # fmt: skip
    return f"{MARK}\n" + "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


def describe(path: Path) -> dict[str, str]:
    """The fields of a stand-in module. Raises KernelError for any other file."""
    lines = path.read_text(errors="replace").splitlines()
    if lines[:1] != [MARK]:
        raise KernelError(f"{path} is no stand-in module")
    return dict(re.split(r":\s*", line, maxsplit=1) for line in lines[1:])


def _runs(pid: str) -> bool:
    return pid.isdigit() and Path("/proc", pid).exists()
