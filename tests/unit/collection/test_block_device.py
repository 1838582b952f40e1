"""Which disks are refused, and why."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import block_device as bd

GIB = 1024**3
SSD = bd.Disk("nvme0n1", "nvme", rotational=False, read_only=False)
WANTED = bd.Wanted("/var/lib/etcd", "ext4", "muster-ssd", 20 * GIB)
BLANK = bd.BlockDevice(
    path="/dev/disk/by-id/nvme-x",
    name="nvme0n1",
    size_bytes=100 * GIB,
    partitions=(),
    holders=(),
    mounts=(),
    swap=False,
    claimed=False,
    signature=None,
    disks=(SSD,),
)
OURS = replace(BLANK, signature=bd.Signature("ext4", "muster-ssd", "u"))
POINT = bd.MountPoint("/var/lib/etcd")


def disk(**changes: object) -> bd.BlockDevice:
    return replace(BLANK, disks=(replace(SSD, **changes),))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "wanted", "point"),
    [
        (BLANK, WANTED, POINT),
        (OURS, WANTED, POINT),
        (replace(OURS, mounts=("/var/lib/etcd",), claimed=True), WANTED, replace(POINT, source="nvme0n1")),
        (replace(BLANK, signature=bd.Signature("xfs", "old")), replace(WANTED, wipe=True), POINT),
        (disk(transport="loop", name="loop0", rotational=True), replace(WANTED, allow_loop=True), POINT),
    ],
    ids=["blank", "ours", "ours mounted", "wipe allowed", "loop in a lab"],
)
def test_accepts(device: bd.BlockDevice, wanted: bd.Wanted, point: bd.MountPoint) -> None:
    assert bd.refusals(device, wanted, point) == []


@pytest.mark.parametrize(
    ("device", "wanted", "point", "reason"),
    [
        (disk(rotational=True), WANTED, POINT, "is rotational (nvme0n1); give an SSD"),
        (disk(read_only=True), WANTED, POINT, "is read-only"),
        (disk(transport="nbd"), WANTED, POINT, "is reached over a network (nbd)"),
        (disk(transport="nvme over tcp"), WANTED, POINT, "over a network (nvme over tcp)"),
        (disk(transport="iscsi"), WANTED, POINT, "over a network (iscsi)"),
        (disk(transport="zram"), WANTED, POINT, "lives in memory (zram)"),
        (disk(transport="virtual"), WANTED, POINT, "is a virtual device"),
        (disk(transport="loop"), WANTED, POINT, "local_ssd_allow_loop"),
        (replace(BLANK, size_bytes=GIB), WANTED, POINT, "less than the 21474836480 required"),
        (replace(BLANK, partitions=("nvme0n1p1",)), WANTED, POINT, "has partitions (nvme0n1p1)"),
        (replace(BLANK, is_partition=True), WANTED, POINT, "is a partition"),
        (replace(BLANK, holders=("md0",), claimed=True), WANTED, POINT, "is part of md0"),
        (replace(BLANK, swap=True, claimed=True), WANTED, POINT, "is used as swap"),
        (replace(BLANK, mounts=("/data",), claimed=True), WANTED, POINT, "is mounted on /data"),
        (replace(BLANK, claimed=True), WANTED, POINT, "is in use by the kernel"),
        (
            replace(BLANK, signature=bd.Signature("xfs", "old")),
            WANTED,
            POINT,
            "already carries data (xfs labelled 'old')",
        ),
        (replace(BLANK, signature=bd.Signature(table="gpt")), WANTED, POINT, "(gpt partition table)"),
        (replace(BLANK, signature=bd.Signature("ext4", "other")), WANTED, POINT, "local_ssd_wipe: true"),
        (BLANK, WANTED, replace(POINT, source="sdb"), "where sdb is mounted already; unmount that"),
        (BLANK, WANTED, replace(POINT, entries=3), "would hide the 3 entries"),
        (
            replace(BLANK, mounts=("/var/lib/etcd",), signature=bd.Signature("ext4", "x"), claimed=True),
            replace(WANTED, wipe=True),
            replace(POINT, source="nvme0n1"),
            "unmount it first",
        ),
        (replace(BLANK, mounts=("/a",)), replace(WANTED, wipe=True), POINT, "is mounted on /a"),
        (replace(BLANK, partitions=("p",)), replace(WANTED, wipe=True), POINT, "has partitions"),
    ],
)
def test_refuses(device: bd.BlockDevice, wanted: bd.Wanted, point: bd.MountPoint, reason: str) -> None:
    assert reason in " | ".join(bd.refusals(device, wanted, point))


def test_a_foreign_disk_on_the_mount_point_is_one_reason() -> None:
    device = replace(BLANK, mounts=("/var/lib/etcd",), signature=bd.Signature("ext4", "x"), claimed=True)
    (reason,) = bd.refusals(device, WANTED, replace(POINT, source="nvme0n1"))
    assert "unmount it first" in reason


def test_each_fault_names_the_disk_and_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/dev/disk/by-id/nvme-x"
    used = replace(disk(rotational=True), signature=bd.Signature("ext4", "precious"), claimed=True)
    monkeypatch.setattr(bd, "inspect", lambda _path: used)
    monkeypatch.setattr(bd, "inspect_mount_point", lambda _path: replace(POINT, source="sdb"))
    found = bd.faults(path, WANTED)
    assert len(found) == 4
    for text in found:
        about, _, fix = text.partition("; ")
        assert about.startswith(f"{path} (nvme0n1) ")
        assert fix
    assert any("already carries data (ext4 labelled 'precious'); if it may be destroyed" in text for text in found)
    monkeypatch.undo()
    assert bd.faults("/dev/sdb", WANTED)[0].startswith("/dev/sdb is not a stable name; give the disk as")
    assert bd.faults(f"{path}-none", WANTED) == [
        f"{path}-none does not exist; list the disks with `ls /dev/disk/by-id`"
    ]


def test_reports_all_reasons_at_once() -> None:
    device = replace(disk(rotational=True), size_bytes=1, mounts=("/a", "/b"), signature=bd.Signature("xfs"))
    assert len(bd.refusals(device, WANTED, POINT)) == 4


@pytest.mark.parametrize(
    ("path", "stable"),
    [
        ("/dev/disk/by-id/nvme-x", True),
        ("/dev/disk/by-id/", False),
        ("/dev/sdb", False),
        ("/dev/disk/by-path/pci-0", False),
        ("/dev/disk/by-id/../../sda", False),
    ],
)
def test_stable_path(path: str, stable: bool) -> None:
    assert bd.is_stable_path(path) is stable


PCI = "/sys/devices/pci0000:00/0000:00:02.0"


@pytest.mark.parametrize(
    ("name", "sysfs", "nvme", "transport", "network"),
    [
        ("nvme0n1", f"{PCI}/nvme/nvme0/nvme0n1", ["pcie"], "nvme", False),
        ("nvme0n1", "/sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1", ["pcie"], "nvme", False),
        ("nvme1n1", "/sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme1n1", ["pcie", "tcp"], "nvme over tcp", True),
        ("sda", f"{PCI}/ata1/host0/target0:0:0/0:0:0:0/block/sda", [], "scsi", False),
        ("sdb", "/sys/devices/platform/host3/session1/target3:0:0/3:0:0:0/block/sdb", [], "iscsi", True),
        ("sdc", f"{PCI}/host1/rport-1:0-0/target1:0:0/1:0:0:0/block/sdc", [], "fibre channel", True),
        ("sdd", f"{PCI}/usb1/1-1/1-1:1.0/host2/target2:0:0/2:0:0:0/block/sdd", [], "usb", False),
        ("vda", f"{PCI}/virtio1/block/vda", [], "virtio", False),
        ("nbd0", "/sys/devices/virtual/block/nbd0", [], "nbd", True),
        ("rbd0", "/sys/devices/rbd/0/block/rbd0", [], "rbd", True),
        ("zram0", "/sys/devices/virtual/block/zram0", [], "zram", False),
        ("ram0", "/sys/devices/virtual/block/ram0", [], "ram", False),
        ("loop3", "/sys/devices/virtual/block/loop3", [], "loop", False),
        ("weird0", "/sys/devices/virtual/block/weird0", [], "virtual", False),
    ],
)
def test_transport(name: str, sysfs: str, nvme: list[str], transport: str, network: bool) -> None:
    assert bd.transport_of(name, sysfs, nvme) == transport
    assert bd.is_network(transport) is network


def test_parse_blkid() -> None:
    assert bd.parse_blkid("DEVNAME=/dev/x\nLABEL=a\nUUID=u\nTYPE=ext4\n") == bd.Signature("ext4", "a", "u")
    assert bd.parse_blkid("DEVNAME=/dev/x\nPTTYPE=gpt\n") == bd.Signature(table="gpt")
    assert bd.parse_blkid("DEVNAME=/dev/x\n") is None


def test_parse_mounts_unescapes() -> None:
    text = "36 35 7:0 / /mnt/a\\040b rw - ext4 /dev/loop0 rw\n37 35 7:0 / /c rw - ext4 /dev/loop0 rw\nbroken\n"
    assert bd.parse_mounts(text) == {"7:0": ("/mnt/a b", "/c")}


ESCAPES = {
    "/var/lib/etcd": "var-lib-etcd",
    "/var/lib/my-data/": "var-lib-my\\x2ddata",
    "/": "-",
    "/.hidden/a b": "\\x2ehidden-a\\x20b",
    "/sr\u00e9": "sr\\xc3\\xa9",
}


@pytest.mark.parametrize(("path", "escaped"), ESCAPES.items())
def test_escape_unit_path(path: str, escaped: str) -> None:
    assert bd.escape_unit_path(path) == escaped


@pytest.mark.skipif(shutil.which("systemd-escape") is None, reason="systemd-escape is not installed")
def test_escape_unit_path_is_systemds() -> None:
    done = subprocess.run(["systemd-escape", "--path", *ESCAPES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(ESCAPES.values())


def test_mkfs_never_asks() -> None:
    assert bd.mkfs_command("/dev/x", WANTED) == ["mkfs.ext4", "-q", "-F", "-L", "muster-ssd", "/dev/x"]
    assert bd.mkfs_command("/dev/x", replace(WANTED, filesystem="xfs"))[:3] == ["mkfs.xfs", "-q", "-f"]


def test_inspect_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="does not exist; list the disks"):
        bd.inspect(str(tmp_path / "none"))
    with pytest.raises(FleetError, match="is not a block device"):
        bd.inspect("/dev/null")


def fake_sys(root: Path) -> Path:
    """A device mapper volume over a partition's disk and a loop device, as /sys shows them."""
    devices, block = root / "devices", root / "class/block"
    block.mkdir(parents=True)
    for name, numbers in {"sdq": "65:0", "sdq1": "65:1", "dm-7": "253:7"}.items():
        folder = devices / "pci0/ata1/block/sdq/sdq1" if name == "sdq1" else devices / f"pci0/ata1/block/{name}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dev").write_text(numbers)
        (folder / "size").write_text("2048")
        (folder / "holders").mkdir()
        (block / name).symlink_to(folder)
    (devices / "pci0/ata1/block/sdq/queue").mkdir()
    (devices / "pci0/ata1/block/sdq/queue/rotational").write_text("1\n")
    (devices / "pci0/ata1/block/sdq/sdq1/partition").write_text("1")
    slaves = devices / "pci0/ata1/block/dm-7/slaves"
    slaves.mkdir()
    (slaves / "sdq1").symlink_to(devices / "pci0/ata1/block/sdq/sdq1")
    return block


def test_inspect_reads_down_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    block = fake_sys(tmp_path)
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/mountinfo").write_text("1 0 253:7 / /data rw - ext4 /dev/dm-7 rw\n")
    (proc / "swaps").write_text("Filename Type Size Used Priority\n")
    real_stat = Path.stat

    def stat(self: Path, **options: bool) -> os.stat_result:
        if str(self) == "/dev/disk/by-id/dm":
            return os.stat_result([0o60600, 0, 0, 0, 0, 0, 0, 0, 0, 0] + [0] * 3 + [0] * 3 + [0, 0, os.makedev(253, 7)])
        return real_stat(self, **options)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(bd, "_is_claimed", lambda _path: True)
    monkeypatch.setattr(bd, "probe_signature", lambda _path: None)
    device = bd.inspect("/dev/disk/by-id/dm", str(block), str(proc))
    assert device.name == "dm-7"
    assert device.size_bytes == 2048 * 512
    assert device.mounts == ("/data",)
    assert device.disks == (bd.Disk("sdq", "scsi", rotational=True, read_only=False),)
    assert bd.inspect_mount_point("/data", str(block), str(proc)).source == "dm-7"
