"""A made-up host of the NVIDIA stack: a root with the kernel's files, and the answers of its commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import NotInstalledError, Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.facts import Facts, gather

KERNEL = "6.1.0-50-amd64"
MAINTAINERS = {
    "nvidia": "NVIDIA Corporation <cudatools@nvidia.com>",
    "debian": "Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>",
    "ubuntu": "Ubuntu Core Developers <ubuntu-devel-discuss@lists.ubuntu.com>",
    "": "Somebody <somebody@example.com>",
}
GPU = {
    "uuid": "GPU-1", "pci": "0000:18:00.0", "mig": "off", "mig_pending": "off", "ecc": "on", "ecc_pending": "on",
    "persistence": True, "power_limit_w": 700.0, "fabric_state": "completed", "fabric_status": 0, "errors": {},
}  # fmt: skip
Answer = Output | Exception | Callable[[Sequence[str]], Output]


class NvidiaHost:
    """Says what it has been given; a program that was not is not installed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[list[str]] = []
        self.answers: dict[str, Answer] = {
            "dpkg-query": Output(0, "", ""),
            "systemctl": self._systemctl,
            "/sbin/ldconfig": Output(0, "0 libs found\n", ""),
            "modinfo": self._modinfo,
            "modprobe": self._modprobe,
        }
        self.services: dict[str, str] = {}
        self._modules: dict[str, str] = {}
        self.put("proc/sys/kernel/osrelease", f"{KERNEL}\n")
        self.put("proc/cmdline", "BOOT_IMAGE=/vmlinuz quiet\n")
        self.put("proc/modules", "ext4 1000 1 - Live 0x0\n")
        (root / "sys/bus/pci/devices").mkdir(parents=True)

    def put(self, name: str, text: str) -> Path:
        """Write a file of the root."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def add_device(
        self, address: str = "0000:18:00.0", device: str = "2330", class_code: str = "030200", **other: str
    ) -> None:
        """Put a device on the bus, by default an H100."""
        files = {"vendor": "10de", "subsystem_vendor": "10de", "subsystem_device": "16c1"} | other
        driver = files.pop("driver", "")
        for name, text in {**files, "device": device, "class": class_code}.items():
            self.put(f"sys/bus/pci/devices/{address}/{name}", f"0x{text}\n")
        if driver:
            (self.root / "sys/bus/pci/devices" / address / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    def load(self, version: str, flavour: str = "open") -> None:
        """Have a module loaded."""
        kind = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
        self.put("proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {kind}  {version}  Release Build\nGCC\n")

    def add_module(
        self, version: str, kernel: str = KERNEL, name: str = "updates/dkms/nvidia.ko", **fields: str
    ) -> None:
        """Put a module on the disk."""
        path = self.put(f"lib/modules/{kernel}/{name}", "")
        lines = {"filename": str(path), "version": version, "license": "Dual MIT/GPL"} | fields
        self._modules[str(path)] = "".join(f"{key}: {value}\n" for key, value in lines.items())

    def add_package(
        self, name: str, version: str, source: str = "nvidia", want: str = "install", state: str = "installed"
    ) -> None:
        """Have dpkg know a package."""
        known = self.answers["dpkg-query"]
        assert isinstance(known, Output)
        line = "\t".join((name, version, want, state, MAINTAINERS[source]))
        self.answers["dpkg-query"] = Output(1, f"{known.out}{line}\n", "no packages found matching nvlsm\n")

    def add_library(self, version: str) -> Path:
        """Have the loader know libnvidia-ml.so.1 of a version."""
        real = self.put(f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}", "")
        link = real.with_name("libnvidia-ml.so.1")
        link.unlink(missing_ok=True)
        link.symlink_to(real.name)
        self.answers["/sbin/ldconfig"] = Output(0, f"1 libs found\n\tlibnvidia-ml.so.1 (libc6,x86-64) => {link}\n", "")
        return link

    def answer_nvml(self, **answer: Any) -> None:
        """Have NVML give these answers; by default it works and knows one GPU."""
        whole = {
            "code": 0, "error": "", "driver_version": "580.105.08", "library_version": "580.105.08", "gpus": [GPU],
            "simulated": False,
        }  # fmt: skip
        self.answers[sys.executable] = Output(0, json.dumps(whole | answer) + "\n", "")

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Output:
        """The answer of a command."""
        self.commands.append(list(command))
        answer = self.answers.get(command[0], NotInstalledError(f"{command[0]} is not installed"))
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, Output) else answer(command)

    def gather(self, **options: Any) -> Facts:
        """Its facts."""
        return gather(self.root, self.run, **options)

    def _systemctl(self, command: Sequence[str]) -> Output:
        units = [word.removesuffix(".service") for word in command if word.endswith(".service")]
        blocks = []
        for unit in units:
            state = self.services.get(unit)
            load = "loaded" if state else "not-found"
            blocks.append(f"LoadState={load}\nActiveState={state or 'inactive'}\n")
        return Output(0, "\n".join(blocks), "")

    def _modprobe(self, command: Sequence[str]) -> Output:
        """With --show-depends: of the modules that were added, the one below updates/ first."""
        release, name = command[list(command).index("-S") + 1], command[-1]
        folder = self.root / "lib/modules" / release
        files = [Path(path) for path in self._modules if Path(path).is_file() and Path(path).is_relative_to(folder)]
        mine = [path for path in files if path.name.split(".")[0] == name]
        if not mine and files and name == "nvidia":
            return Output(0, f"install modprobe -i {files[0].name.split('.')[0]} $CMDLINE_OPTS\n", "")
        mine.sort(key=lambda path: path.relative_to(folder).parts[0] != "updates")
        missing = f"modprobe: FATAL: Module {name} not found in directory {folder}\n"
        return Output(0, f"insmod {mine[0]} \n", "") if mine else Output(1, "", missing)

    def _modinfo(self, command: Sequence[str]) -> Output:
        known = self._modules.get(command[-1])
        return Output(0, known, "") if known else Output(1, "", f"modinfo: ERROR: Module {command[-1]} not found.\n")


def bare(root: Path) -> NvidiaHost:
    """A host with one H100 and its kernel's headers, and nothing of NVIDIA's."""
    host = NvidiaHost(root)
    host.add_device()
    host.put(f"lib/modules/{KERNEL}/build/Makefile", "")
    host.answer_nvml(code=12, error="no such file", driver_version=None, library_version=None, gpus=None)
    return host


def secure_boot(host: NvidiaHost) -> None:
    """Have the firmware load signed kernels and modules alone."""
    host.put("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c", "\6\0\0\0\1")


def h100(root: Path) -> NvidiaHost:
    """A host with two H100 and an NVSwitch whose stack is as it should be."""
    host = NvidiaHost(root)
    for address in ("0000:18:00.0", "0000:2a:00.0"):
        host.add_device(address, driver="nvidia")
    host.add_device("0000:05:00.0", device="22a3", class_code="068000")
    host.put(f"lib/modules/{KERNEL}/build/Makefile", "")
    host.load("580.105.08")
    host.add_module("580.105.08")
    host.add_library("580.105.08")
    for name in ("nvidia-open", "libnvidia-compute", "nvidia-fabricmanager", "datacenter-gpu-manager-4-core"):
        host.add_package(name, "580.105.08-1", want="hold")
    host.services = dict.fromkeys(("nvidia-fabricmanager", "nvidia-dcgm", "nvidia-persistenced"), "active")
    host.answers["nvidia-ctk"] = Output(0, "NVIDIA Container Toolkit CLI version 1.20.1\ncommit: x\n", "")
    host.answer_nvml(gpus=[GPU, GPU | {"uuid": "GPU-2", "pci": "0000:2a:00.0"}])
    return host
