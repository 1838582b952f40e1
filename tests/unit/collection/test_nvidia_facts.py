"""The facts of a host: each source in its forms, and what cannot be read is said and not made up."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import (
    CommandError,
    Output,
    run_command,
)
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import (
    driver,
    kernel,
    library,
    nvml,
    packages,
)
from ansible_collections.muster.fleet.plugins.modules import nvidia_fabric

from tests.support.nvidia_host import GPU, KERNEL, NvidiaHost, h100


@pytest.fixture
def host(tmp_path: Path) -> NvidiaHost:
    return NvidiaHost(tmp_path)


def test_a_whole_stack(tmp_path: Path) -> None:
    facts = h100(tmp_path).gather()
    assert facts.errors == {}
    assert [device.address for device in facts.gpus] == ["0000:18:00.0", "0000:2a:00.0"]
    assert {device.bound_driver for device in facts.gpus} == {"nvidia"}
    assert (facts.kernel.release, facts.kernel.headers, facts.kernel.secure_boot) == (KERNEL, True, "off")
    assert (facts.driver.loaded_version, facts.driver.loaded_flavour) == ("580.105.08", "open")
    assert facts.driver.on_disk is not None and facts.driver.on_disk[KERNEL].version == "580.105.08"
    assert [one.name for one in facts.driver.packages or ()] == ["nvidia-open", "libnvidia-compute"]
    assert all(one.held and one.source == "nvidia" for one in facts.driver.packages or ())
    assert (facts.driver.nouveau, facts.driver.runfile) == (False, False)
    assert facts.library.version == "580.105.08"
    assert facts.nvml.gpus is not None and [gpu.uuid for gpu in facts.nvml.gpus] == ["GPU-1", "GPU-2"]
    assert (facts.fabric.nvswitches, facts.fabric.service, facts.dcgm.service) == (1, "active", "active")
    assert [one.name for one in facts.fabric.packages or ()] == ["nvidia-fabricmanager"]
    assert [one.name for one in facts.dcgm.packages or ()] == ["datacenter-gpu-manager-4-core"]
    assert facts.toolkit.version == "1.20.1"
    assert not facts.simulated
    json.dumps(facts.to_json())


@pytest.mark.parametrize(
    ("gpu", "vpd", "kind"), [("2330", b"", "nvswitch"), ("2901", b"\x82SW_MNG", "nvlink5"), ("2941", b"", "rack")]
)
def test_the_platform_is_what_nvidia_fabric_decides_on(
    host: NvidiaHost, monkeypatch: pytest.MonkeyPatch, gpu: str, vpd: bytes, kind: str
) -> None:
    host.add_device(device=gpu, driver="nvidia")
    if vpd:
        host.add_device("0000:05:00.0", device="1021", class_code="020700", vendor="15b3")
        (host.root / "sys/bus/pci/devices/0000:05:00.0/vpd").write_bytes(vpd)
    else:
        host.add_device("0000:05:00.0", device="22a3", class_code="068000")
    platform = host.gather().to_json()["fabric"]["platform"]
    assert (platform["kind"], platform["tells"], platform["gpus"]) == (kind, True, ("0000:18:00.0",))
    monkeypatch.setattr(nvidia_fabric, "run_command", host.run)
    given = {"source": "image", "imex_nodes": [], "deadline_s": 0.0, "kernel_root": str(host.root)}
    module = SimpleNamespace(params=given, check_mode=True, warn=lambda text: None)
    found = nvidia_fabric.manage(module)  # type: ignore[arg-type]
    assert (found["platform"], found["evidence"]) == (platform["kind"], platform["evidence"])


def test_a_bare_host_has_no_driver_and_no_error(host: NvidiaHost) -> None:
    host.answer_nvml(code=12, error="no such file", driver_version=None, library_version=None, gpus=None)
    facts = host.gather()
    assert facts.errors == {}
    assert (facts.driver.loaded_version, facts.driver.on_disk, facts.driver.packages) == ("", {}, ())
    assert (facts.library.path, facts.toolkit.version, facts.fabric.service) == ("", "", "not-found")
    assert facts.kernel.headers is False
    # With no module loaded NVML may not be started: it would load one.
    assert host.commands[[command[0] for command in host.commands].index(sys.executable)][-1] == "0"


def test_what_cannot_be_read_is_none_with_its_reason(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path / "host")
    for name in ("dpkg-query", "systemctl", "/sbin/ldconfig"):
        host.answers[name] = Output(2, "", "it broke")
    host.add_module("580.105.08")
    host.answers["modinfo"] = Output(1, "", "not a module")
    host.answers["nvidia-ctk"] = Output(0, "something else", "")
    host.put("sys/firmware/efi/efivars/.keep", "").unlink()
    host.put("proc/driver/nvidia/version", "gibberish\n")
    (host.root / "proc/sys/kernel/osrelease").unlink()
    (host.root / "proc/cmdline").unlink()
    (host.root / "proc/modules").unlink()
    (host.root / "sys/bus/pci/devices").rmdir()
    host.put("sys/bus/pci/devices/0000:18:00.0/vendor", "0x10de\n")  # all else of it is missing
    facts = host.gather()
    assert set(facts.errors) == {
        "kernel.release", "kernel.secure_boot", "kernel.cmdline", "driver.loaded", "driver.on_disk", "driver.nouveau",
        "pci", "fabric.platform", "packages", "services", "library", "toolkit.version",
    }  # fmt: skip
    assert (facts.pci, facts.kernel.release, facts.kernel.headers, facts.kernel.secure_boot) == (None,) * 4
    assert (facts.driver.loaded_version, facts.driver.on_disk, facts.driver.packages) == (None,) * 3
    fabric = facts.fabric
    assert (fabric.platform, fabric.nvswitches, fabric.packages, fabric.service) == (None,) * 4
    assert (facts.library.version, facts.dcgm.service, facts.toolkit.version) == (None,) * 3


def test_a_kernel_root_marks_the_host_as_simulated(tmp_path: Path) -> None:
    lab = h100(tmp_path / "kernel")
    facts = NvidiaHost(tmp_path / "host").gather(kernel_root=lab.root)
    assert facts.simulated
    assert len(facts.gpus) == 2


@pytest.mark.parametrize(
    ("line", "version", "flavour"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.261.03  Fri Jun  6 15:37:07 UTC 2025", "535.261.03", "proprietary"),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (x)", "580.105.08", "open"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  580.65.06  Release Build", "580.65.06", "open"),
    ],
)
def test_loaded_module(host: NvidiaHost, line: str, version: str, flavour: str) -> None:
    host.put("proc/driver/nvidia/version", f"NVRM version: {line}\nGCC version:  gcc version 12.2.0\n")
    assert driver.loaded(host.root) == driver.Loaded(version, flavour)


def test_the_module_that_modprobe_would_load(host: NvidiaHost) -> None:
    host.add_module("550.1", name="kernel/drivers/video/nvidia.ko", license="NVIDIA")
    host.add_module("580.105.08", name="updates/dkms/nvidia.ko.zst", signer="DKMS module signing key")
    for other in ("nvidia-drm.ko", "nvidia-current-modeset.ko", "nvidia-uvm.ko", "nvidiafb.ko"):
        host.put(f"lib/modules/{KERNEL}/updates/dkms/{other}", "")
    host.add_module("535.261.03", "6.1.0-48-amd64", "updates/dkms/nvidia-current-open.ko")
    found = driver.on_disk(host.root, host.run)
    newest = found[KERNEL]
    assert (newest.version, newest.flavour, newest.signer) == ("580.105.08", "open", "DKMS module signing key")
    assert found["6.1.0-48-amd64"].version == "535.261.03"


def test_proprietary_module(host: NvidiaHost) -> None:
    host.add_module("535.261.03", name="updates/dkms/nvidia-current.ko", license="NVIDIA")
    assert driver.on_disk(host.root, host.run)[KERNEL].flavour == "proprietary"


@pytest.mark.parametrize(
    ("variables", "state"),
    [
        (None, "off"),
        ({"SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\1"}, "on"),
        ({"SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\0"}, "off"),
        ({"BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\1"}, "off"),
        (
            {
                "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c": b"\6\0\0\0\1",
                "MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23": b"\6\0\0\0\1",
            },
            "off",
        ),
    ],
)
def test_secure_boot(tmp_path: Path, variables: dict[str, bytes] | None, state: str) -> None:
    for name, value in (variables or {}).items():
        path = tmp_path / "sys/firmware/efi/efivars" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    assert kernel.secure_boot(tmp_path) == state


@pytest.mark.parametrize(
    ("said", "expected"),
    [("K is already enrolled", True), ("K is not enrolled", False), ("EFI variables are not supported", None)],
)
def test_signing_keys(host: NvidiaHost, said: str, expected: bool | None) -> None:
    key = str(host.put("var/lib/dkms/mok.pub", ""))
    host.answers["mokutil"] = Output(1, f"{said}\n", "")
    if expected is None:
        with pytest.raises(CommandError, match="EFI variables"):
            kernel.signing_keys(host.root, host.run)
    else:
        assert kernel.signing_keys(host.root, host.run) == {key: expected}


def test_headers_whose_link_points_nowhere_are_none(host: NvidiaHost) -> None:
    (host.root / "lib/modules" / KERNEL).mkdir(parents=True)
    (host.root / "lib/modules" / KERNEL / "build").symlink_to("/usr/src/no-such-headers")
    assert not kernel.has_headers(host.root, KERNEL)


def test_packages_by_whose_they_are(host: NvidiaHost) -> None:
    for source in ("nvidia", "debian", "ubuntu", ""):
        host.add_package(f"nvidia-{source}", "1:580.105.08-0ubuntu1", source)
    host.add_package("nvidia-half", "580.65.06-1", want="hold", state="half-configured")
    host.add_package("nvidia-gone", "535.1-1", want="deinstall", state="config-files")
    found = packages.installed(host.run)
    assert [one.source for one in found] == ["nvidia", "debian", "ubuntu", "", "nvidia"]
    assert [one.upstream for one in found] == ["580.105.08"] * 4 + ["580.65.06"]
    assert (found[-1].held, found[-1].state) == (True, "half-configured")


def test_library_without_a_version_in_its_name(host: NvidiaHost) -> None:
    path = host.put("opt/libnvidia-ml.so.1", "")
    host.answers["/sbin/ldconfig"] = Output(0, f"\tlibnvidia-ml.so.1 (libc6,x86-64) => {path}\n", "")
    host.answer_nvml(library_version="580.105.08")
    assert library.find(host.run).version is None
    assert host.gather().library == library.Library("580.105.08", str(path))
    host.answers["/sbin/ldconfig"] = Output(0, "0 libs found\n", "")
    assert host.gather().library == library.Library("580.105.08", None)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Output(-signal.SIGSEGV, "", ""), "was killed by signal 11"),
        (Output(1, "", "Traceback\nMemoryError\n"), "ended with 1 in the middle of a call: MemoryError"),
        (CommandError("python3 gave no answer in 60 s"), "gave no answer in 60 s: a call into the driver hangs"),
    ],
)
def test_nvml_that_ends_or_hangs(host: NvidiaHost, answer: Output | CommandError, words: str) -> None:
    host.answers[sys.executable] = answer
    read = nvml.read(host.run, may_start=True)
    assert words in read.error
    assert (read.code, read.gpus, read.driver_version) == (None, None, None)


def test_lines_of_the_library_itself_are_passed_over(host: NvidiaHost) -> None:
    host.answer_nvml()
    answer = host.answers[sys.executable]
    assert isinstance(answer, Output)
    host.answers[sys.executable] = Output(0, f"libnvidia-ml: a warning\n{answer.out}", "")
    assert nvml.read(host.run, may_start=True).gpus == (nvml.Gpu(**GPU),)


def test_a_library_that_is_not_there() -> None:
    read = nvml.read(run_command, may_start=False, name="libno-such-library.so.1")
    assert (read.code, read.gpus, read.simulated) == (nvml.LIBRARY_NOT_FOUND, None, False)
