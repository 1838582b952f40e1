"""What a block device is, read from /sys, /proc and blkid, and whether it may become a local SSD.

Standard library only: this runs on the hosts. Reading (`inspect`) and judging (`refusals`) are
apart, so that every rule is a table in a test.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

STABLE_PREFIX = "/dev/disk/by-id/"
_SECTOR_BYTES = 512
# Names and sysfs paths that say where the blocks really are. First match wins.
_NETWORK_NAMES = ("nbd", "rbd", "drbd", "etherd")
_VOLATILE_NAMES = ("zram", "ram")
_NETWORK_PATHS = {"/session": "iscsi", "/rport-": "fibre channel", "/fcoe": "fcoe"}


@dataclass(frozen=True)
class Signature:
    """What blkid finds on a device: a filesystem (`type`), a partition table (`table`) or both empty."""

    type: str = ""
    label: str = ""
    uuid: str = ""
    table: str = ""

    def __str__(self) -> str:
        if self.type:
            return self.type + (f" labelled '{self.label}'" if self.label else "")
        return f"{self.table} partition table"


@dataclass(frozen=True)
class Disk:
    """One whole, physical (or virtual) disk underneath: what decides fast, local and durable."""

    name: str
    transport: str
    rotational: bool
    read_only: bool


@dataclass(frozen=True)
class BlockDevice:
    """A device as found. `mounts` are mount points, `disks` what it finally stands on."""

    path: str
    name: str
    size_bytes: int
    partitions: tuple[str, ...]
    holders: tuple[str, ...]
    mounts: tuple[str, ...]
    swap: bool
    claimed: bool
    signature: Signature | None
    disks: tuple[Disk, ...]
    is_partition: bool = False


@dataclass(frozen=True)
class Wanted:
    """What the role asks for."""

    mount_point: str
    filesystem: str
    label: str
    min_bytes: int
    wipe: bool = False
    allow_loop: bool = False


# The same as options of a module: their defaults are those of the role local_ssd.
WANTED_OPTIONS: Mapping[str, Mapping[str, object]] = {
    "mount_point": {"type": "str", "required": True},
    "filesystem": {"type": "str", "choices": ["ext4", "xfs"], "default": "ext4"},
    "label": {"type": "str", "default": "muster-ssd"},
    "min_bytes": {"type": "int", "default": 0},
    "wipe": {"type": "bool", "default": False},
    "allow_loop": {"type": "bool", "default": False},
}


@dataclass(frozen=True)
class MountPoint:
    """State of the mount point itself: `source` is the device name mounted there, if any."""

    path: str
    source: str = ""
    entries: int = 0


def is_stable_path(path: str) -> bool:
    """True for /dev/disk/by-id/NAME: kernel names such as /dev/sdb change between boots."""
    return path.startswith(STABLE_PREFIX) and len(path) > len(STABLE_PREFIX) and ".." not in path


def transport_of(name: str, sysfs: str, nvme_transports: Iterable[str] = ()) -> str:
    """Name what carries the blocks of disk `name` whose resolved sysfs folder is `sysfs`.

    `nvme_transports` are the kernel's own words for NVMe (pcie, tcp, rdma, fc, loop).
    """
    for prefix in _VOLATILE_NAMES + _NETWORK_NAMES:
        if re.fullmatch(rf"{prefix}(\d.*|!.*)", name):
            return prefix
    if name.startswith("loop"):
        return "loop"
    if name.startswith("nvme"):
        remote = sorted(set(nvme_transports) - {"pcie"})
        return f"nvme over {remote[0]}" if remote else "nvme"
    for part, transport in _NETWORK_PATHS.items():
        if part in sysfs:
            return transport
    if "/usb" in sysfs:
        return "usb"
    if "/virtual/" in sysfs:
        return "virtual"
    if "/virtio" in sysfs:
        return "virtio"
    return "scsi" if name.startswith("sd") else "disk"


def is_network(transport: str) -> bool:
    """True where the blocks travel over a network."""
    return transport in _NETWORK_NAMES or transport in _NETWORK_PATHS.values() or transport.startswith("nvme over ")


def refusals(device: BlockDevice, wanted: Wanted, mount_point: MountPoint) -> list[str]:
    """Every reason not to touch this device, each with the fix; empty means it may be used."""
    found = list(_disk_refusals(device, wanted))
    if device.is_partition:
        found.append("is a partition; give the whole disk")
    if device.size_bytes < wanted.min_bytes:
        found.append(
            f"has {device.size_bytes} bytes, less than the {wanted.min_bytes} required; "
            "give a larger disk or lower local_ssd_min_gib"
        )
    if device.partitions:
        found.append(f"has partitions ({', '.join(device.partitions)}); remove them or give another disk")
    if device.holders:
        found.append(f"is part of {', '.join(device.holders)}; take it out of there or give another disk")
    if device.swap:
        found.append("is used as swap; swapoff it or give another disk")
    found.extend(_mount_refusals(device, wanted, mount_point))
    # On a disk that is mounted there already the wipe flag would not help: that has its own refusal.
    loose = wanted.mount_point not in device.mounts
    if loose and device.signature and not is_ours(device, wanted) and not wanted.wipe:
        found.append(f"already carries data ({device.signature}); if it may be destroyed set local_ssd_wipe: true")
    return found


def faults(path: str, wanted: Wanted) -> list[str]:
    """Every reason against the disk named `path`, each with the fix behind a semicolon. Reads, never writes."""
    if not is_stable_path(path):
        return [f"{path} is not a stable name; give the disk as {STABLE_PREFIX}NAME (see `ls -l {STABLE_PREFIX}`)"]
    try:
        device = inspect(path)
    except FleetError as error:
        return [str(error)]
    found = refusals(device, wanted, inspect_mount_point(wanted.mount_point))
    return [f"{path} ({device.name}) {text}" for text in found]


def is_ours(device: BlockDevice, wanted: Wanted) -> bool:
    """True when an earlier run made this filesystem: same type and label, no partition table."""
    seen = device.signature
    return seen is not None and (seen.type, seen.label) == (wanted.filesystem, wanted.label)


def _disk_refusals(device: BlockDevice, wanted: Wanted) -> Iterable[str]:
    for disk in device.disks:
        if disk.transport == "loop":
            if not wanted.allow_loop:
                yield "is a loop device, not a disk (only a lab may set local_ssd_allow_loop: true)"
        elif is_network(disk.transport):
            yield f"is reached over a network ({disk.transport}); give a disk inside this machine"
        elif disk.transport in _VOLATILE_NAMES:
            yield f"lives in memory ({disk.transport}) and forgets everything at a reboot; give a real disk"
        elif disk.transport in ("virtual", "usb"):
            yield f"is a {disk.transport} device; give a disk inside this machine"
        if disk.rotational and disk.transport != "loop":
            yield f"is rotational ({disk.name}); give an SSD"
        if disk.read_only:
            yield f"is read-only ({disk.name}); give a writable disk"


def _mount_refusals(device: BlockDevice, wanted: Wanted, mount_point: MountPoint) -> Iterable[str]:
    elsewhere = [path for path in device.mounts if path != wanted.mount_point]
    if elsewhere:
        yield f"is mounted on {', '.join(elsewhere)}; unmount it there or give another disk"
    elif device.claimed and not device.mounts and not device.holders and not device.swap:
        yield "is in use by the kernel (mounted in another namespace, or part of an array); give another disk"
    if mount_point.source and mount_point.source != device.name:
        yield (
            f"cannot be mounted on {mount_point.path}, where {mount_point.source} is mounted already; "
            "unmount that or choose another local_ssd_mount_point"
        )
    elif not mount_point.source and mount_point.entries:
        yield (
            f"would hide the {mount_point.entries} entries in {mount_point.path}; "
            "move them away or choose another local_ssd_mount_point"
        )
    if wanted.mount_point in device.mounts and not is_ours(device, wanted):
        yield (
            f"is mounted on {wanted.mount_point} but holds {device.signature}, not the {wanted.filesystem} "
            f"labelled '{wanted.label}' this role makes; unmount it first"
        )


def parse_blkid(text: str) -> Signature | None:
    """Read `blkid -p -o export`; None when it names neither a filesystem nor a partition table."""
    pairs = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    found = Signature(pairs.get("TYPE", ""), pairs.get("LABEL", ""), pairs.get("UUID", ""), pairs.get("PTTYPE", ""))
    return found if found.type or found.table else None


def parse_mounts(mountinfo: str) -> dict[str, tuple[str, ...]]:
    """{"major:minor": mount points} from the text of /proc/self/mountinfo (proc(5))."""
    found: dict[str, tuple[str, ...]] = {}
    for line in mountinfo.splitlines():
        fields = line.split()
        if len(fields) < 5:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        found[fields[2]] = (*found.get(fields[2], ()), point)
    return found


def mkfs_command(device: str, wanted: Wanted) -> list[str]:
    """The command that makes the filesystem; quiet, never asks."""
    if wanted.filesystem == "xfs":
        return ["mkfs.xfs", "-q", "-f", "-L", wanted.label, device]
    return ["mkfs.ext4", "-q", "-F", "-L", wanted.label, device]


def escape_unit_path(path: str) -> str:
    """What `systemd-escape --path` prints, e.g. /var/lib/my-data -> var-lib-my\\x2ddata (systemd.unit(5))."""
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "-"
    text = "/".join(parts)
    escaped = []
    for position, byte in enumerate(text.encode()):
        character = chr(byte)
        if character == "/":
            escaped.append("-")
        elif (character.isascii() and character.isalnum()) or character in ":_" or (character == "." and position > 0):
            escaped.append(character)
        else:
            escaped.append(f"\\x{byte:02x}")
    return "".join(escaped)


def inspect(path: str, sys_block: str = "/sys/class/block", proc: str = "/proc") -> BlockDevice:
    """Read everything about the device at `path`.

    Raises FleetError when it does not exist, is no block device, or cannot be read.
    """
    try:
        info = Path(path).stat()
    except FileNotFoundError:
        raise FleetError(f"{path} does not exist; list the disks with `ls /dev/disk/by-id`") from None
    if not stat.S_ISBLK(info.st_mode):
        raise FleetError(f"{path} is not a block device; give a disk")
    numbers = _numbers(sys_block)
    devno = f"{os.major(info.st_rdev)}:{os.minor(info.st_rdev)}"
    name = numbers.get(devno)
    if name is None:
        raise FleetError(f"{path} ({devno}) is unknown to {sys_block}; is its driver loaded?")
    folder = Path(sys_block, name).resolve()
    mounts = parse_mounts(Path(proc, "self/mountinfo").read_text())
    partitions = tuple(sorted(entry.parent.name for entry in folder.glob("*/partition")))
    swaps = {os.path.realpath(line.split()[0]) for line in Path(proc, "swaps").read_text().splitlines()[1:]}
    return BlockDevice(
        path=path,
        name=name,
        size_bytes=int((folder / "size").read_text()) * _SECTOR_BYTES,
        partitions=partitions,
        holders=_names(folder / "holders"),
        mounts=tuple(sorted(mounts.get(devno, ()))),
        swap=os.path.realpath(path) in swaps or f"/dev/{name}" in swaps,
        claimed=_is_claimed(path),
        signature=probe_signature(path),
        disks=tuple(_disks(folder)),
        is_partition=(folder / "partition").exists(),
    )


def inspect_mount_point(path: str, sys_block: str = "/sys/class/block", proc: str = "/proc") -> MountPoint:
    """What is at the mount point now; `source` falls back to the major:minor of an unknown device."""
    numbers = _numbers(sys_block)
    source = ""
    for devno, points in parse_mounts(Path(proc, "self/mountinfo").read_text()).items():
        if path in points:
            source = numbers.get(devno, devno)
    entries = 0
    if not source and Path(path).is_dir():
        entries = len(list(Path(path).iterdir()))
    return MountPoint(path, source, entries)


def probe_signature(path: str) -> Signature | None:
    """Ask blkid, which reads the disk itself (`-p`), so that neither a cache nor udev is needed.

    Raises FleetError when blkid is missing, fails, or finds contradictory signatures.
    """
    try:
        done = subprocess.run(["blkid", "-p", "-o", "export", path], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise FleetError("blkid is not installed; install util-linux") from None
    if done.returncode == 2:  # blkid(8): nothing found
        return None
    if done.returncode == 8:  # blkid(8): ambivalent result
        return Signature(type="several signatures")
    if done.returncode != 0:
        raise FleetError(f"blkid cannot read {path}: {done.stderr.strip() or done.returncode}")
    return parse_blkid(done.stdout)


def _numbers(sys_block: str) -> Mapping[str, str]:
    found = {}
    for entry in Path(sys_block).iterdir():
        try:
            found[(entry / "dev").read_text().strip()] = entry.name
        except OSError:
            continue  # a device that went away while we looked
    return found


def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else ()


def _is_claimed(path: str) -> bool:
    """Whether the kernel lets nobody else claim it: O_EXCL on a block device, open(2)."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return True
        raise FleetError(f"{path} cannot be opened: {error.strerror}") from None
    return False


def _disks(folder: Path) -> Iterable[Disk]:
    """The disks a device stands on: itself, or what lies under device mapper and md, recursively."""
    slaves = _names(folder / "slaves")
    if slaves:
        for slave in slaves:
            yield from _disks((folder / "slaves" / slave).resolve())
        return
    disk = folder.parent if (folder / "partition").exists() else folder
    controllers = [*disk.glob("device/transport"), *disk.glob("../nvme*/transport")]
    transports = [entry.read_text().strip() for entry in controllers]
    yield Disk(
        name=disk.name,
        transport=transport_of(disk.name, str(disk), transports),
        rotational=_flag(disk / "queue/rotational"),
        read_only=_flag(disk / "ro"),
    )


def _flag(path: Path) -> bool:
    return path.exists() and path.read_text().strip() == "1"
