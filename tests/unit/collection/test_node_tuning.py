"""Tuning of nodes: the table, which file wins, what is in effect, and the paths between GPUs."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.tuning import files, peer_path
from ansible_collections.muster.fleet.plugins.module_utils.tuning.effective import Host, low_limits, settle
from ansible_collections.muster.fleet.plugins.module_utils.tuning.table import SETTINGS, Wanted, wanted
from ansible_collections.muster.fleet.plugins.modules import node_tuning

SOMAXCONN = "net.core.somaxconn"


def item(name: str, value: str | None = None) -> Wanted:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    return Wanted(setting, value or setting.value)


class Systemd:
    """systemd with limits, which a reload replaces by those of its configuration, and main processes of services."""

    def __init__(self, **limits: str) -> None:
        self.shown = {"DefaultLimitMEMLOCK": "8388608", "DefaultLimitMEMLOCKSoft": "8388608"}
        self.after_reload = limits
        self.pids = {"containerd.service": "7", "kubelet.service": "0"}

    def __call__(self, arguments: Sequence[str]) -> str:
        if arguments[0] == "daemon-reload":
            self.shown |= self.after_reload
            return ""
        if arguments[-1] in self.pids:
            return f"{self.pids[arguments[-1]]}\n"
        return "".join(f"{key}={value}\n" for key, value in self.shown.items())


def host(root: Path, systemd: Systemd | None = None, *, shared: bool = False) -> Host:
    return Host(root, root, shared, systemd or Systemd())


def put(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_value_has_a_reason_and_a_source() -> None:
    assert all(setting.reason.endswith(".") and setting.source and setting.profiles for setting in SETTINGS)
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)


def test_profiles_and_own_values() -> None:
    gpu = {one.setting.name: one.value for one in wanted("gpu", {"cpu_governor": "leave", "net/core/somaxconn": "9"})}
    assert "cpu_governor" not in gpu
    assert gpu[SOMAXCONN] == "9"
    system = {one.setting.name: one.value for one in wanted("system", {"vm.swappiness": "1"})}
    assert "nouveau" not in system
    assert system["vm.swappiness"] == "1"
    assert wanted("none", {}) == ()


@pytest.mark.parametrize(
    ("profile", "values", "words"),
    [
        ("gpu", {"gouvernor": "fast"}, "'gouvernor', which is no setting.*cpu_governor"),
        ("none", {"vm.swappiness": "1"}, "node_tuning_profile is none"),
    ],
)
def test_a_mistake_of_the_inventory(profile: str, values: dict[str, str], words: str) -> None:
    with pytest.raises(FleetError, match=words):
        wanted(profile, values)


def test_files_that_keep_the_values() -> None:
    texts = files.contents(wanted("gpu", {}))
    assert "net.core.somaxconn = 16384\n" in texts[files.SYSCTL_FILE]
    assert texts[files.MANAGER_FILE].splitlines()[1:3] == ["[Manager]", "DefaultLimitNOFILE=65536:1048576"]
    assert "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise\n" in texts[files.SYSFS_FILE]
    assert "blacklist nouveau\n" in texts[files.MODULE_FILE]
    assert set(files.contents([]).values()) == {""}


@pytest.mark.parametrize(
    ("name", "line", "wins"),
    [
        ("etc/sysctl.d/99-other.conf", "net.core.somaxconn = 512", True),
        ("usr/lib/sysctl.d/99-other.conf", "-net/core/somaxconn=512", True),
        ("etc/sysctl.d/99-other.conf", "# net.core.somaxconn = 512", False),
        ("etc/sysctl.d/99-other.conf", "net.core.somaxconn = 16384", False),
        ("etc/sysctl.d/10-other.conf", "net.core.somaxconn = 512", False),
        # A glob gives way to our line, which has the key's name.
        ("etc/sysctl.d/99-other.conf", "net.core.* = 512", False),
        # Of two files of one name, that in /etc counts: this one is never read.
        ("usr/lib/sysctl.d/90-muster.conf", "net.core.somaxconn = 512", False),
    ],
)
def test_the_file_that_wins_is_named(tmp_path: Path, name: str, line: str, wins: bool) -> None:
    put(tmp_path, files.SYSCTL_FILE, files.contents([item(SOMAXCONN)])[files.SYSCTL_FILE])
    put(tmp_path, name, f"\n{line}\n")
    value = put(tmp_path, "proc/sys/net/core/somaxconn", "4096\n")
    found = settle(item(SOMAXCONN), host(tmp_path), act=True)
    assert value.read_text().startswith("16384")
    assert (found.state, found.changed) == ("overridden" if wins else "set", True)
    assert (f"/{name} line 2 sets net.core.somaxconn to 512" in found.note) == wins


def test_nothing_is_set_in_check_mode_or_when_it_is_right(tmp_path: Path) -> None:
    value = put(tmp_path, "proc/sys/net/core/somaxconn", "4096\n")
    found = settle(item(SOMAXCONN), host(tmp_path), act=False)
    assert (found.state, found.changed, found.effective, value.read_text()) == ("set", True, "4096", "4096\n")
    value.write_text("16384\n")
    found = settle(item(SOMAXCONN), host(tmp_path), act=True)
    assert (found.state, found.changed) == ("as_wanted", False)


def test_a_value_that_the_kernel_does_not_take(tmp_path: Path) -> None:
    # What is longer stays behind what is written: a file is no kernel.
    put(tmp_path, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave and what is longer\n")
    found = settle(item("cpu_governor"), host(tmp_path), act=True)
    assert (found.state, found.note) == ("wrong", "the kernel took another value")


def test_each_cpu_counts_and_choices_are_read(tmp_path: Path) -> None:
    for cpu, governor in enumerate(("performance", "powersave")):
        put(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor", f"{governor}\n")
    assert settle(item("cpu_governor"), host(tmp_path), act=False).effective == "powersave"
    put(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    assert settle(item("transparent_hugepage"), host(tmp_path), act=True).state == "as_wanted"


def test_a_machine_without_a_setting_and_a_kernel_of_others(tmp_path: Path) -> None:
    assert settle(item("cpu_governor"), host(tmp_path), act=True).state == "not_here"
    value = put(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "[always]\n")
    assert settle(item("transparent_hugepage"), host(tmp_path, shared=True), act=True).state == "shared_kernel"
    assert value.read_text() == "[always]\n"


def test_limits_of_systemd(tmp_path: Path) -> None:
    takes = Systemd(DefaultLimitMEMLOCK="infinity", DefaultLimitMEMLOCKSoft="infinity")
    assert settle(item("limit_memlock"), host(tmp_path, takes), act=True).state == "set"
    put(tmp_path, files.MANAGER_FILE, files.contents([item("limit_memlock")])[files.MANAGER_FILE])
    put(tmp_path, "run/systemd/system.conf.d/95-site.conf", "[Manager]\nDefaultLimitMEMLOCK=64M\n")
    found = settle(item("limit_memlock"), host(tmp_path), act=True)
    assert (found.state, found.effective) == ("wrong", "8388608")
    assert found.note.startswith("/run/systemd/system.conf.d/95-site.conf line 2 ")


def test_a_service_that_still_has_its_old_limit(tmp_path: Path) -> None:
    limits = put(
        tmp_path, "proc/7/limits", "Limit  Soft Limit  Hard Limit\nMax locked memory    8388608  8388608  bytes\n"
    )
    (told,) = low_limits([item("limit_memlock"), item(SOMAXCONN)], host(tmp_path))
    assert told.startswith("containerd.service runs with LimitMEMLOCK=8388608 instead of infinity: restart it")
    limits.write_text("Max locked memory         unlimited  unlimited  bytes\n")
    assert low_limits([item("limit_memlock")], host(tmp_path)) == []
    with pytest.raises(FleetError, match="limit 'much' is neither a number nor infinity"):
        limits.write_text("Max locked memory         1  1  bytes\n")
        low_limits([item("limit_memlock", "much")], host(tmp_path))


def test_nouveau_that_is_loaded_needs_a_reboot(tmp_path: Path) -> None:
    assert settle(item("nouveau"), host(tmp_path), act=True).state == "as_wanted"
    (tmp_path / "sys/module/nouveau").mkdir(parents=True)
    found = settle(item("nouveau"), host(tmp_path), act=True)
    assert (found.state, found.changed) == ("needs_reboot", False)


def bridge(port_type: int, acs_control: int, size: int = 4096) -> bytes:
    """The configuration space of a bridge: PCI Express capability at 0x40, ACS behind another extended capability."""
    data = bytearray(4096)
    data[0x34] = 0x40
    data[0x40:0x43] = bytes((0x10, 0, port_type << 4 | 2))
    struct.pack_into("<I", data, 0x100, 0x148 << 20 | 0x0001)
    struct.pack_into("<I", data, 0x148, 0x000D)
    struct.pack_into("<H", data, 0x148 + 6, acs_control)
    return bytes(data[:size])


def gpus(root: Path, config: bytes, iommu: str = "identity") -> None:
    """Two GPUs below one bridge."""
    bus = root / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    port = root / "sys/devices/pci0000:00/0000:01:00.0"
    for address in ("0000:02:00.0", "0000:03:00.0"):
        device = port / address
        for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
            put(device, name, f"{text}\n")
        put(device, "subsystem_vendor", "0x10de\n")
        put(device, "subsystem_device", "0x16c1\n")
        put(device, "iommu_group/type", f"{iommu}\n")
        (bus / address).symlink_to(device)
    (port / "config").write_bytes(config)


@pytest.mark.parametrize(
    ("config", "iommu", "words"),
    [
        (bridge(6, 0), "identity", []),
        (bridge(6, 0b11101), "identity", ["PCIe switch port 0000:01:00.0 sends transfers"]),
        # Source validation alone redirects nothing, and two root ports meet in the CPU in any case.
        (bridge(6, 0b00001), "identity", []),
        (bridge(4, 0b11101), "identity", []),
        (bridge(6, 0), "DMA-FQ", ["the IOMMU translates for GPU 0000:02:00.0, 0000:03:00.0"]),
        (bridge(6, 0b11101, size=256), "identity", ["ACS of 0000:01:00.0 cannot be read"]),
        (b"", "identity", ["ACS of 0000:01:00.0 cannot be read"]),
    ],
)
def test_what_makes_transfers_between_gpus_slow(tmp_path: Path, config: bytes, iommu: str, words: list[str]) -> None:
    gpus(tmp_path, config, iommu)
    problems = peer_path.observe(tmp_path).problems
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))


def test_a_host_without_a_pci_bus(tmp_path: Path) -> None:
    assert peer_path.observe(tmp_path).problems == []


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (Output(0, "", ""), ""),
        (Output(1, "", "no space left\n"), "update-initramfs failed: no space left; see the room in /boot"),
        (CommandError("/x gave no answer in 1800 s"), "gave no answer in 1800 s; see the disk of /boot"),
    ],
)
def test_boot_images_older_than_the_modprobe_file_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Output | Exception, said: str
) -> None:
    made: list[list[str]] = []

    def run(command: list[str], timeout_s: float) -> Output:
        made.append(command)
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(node_tuning, "ROOT", tmp_path)
    monkeypatch.setattr(node_tuning, "run_command", run)
    module: Any = SimpleNamespace(get_bin_path=lambda name: f"/usr/sbin/{name}")
    kept = tmp_path / node_tuning.MODULE_FILE
    kept.parent.mkdir(parents=True)
    kept.touch()
    (tmp_path / "boot").mkdir()
    for release, at in (("6.1", 1000), ("6.2", 3000)):
        (tmp_path / f"boot/initrd.img-{release}").touch()
        os.utime(tmp_path / f"boot/initrd.img-{release}", (at, at))
    os.utime(kept, (2000, 2000))
    assert node_tuning.refresh_initramfs(module, act=False) and made == []
    if said:
        with pytest.raises(FleetError, match=said):
            node_tuning.refresh_initramfs(module, act=True)
    else:
        assert node_tuning.refresh_initramfs(module, act=True)
    assert made == [["/usr/sbin/update-initramfs", "-u", "-k", "6.1"]]
