"""What is done about a driver: each state that a host can be in, the step it leads to and the words it is told in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.filter.gpu_models import gpu_models
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import (
    apt,
    carry_out,
    decide,
    driver_packages,
    reboots,
    services,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.decide import Plan, Wanted
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.kernel import Kernel
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import Models
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.settings import Settings, unit
from ansible_collections.muster.fleet.plugins.modules.nvidia_driver import system

from tests.support.nvidia_host import GPU, KERNEL, NvidiaHost, bare, secure_boot
from tests.support.nvidia_repository import REPOSITORY

NEW, OLD = "580.105.08", "575.57.08"
NEXT_KERNEL = "6.1.0-51-amd64"
WANTED = Wanted("nvidia", NEW, "debian12", Models(json.loads(gpu_models("all"))))
Change = Callable[[NvidiaHost], Any]


def installed(root: Path, version: str = NEW) -> NvidiaHost:
    """A host with an H100 whose driver is as WANTED."""
    host = bare(root)
    for name in ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libnvidia-ml1"):
        host.add_package(name, f"{version}-1", want="hold")
    host.add_module(version)
    host.add_library(version)
    host.load(version)
    host.services = {"nvidia-persistenced": "active"}
    host.answer_nvml(driver_version=version, library_version=version)
    return host


@pytest.fixture
def host(tmp_path: Path) -> NvidiaHost:
    """As WANTED."""
    return installed(tmp_path)


def plan_of(host: NvidiaHost, wanted: Wanted = WANTED, done: dict[tuple[str, ...], str] | None = None) -> Plan:
    return decide.decide(host.gather(), wanted, done)


def fails(code: int) -> Change:
    return lambda host: host.answer_nvml(code=code, error=f"NVML error {code}", gpus=None)


def unloaded(host: NvidiaHost) -> None:
    (host.root / "proc/driver/nvidia/version").unlink()
    fails(9)(host)


def nouveau(host: NvidiaHost) -> None:
    unloaded(host)
    host.put("proc/modules", "nouveau 2400256 0 - Live 0x0\n")


def both(*changes: Change) -> Change:
    def change(host: NvidiaHost) -> None:
        for one in changes:
            one(host)

    return change


def test_a_host_as_asked_has_nothing_to_do(tmp_path: Path) -> None:
    plan = plan_of(installed(tmp_path))
    assert plan == Plan() and plan.held == ""


def test_a_bare_host_begins_with_the_packages(tmp_path: Path) -> None:
    (action,) = plan_of(bare(tmp_path)).actions
    assert (action.kind, action.why) == ("install", f"nvidia-kernel-open-dkms {NEW} is not installed")


@pytest.mark.parametrize(
    ("change", "kind", "why"),
    [
        (
            lambda host: host.add_package("nvidia-modprobe", f"{NEW}-1", want="hold", state="half-configured"),
            "repair",
            "nvidia-modprobe is half-configured: its installation was interrupted",
        ),
        (lambda host: host.add_package("libcuda1", f"{NEW}-1"), "hold", "libcuda1 is not held, so"),
        (
            lambda host: host.put(f"lib/modules/{NEXT_KERNEL}/modules.dep", ""),
            "build",
            f"the kernel that the next boot takes, {NEXT_KERNEL} has no module and needs the open one of {NEW}",
        ),
        (
            lambda host: host.add_module(NEW, license="NVIDIA"),
            "build",
            f"the running kernel {KERNEL} has the proprietary module {NEW} and needs the open one of {NEW}",
        ),
        (
            lambda host: host.add_module(OLD),
            "build",
            f"the running kernel {KERNEL} has the open module {OLD} and needs the open one of {NEW}",
        ),
        (
            lambda host: (host.root / f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko").unlink(),
            "build",
            f"the running kernel {KERNEL} has no module and needs the open one of {NEW}",
        ),
        (unloaded, "load", f"no NVIDIA module is loaded and {NEW} is on the disk"),
        (lambda host: host.load(OLD), "reload", f"the module {OLD} is loaded and {NEW} (open) is on the disk"),
        (
            lambda host: host.load(NEW, "proprietary"),
            "reload",
            f"the proprietary module {NEW} is loaded and {NEW} (open) is on the disk",
        ),
        (
            lambda host: host.services.update({"nvidia-persistenced": "failed"}),
            "persist",
            "nvidia-persistenced is failed",
        ),
        (
            lambda host: host.answer_nvml(gpus=[GPU | {"persistence": False}]),
            "set",
            "persistence of 0000:18:00.0 is off",
        ),
        (
            lambda host: host.answer_nvml(gpus=[GPU | {"ecc_pending": "off"}]),
            "set",
            "ECC of 0000:18:00.0 is off from its next reset on",
        ),
        (
            lambda host: host.answer_nvml(gpus=[GPU | {"mig": "on", "mig_pending": "on"}]),
            "set",
            "MIG of 0000:18:00.0 is on and should be off",
        ),
    ],
)
def test_the_next_step(host: NvidiaHost, change: Change, kind: str, why: str) -> None:
    change(host)
    plan = plan_of(host)
    assert [action.kind for action in plan.actions] == [kind]
    assert plan.actions[0].why.startswith(why)
    # The same on a host that may do work is said and not done.
    busy = plan_of(host, replace(WANTED, busy="kubelet runs"))
    assert (busy.actions, busy.reboot) == ((), "")
    assert busy.warnings[0].endswith("kubelet runs; playbooks/driver_upgrade.yml -l HOST drains it and changes that")
    assert busy.waits == busy.warnings[0]


@pytest.mark.parametrize("version", [NEW, OLD])
def test_up_and_down_the_versions(tmp_path: Path, version: str) -> None:
    other = OLD if version == NEW else NEW
    host = installed(tmp_path, other)
    plan = plan_of(host, replace(WANTED, version=version))
    assert plan.actions[0].why == f"nvidia-kernel-open-dkms is {other}-1 and should be {version}"
    busy = plan_of(host, replace(WANTED, version=version, busy="kubelet runs"))
    assert busy.warnings == (
        f"asks for driver {version}, {other} is loaded, and kubelet runs; "
        "playbooks/driver_upgrade.yml -l HOST drains it and changes that",
    )


@pytest.mark.parametrize(
    ("change", "wanted", "said"),
    [
        (lambda host: None, {"version": "530.30.02", "cuda": "13"}, "is older than 580.65.06, which the CUDA 13"),
        (lambda host: None, {"version": "333.1"}, "branch 333, which is none of NVIDIA's for data centers since 450"),
        (lambda host: None, {"system": "fedora42"}, "source nvidia has no packages for fedora42"),
        (lambda host: None, {"source": "ubuntu"}, "source ubuntu has no packages for debian12"),
        (lambda host: host.put("usr/bin/nvidia-uninstall", ""), {}, "beside packages; run: nvidia-uninstall"),
        (
            lambda host: host.add_package("nvidia-smi", "535.261.03-1", "debian"),
            {},
            "has driver packages of debian (nvidia-smi), but fleet_nvidia_source is nvidia; purge them",
        ),
        (lambda host: host.add_device(device="1d81"), {"version": "590.48.01"}, "too new for volta: its last branch"),
        (
            lambda host: host.add_device(device="1d81"),
            {"modules": "open"},
            "volta needs the proprietary kernel modules and nvidia_driver_modules is open; set it to auto",
        ),
        (
            lambda host: (host.add_device(device="1d81"), host.add_device("0000:2a:00.0", "2901")),
            {},
            "no kernel modules drive all of its GPUs: ",
        ),
        (lambda host: host.add_device(device="3fff"), {}, "its GPU with PCI id 10de:3fff is of no known architecture"),
        (lambda host: host.add_device(device="2901"), {"version": "560.35.05"}, "too old for NVIDIA B200, which"),
        (
            lambda host: host.add_device(class_code="068000"),
            {},
            "no NVIDIA GPU is on the PCI bus; look at `lspci -d 10de:`",
        ),
        (lambda host: (host.root / "proc/sys/kernel/osrelease").unlink(), {}, "kernel.release cannot be read: "),
    ],
)  # fmt: skip
def test_what_is_refused_before_anything_is_changed(
    tmp_path: Path, change: Change, wanted: dict[str, Any], said: str
) -> None:
    host = bare(tmp_path)
    change(host)
    plan = plan_of(host, replace(WANTED, **wanted))
    assert said in plan.held and plan.actions == ()
    assert not plan.held.endswith(".")


@pytest.mark.parametrize(
    ("change", "wanted", "held"),
    [
        (
            both(secure_boot, unloaded),
            {},
            r"Secure Boot is on and \S+/nvidia.ko is signed by nobody; have DKMS sign it .* `mokutil --import ",
        ),
        (
            both(secure_boot, unloaded, lambda host: host.add_module(NEW, signer="DKMS module signing key")),
            {},
            r"Secure Boot is on and the firmware does not trust the key that signed .*; run `mokutil --import ",
        ),
        (nouveau, {"nouveau_off": False}, "nouveau is loaded and no file of modprobe.d keeps it off; apply"),
        (nouveau, {}, "nouveau is loaded, and a reboot without it makes room"),
        (both(fails(18), lambda host: host.add_library(OLD)), {}, rf"libnvidia-ml is {OLD} and .* {NEW}.*one ver"),
        (fails(15), {}, "NVML error 15; look at the kernel log for lines with NVRM, then reboot"),
        (
            lambda host: host.answer_nvml(gpus=[GPU | {"ecc": "off"}]),
            {},
            "ECC of 0000:18:00.0 is off until its next reset",
        ),
        (
            lambda host: host.answer_nvml(gpus=[GPU | {"mig_pending": "on"}]),
            {"settings": Settings(mig=True)},
            "MIG of 0000:18:00.0 is off until its next reset",
        ),
        (
            lambda host: host.answer_nvml(gpus=[GPU | {"mig": "unsupported", "mig_pending": "unsupported"}]),
            {"settings": Settings(mig=True)},
            "0000:18:00.0 has no MIG; take gpu_burnin_expect.mig away from this host",
        ),
    ],
)  # fmt: skip
def test_held_with_the_reason(host: NvidiaHost, change: Change, wanted: dict[str, Any], held: str) -> None:
    change(host)
    plan = plan_of(host, replace(WANTED, **wanted))
    assert re.match(held, plan.held) and plan.actions == ()


def test_an_enrolled_key_is_good_enough(host: NvidiaHost) -> None:
    secure_boot(host)
    host.add_module(NEW, signer="DKMS module signing key")
    host.put("var/lib/dkms/mok.pub", "")
    host.answers["mokutil"] = Output(1, "mok.pub is already enrolled\n", "")
    assert plan_of(host) == Plan()
    host.add_module(NEW, signer="Canonical Ltd. Kernel Module Signing")
    host.answers["mokutil"] = Output(0, "mok.pub is not enrolled\n", "")
    assert plan_of(host) == Plan()


def certificate(host: NvidiaHost, serial: int) -> None:
    """The key of DKMS as far as it is read: version 3 and a serial number of one octet."""
    key = host.put("var/lib/dkms/mok.pub", "")
    key.write_bytes(b"\x30\x0a\x30\x08\xa0\x03\x02\x01\x02\x02\x01" + bytes([serial]))


DKMS = "DKMS module signing key"


@pytest.mark.parametrize(
    ("signer", "signed_with", "enrolled", "held"),
    [
        (DKMS, "2A", False, True),
        (DKMS, "2A", True, False),
        (DKMS, "2B", False, False),
        (DKMS, "", False, True),
        # A key of this host by another name, and Ubuntu's own key of a host.
        ("Example Corp. machine key", "00:2A", False, True),
        ("gpu-1 Secure Boot Module Signature key", "", None, True),
    ],
)
def test_who_signed_is_told_by_the_certificate(
    host: NvidiaHost, signer: str, signed_with: str, enrolled: bool | None, held: bool
) -> None:
    both(secure_boot, unloaded)(host)
    host.add_module(NEW, signer=signer, **({"sig_key": signed_with} if enrolled is not None else {}))
    if enrolled is not None:
        certificate(host, 0x2A)
        said = "is already enrolled" if enrolled else "is not enrolled"
        host.answers["mokutil"] = Output(0, f"mok.pub {said}\n", "")
    assert ("does not trust the key that signed" in plan_of(host).held) == held


@pytest.mark.parametrize(
    ("change", "key", "said", "outcome"),
    [
        (unloaded, ("load",), "Key was rejected by service", "does not load: Key was rejected by service;"),
        (lambda host: host.load(OLD), ("reload",), "Module nvidia is in use", "is on the disk, and it is in use"),
        (
            lambda host: host.add_module(OLD),
            ("build", KERNEL),
            "Error! Bad return status",
            "the attempt to build it failed: Error! Bad return status",
        ),
        (
            lambda host: host.answer_nvml(gpus=[GPU | {"persistence": False}]),
            ("set", "nvidia-smi", "-i", "GPU-1", "-pm", "1"),
            "",
            "persistence of 0000:18:00.0 is off; setting it had no effect",
        ),
    ],
)  # fmt: skip
def test_what_did_not_help_is_not_done_again(
    host: NvidiaHost, change: Change, key: tuple[str, ...], said: str, outcome: str
) -> None:
    change(host)
    plan = plan_of(host, done={key: said})
    assert plan.actions == () and outcome in plan.held


def test_a_kernel_that_cannot_have_a_module_is_a_warning_until_it_runs(host: NvidiaHost) -> None:
    host.put(f"lib/modules/{NEXT_KERNEL}/modules.dep", "")
    plan = plan_of(host, done={("build", NEXT_KERNEL): "no headers"})
    assert plan.held == ""
    assert plan.warnings[0].endswith("failed: no headers; do not reboot before that is mended")
    # DKMS leaves folders of kernels behind that were removed; those are in no boot menu.
    host.put(f"boot/vmlinuz-{KERNEL}", "")
    assert plan_of(host) == Plan()


@pytest.mark.parametrize(
    ("kernel", "source", "modules", "follower"),
    [
        ("linux-image-amd64", "nvidia", "auto", "linux-headers-amd64"),
        ("linux-image-cloud-amd64", "debian", "auto", "linux-headers-cloud-amd64"),
        ("linux-image-generic-hwe-24.04", "ubuntu", "auto", "linux-modules-nvidia-580-server-open-generic-hwe-24.04"),
        ("linux-image-generic", "ubuntu", "proprietary", "linux-modules-nvidia-580-server-generic"),
    ],
)
def test_what_follows_each_kernel_that_apt_brings(kernel: str, source: str, modules: str, follower: str) -> None:
    flavours = Kernel(None, None, None, None, None, None, (kernel,)).followed
    flavour = "proprietary" if modules == "proprietary" else "open"
    assert driver_packages.followers(source, NEW, flavour, flavours) == (follower,)


@pytest.mark.parametrize(
    "name",
    [
        "linux-image-6.1.0-50-amd64", "linux-image-unsigned-6.8.0-60-generic", "linux-image-amd64-dbg",
        "linux-image-extra-virtual", "linux-headers-amd64",
    ],
)  # fmt: skip
def test_a_kernel_that_stays_is_followed_by_nothing(name: str) -> None:
    assert Kernel(None, None, None, None, None, None, (name,)).followed == ()


def test_what_brings_modules_for_each_new_kernel_is_not_held() -> None:
    assert driver_packages.follows_kernels("linux-modules-nvidia-570-server-open-generic-hwe-24.04")
    assert not driver_packages.follows_kernels("linux-modules-nvidia-570-server-open-6.8.0-60-generic")


def test_the_next_kernel_comes_with_its_headers(host: NvidiaHost) -> None:
    host.add_package("linux-image-amd64", "6.1.148-1", source="debian")
    (action,) = plan_of(host).actions
    assert action.why == "without linux-headers-amd64 the next kernel that apt brings has no module"
    failed = plan_of(host, done={action.key: "no package source of the host has linux-headers-amd64"})
    assert failed.held == "" and failed.actions == ()
    assert failed.warnings[0].endswith(
        "linux-headers-amd64; after an upgrade of the kernel run site.yml before the reboot"
    )
    host.add_package("linux-headers-amd64", "6.1.148-1", source="debian", state="half-configured")
    assert [one.kind for one in plan_of(host).actions] == ["follow"]
    host.add_package("linux-headers-amd64", "6.1.148-1", source="debian")
    assert plan_of(host) == Plan()


def test_nouveau_is_kept_out_of_the_initramfs_first(host: NvidiaHost) -> None:
    nouveau(host)
    stale = replace(WANTED, stale_initramfs=True)
    assert [action.kind for action in plan_of(host, stale).actions] == ["initramfs"]
    assert "could not be made again: no space" in plan_of(host, stale, {("initramfs",): "no space"}).held
    assert plan_of(host, stale, {("initramfs",): ""}).reboot.startswith("nouveau is loaded, and a reboot without it")


def test_an_image_is_checked_and_not_changed(tmp_path: Path) -> None:
    image = replace(WANTED, source="image", version="")
    assert plan_of(installed(tmp_path / "good"), image) == Plan()
    assert "libnvidia-ml.so.1 is not installed" in plan_of(bare(tmp_path / "bare"), image).held
    other = plan_of(installed(tmp_path / "other"), replace(image, version=OLD))
    assert other.held.startswith(f"the image brings driver {NEW} and fleet_nvidia_driver_version asks for {OLD}; use")
    made_up = NvidiaHost(tmp_path / "fake")
    made_up.answer_nvml(simulated=True)
    assert plan_of(made_up, image) == Plan()
    # What the image should have otherwise is said, and never changed.
    host = installed(tmp_path / "modes")
    host.answer_nvml(gpus=[GPU | {"ecc": "off"}])
    other = plan_of(host, image)
    assert (other.actions, other.reboot, other.held) == ((), "", "")
    assert other.warnings == (
        "ECC of 0000:18:00.0 is off until its next reset; nothing of what an image brings is changed: set it there",
    )
    assert carry_out.config_files(image, None) == ([], [])


def test_what_is_loaded_was_signed_well_enough(host: NvidiaHost) -> None:
    """Whoever trusts the key, and whether mokutil can tell: the firmware has let the module in."""
    secure_boot(host)
    host.add_module(NEW, signer="DKMS module signing key")
    assert plan_of(host) == Plan()


@pytest.mark.parametrize(
    ("kubelet", "burnin", "containers", "why"),
    [
        ("active", "inactive", (), "kubelet runs"),
        ("activating", "inactive", (), ""),
        ("activating", "inactive", ("k8s.io/4f1a",), "pods run"),
        ("inactive", "inactive", ("moby/77",), "pods run"),
        ("not-found", "active", (), "a burn-in runs"),
        ("active", "activating", ("k8s.io/4f1a",), "a burn-in runs"),
    ],
)
def test_a_host_at_work(tmp_path: Path, kubelet: str, burnin: str, containers: tuple[str, ...], why: str) -> None:
    for one in containers:
        (tmp_path / "run/containerd/io.containerd.runtime.v2.task" / one).mkdir(parents=True)

    def run(words: Sequence[str]) -> Output:
        told = {f"{name}.service": state for name, state in (("kubelet", kubelet), ("gpu-burnin-run", burnin))}
        states = (told[word] for word in words if word in told)
        loaded = {"not-found": "LoadState=not-found\nActiveState=inactive"}
        blocks = [loaded.get(one, f"LoadState=loaded\nActiveState={one}") for one in states]
        return Output(0, "\n\n".join(blocks), "")

    assert services.at_work(run, tmp_path) == why


@pytest.mark.parametrize("name", ["nvidia-driver-pinning-580", "cuda-keyring", "nvidia-container-toolkit", "nvlsm"])
def test_what_is_no_driver(name: str) -> None:
    assert not driver_packages.is_driver(name)


def test_settings_outlive_a_boot() -> None:
    assert unit(Settings()) == ""
    text = unit(Settings(mig=True, power_limit_w=500.0))
    assert "ExecStart=/usr/bin/nvidia-smi -mig 1\nExecStart=/usr/bin/nvidia-smi -pl 500\n" in text


def test_system_names() -> None:
    assert system('PRETTY_NAME="x"\nID=debian\nVERSION_ID="12"\n') == "debian12"
    assert system('VERSION_ID="24.04"\nID=ubuntu\nID_LIKE=debian\n') == "ubuntu24.04"


class Machine:
    """A host on which the commands have their effect."""

    def __init__(self, root: Path) -> None:
        self.host = bare(root)
        self.commands: list[str] = []
        self.killed_at = ""
        self.in_use = False
        self.unknown_to_modprobe = False
        # What commands with these words in them say in the place of having their effect.
        self.instead: dict[str, Output] = {}

    def run(self, command: Sequence[str], timeout_s: float = 30.0) -> Output:
        for part, output in self.instead.items():
            if part in " ".join(command):
                return output
        words = [word for word in command if not word.startswith("-")]
        text = " ".join(words)
        self.commands.append(text)
        if self.killed_at and self.killed_at in text:
            self.killed_at = ""
            raise KeyboardInterrupt
        if words[:2] == ["systemctl", "show"]:
            return self.host.run(command)
        if words[:2] == ["apt-cache", "madison"]:
            if words[2].startswith("linux-headers"):
                return Output(0, f" {words[2]} | 1-1 | m\n", "")
            return Output(0, f" {words[2]} | {NEW}-1 | m\n {words[2]} | {OLD}-1 | m\n", "")
        if words[:2] == ["apt-get", "install"]:
            if any(word.startswith("linux-headers") for word in words):
                self.host.put(f"lib/modules/{KERNEL}/build/Makefile", "")
            if packages := [word for word in words[2:] if not word.startswith("linux-")]:
                self._install(packages)
        elif words[:2] == ["apt-mark", "hold"]:
            known = self.host.answers["dpkg-query"]
            assert isinstance(known, Output)
            self.host.answers["dpkg-query"] = Output(1, known.out.replace("\tinstall\t", "\thold\t"), "")
        elif words[0] == ("depmod" if self.unknown_to_modprobe else "dkms"):
            self.host.add_module(self.version())
        elif list(command) == ["modprobe", "-r", "nvidia"]:
            if self.in_use:
                return Output(1, "", "modprobe: FATAL: Module nvidia is in use.\n")
            (self.host.root / "proc/driver/nvidia/version").unlink()
        elif text == "modprobe nvidia":
            self._load()
        return Output(0, "", "")

    def version(self) -> str:
        known = self.host.answers["dpkg-query"]
        assert isinstance(known, Output)
        return known.out.split("\t")[1].removesuffix("-1")

    def _install(self, packages: list[str]) -> None:
        self.host.answers["dpkg-query"] = Output(0, "", "") if packages else self.host.answers["dpkg-query"]
        for package in packages:
            name, _, version = package.partition("=")
            self.host.add_package(name, version)
        self.host.add_library(self.version())
        self.host.services["nvidia-persistenced"] = "active"
        self._answer()

    def _load(self) -> None:
        self.host.load(self.version())
        self._answer()

    def _answer(self) -> None:
        loaded = self.host.root / "proc/driver/nvidia/version"
        code = 9 if not loaded.exists() else 0 if self.version() in loaded.read_text() else 18
        self.host.answer_nvml(code=code, error="it broke" if code else "", driver_version=self.version())

    def converge(self, wanted: Wanted = WANTED, check: bool = False) -> carry_out.Result:
        repository = apt.Repository("https://m", "KEY", "F" * 40)
        return carry_out.converge(carry_out.Host(self.host.gather, self.run, self.host.root, repository), wanted, check)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One without a driver."""
    return Machine(tmp_path)


def test_from_bare_to_loaded_and_then_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert machine.converge(check=True).steps and machine.commands == []
    result = machine.converge()
    assert result.plan == Plan() and len(result.steps) == 4  # install, hold, build, load
    assert [line for line in machine.commands if line.startswith("apt-get install")] == [
        f"apt-get install nvidia-kernel-open-dkms={NEW}-1 nvidia-driver-cuda={NEW}-1"
    ]
    machine.commands.clear()
    assert machine.converge().steps == () and machine.commands == []


@pytest.mark.parametrize("at", ["apt-get update", "apt-get install", "apt-mark hold", "dkms", "modprobe nvidia"])
def test_a_run_killed_at_any_step_goes_on_where_it_stopped(tmp_path: Path, at: str) -> None:
    machine = Machine(tmp_path)
    machine.killed_at = at
    with pytest.raises(KeyboardInterrupt):
        machine.converge()
    assert machine.converge().plan == Plan()


def test_modules_that_a_killed_dkms_has_left_without_depmod_are_made_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.unknown_to_modprobe = True
    assert machine.converge().plan == Plan()
    assert f"depmod {tmp_path} {KERNEL}" in machine.commands


def test_what_stops_the_module_is_told_and_not_who_called_modprobe(machine: Machine) -> None:
    """The real words of kmod 30 under Debian's `install nvidia modprobe -i nvidia-current-open`."""
    said = (
        f"modprobe: FATAL: Module nvidia-current-open not found in directory /lib/modules/{KERNEL}\n"
        "modprobe: ERROR: ../libkmod/libkmod-module.c:1047 command_do() Error running install command "
        "'modprobe -i nvidia-current-open ' for module nvidia: retcode 1\n"
        "modprobe: ERROR: could not insert 'nvidia': Invalid argument\n"
    )
    machine.instead["modprobe nvidia"] = Output(1, "", said)
    assert machine.converge().plan.held == (
        f"the module {NEW} does not load: modprobe: FATAL: Module nvidia-current-open not found in directory "
        f"/lib/modules/{KERNEL}; look at the kernel log for NVRM"
    )


def test_to_another_version_without_a_reboot_unless_it_is_in_use(machine: Machine) -> None:
    machine.converge()
    older = replace(WANTED, version=OLD)
    assert machine.converge(older).plan == Plan()
    assert "systemctl stop nvidia-persistenced.service" in machine.commands
    assert machine.commands[-1] == "systemctl start nvidia-persistenced.service"
    machine.in_use = True
    result = machine.converge()
    assert not any(step.endswith("on the disk") for step in result.steps)  # it was tried and nothing was changed by it
    assert result.plan.reboot == f"the module {OLD} is loaded and {NEW} (open) is on the disk, and it is in use"


def test_over_the_border_of_names_the_old_packages_give_way_in_the_same_step(machine: Machine) -> None:
    for name in ("nvidia-headless-580-open", "libnvidia-compute-580"):
        machine.host.add_package(name, f"{OLD}-1", want="hold")
    machine.converge(replace(WANTED, system="ubuntu24.04", version=NEW), check=False)
    wanted = replace(WANTED, system="ubuntu24.04", version="595.71.05")
    for name in ("nvidia-headless-open", "nvidia-persistenced"):
        machine.instead[f"madison {name}"] = Output(0, f" {name} | 595.71.05-1ubuntu1 | m\n", "")
    machine.converge(wanted)
    last = [line for line in machine.commands if line.startswith("apt-get install")][-1]
    assert last.startswith(
        "apt-get install nvidia-headless-open=595.71.05-1ubuntu1 nvidia-persistenced=595.71.05-1ubuntu1"
    )
    assert last.endswith("nvidia-headless-580-open- nvidia-utils-580-")


def test_headers_come_with_the_module(machine: Machine) -> None:
    (machine.host.root / f"lib/modules/{KERNEL}/build/Makefile").unlink()
    machine.converge()
    assert any(line.endswith(f" linux-headers-{KERNEL}") for line in machine.commands)


def test_headers_follow_the_kernel_that_apt_brings(machine: Machine) -> None:
    machine.converge()
    machine.host.add_package("linux-image-amd64", "6.1.148-1", source="debian")
    whole = machine.run

    def effective(command: Sequence[str], timeout_s: float = 30.0) -> Output:
        if "install" in command and command[-1] == "linux-headers-amd64":
            machine.host.add_package("linux-headers-amd64", "6.1.148-1", source="debian")
            return Output(0, "", "")
        return whole(command, timeout_s)

    machine.run = effective  # type: ignore[method-assign]
    result = machine.converge()
    assert result.plan == Plan() and result.steps == (
        "without linux-headers-amd64 the next kernel that apt brings has no module",
    )


@pytest.mark.parametrize(
    ("system", "said"),
    [
        ("ubuntu24.04", "that nvidia calls it nvidia-headless-open in 595.71.05 is reported or assumed, not read"),
        ("debian12", "no package source of the host has nvidia-kernel-open-dkms; see fleet_nvidia_source"),
    ],
)
def test_a_name_that_no_source_has_is_told_with_what_to_set(machine: Machine, system: str, said: str) -> None:
    machine.instead["madison"] = Output(0, "", "")
    with pytest.raises(FleetError) as failure:
        machine.converge(replace(WANTED, version="595.71.05", system=system))
    assert said in str(failure.value)
    assert ("set fleet_nvidia_driver_version" in str(failure.value)) == (system == "ubuntu24.04")


def test_headers_that_are_nowhere_are_a_warning(machine: Machine) -> None:
    machine.converge()
    machine.host.add_package("linux-image-amd64", "6.1.148-1", source="debian")
    machine.instead["madison linux-headers-amd64"] = Output(0, "", "")
    plan = machine.converge().plan
    assert plan.held == "" and "no package source of the host has linux-headers-amd64" in plan.warnings[0]


def test_no_headers_for_the_running_kernel(machine: Machine) -> None:
    (machine.host.root / f"lib/modules/{KERNEL}/build/Makefile").unlink()
    machine.instead[f"linux-headers-{KERNEL}"] = Output(0, "", "")
    plan = machine.converge().plan
    assert f"has linux-headers-{KERNEL}, without which no module can be built" in plan.held


def test_headers_come_before_an_interrupted_installation_is_ended(machine: Machine) -> None:
    machine.host.add_package("nvidia-kernel-open-dkms", f"{NEW}-1", state="half-configured")
    (machine.host.root / f"lib/modules/{KERNEL}/build/Makefile").unlink()
    machine.converge()
    headers = next(i for i, line in enumerate(machine.commands) if line.endswith(f" linux-headers-{KERNEL}"))
    assert headers < next(
        i
        for i, line in enumerate(machine.commands)
        if line.endswith("--fix-broken install") or line == "apt-get install"
    )


def test_an_installation_that_cannot_be_ended_holds_the_host(machine: Machine) -> None:
    machine.host.add_package("nvidia-kernel-open-dkms", f"{NEW}-1", state="half-configured")
    machine.instead["--fix-broken"] = Output(100, "", "E: Sub-process /usr/bin/dpkg returned an error code (1)")
    held = machine.converge().plan.held
    assert held.startswith("nvidia-kernel-open-dkms is half-configured") and "run `dpkg --audit`" in held


def test_a_reload_starts_again_exactly_what_ran(machine: Machine) -> None:
    machine.converge()
    machine.host.services |= {"nvidia-imex": "active", "nvidia-dcgm-exporter": "active", "nvidia-dcgm": "failed"}
    machine.in_use = True
    machine.converge(replace(WANTED, version=OLD))
    three = "nvidia-dcgm-exporter.service nvidia-imex.service nvidia-persistenced.service"
    assert f"systemctl stop {three}" in machine.commands
    assert "systemctl start " + " ".join(reversed(three.split())) in machine.commands


def _process(root: Path, pid: int, name: str, opened: str, unit: str) -> None:
    folder = root / f"proc/{pid}"
    (folder / "fd").mkdir(parents=True)
    (folder / "fd/3").symlink_to(opened)
    (folder / "cgroup").write_text(f"0::/system.slice/{unit}\n")
    (folder / "comm").write_text(f"{name}\n")


def test_a_process_on_a_gpu_is_work_and_the_services_of_gpus_are_none(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    _process(tmp_path, 10, "nv-hostengine", "/dev/nvidia0", "nvidia-dcgm.service")
    _process(tmp_path, 11, "smi", "/dev/nvidiactl", "ssh.service")
    # The installation of a driver starts it, and the next role asks at once.
    _process(tmp_path, 13, "nvidia-ctk", "/dev/nvidia0", "nvidia-cdi-refresh.service")
    (tmp_path / "proc/12").mkdir()  # it ended meanwhile
    assert services.at_work(host.run, tmp_path) == ""
    _process(tmp_path, 900, "python3", "/dev/nvidia3", "user.slice/session-1.scope")
    assert services.at_work(host.run, tmp_path) == "the process 900 (python3) has a GPU open"


def test_a_reboot_that_did_not_help_is_not_repeated() -> None:
    wanted = Plan(reboot="nouveau is loaded")
    kept = reboots.to_keep(wanted, "boot-1", "")
    assert reboots.judged(wanted, "boot-1", "") == reboots.judged(wanted, "boot-1", kept) == wanted  # not rebooted yet
    after = reboots.judged(wanted, "boot-2", kept)
    assert after.reboot == "" and "was rebooted since, and it did not help" in after.held
    assert reboots.to_keep(after, "boot-2", kept) == kept  # and so the next run says it too
    other = Plan(reboot="ECC is off until its next reset")
    assert reboots.judged(other, "boot-2", kept) == other
    waits = Plan(warnings=("nouveau is loaded, and kubelet runs",), waits="nouveau is loaded, and kubelet runs")
    assert reboots.to_keep(waits, "boot-2", kept) == kept
    assert reboots.to_keep(Plan(), "boot-2", kept) == ""
    assert reboots.judged(wanted, "boot-2", "{half") == wanted


def test_work_that_came_meanwhile_keeps_a_host_from_its_reboot() -> None:
    plan = decide.left_alone(Plan(reboot="nouveau is loaded"), "kubelet runs")
    assert plan.reboot == "" and plan.held == plan.waits
    assert plan.held.startswith("nouveau is loaded, and kubelet runs; playbooks/driver_upgrade.yml")


def test_a_source_that_is_away_while_the_next_kernel_needs_headers_is_a_warning(machine: Machine) -> None:
    machine.converge()
    machine.host.put(f"lib/modules/{NEXT_KERNEL}/modules.dep", "")
    machine.instead[" update"] = Output(100, "", "E: Could not connect to m:443")
    plan = machine.converge().plan
    assert plan.held == "" and "package lists cannot be updated" in plan.warnings[0]


def test_an_initramfs_older_than_what_keeps_nouveau_off(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    assert not carry_out.nouveau_off(tmp_path)
    blacklist = host.put("etc/modprobe.d/muster-tuning.conf", "# x\nblacklist nouveau\n")
    assert carry_out.nouveau_off(tmp_path)
    assert not carry_out.stale_initramfs(tmp_path, KERNEL)  # there is none
    initramfs = host.put(f"boot/initrd.img-{KERNEL}", "")
    os.utime(blacklist, (1000, 1000))
    os.utime(initramfs, (2000, 2000))
    assert not carry_out.stale_initramfs(tmp_path, KERNEL)
    os.utime(blacklist, (3000, 3000))
    assert carry_out.stale_initramfs(tmp_path, KERNEL)


def test_files_of_a_host_that_does_work_stay() -> None:
    repository = None
    assert carry_out.config_files(replace(WANTED, busy="kubelet runs"), repository) == ([], [])
    specs, absent = carry_out.config_files(replace(WANTED, settings=Settings(power_limit_w=500.0)), repository)
    assert [spec.dest for spec in specs] == [
        "/etc/apt/preferences.d/muster-nvidia-driver", "/etc/systemd/system/muster-gpu-settings.service",
    ]  # fmt: skip
    assert absent == [apt.SOURCES, apt.KEYRING]


@pytest.mark.parametrize("source", ["nvidia", "debian", "ubuntu"])
def test_where_the_inventory_names_nvidias_repository_every_driver_leaves_it_to_dcgm(source: str) -> None:
    specs, absent = carry_out.config_files(replace(WANTED, source=source), REPOSITORY)
    assert not {apt.SOURCES, apt.KEYRING} & set(absent)
    assert {apt.SOURCES, apt.KEYRING} <= {spec.dest for spec in specs}
    # The same files as those of every other role that installs from there.
    written = {spec.dest: spec.content for spec in specs}
    assert all(written[spec.dest] == spec.content for spec in apt.repository_files(REPOSITORY))
    pins = written["/etc/apt/preferences.d/muster-nvidia-driver"].decode()
    assert ("Pin: release o=NVIDIA" in pins) == (source != "nvidia")
