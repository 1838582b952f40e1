"""A disk of this machine's own: a file system on a loop device, which can be made slow, and counts what reaches it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# cgroup v1 throttles a device for the root group as well, and so the journal's thread too; v2 has no limits there.
THROTTLE = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_iops_device")
NO_DISK = "a slow disk needs root, loop devices and the blkio controller of cgroup v1"
SIZE_BYTES = 192 * 1024**2
_SECTOR_BYTES = 512


def can_be_mounted() -> bool:
    """Whether a disk can be made here."""
    return os.geteuid() == 0 and Path("/dev/loop-control").exists()


def can_be_slow() -> bool:
    """Whether a slow one can be made here."""
    return can_be_mounted() and THROTTLE.exists()


@dataclass(frozen=True)
class Reached:
    """What reached the device: completed writes, their bytes, and flushes of its cache."""

    writes: int
    written_bytes: int
    flushes: int

    def since(self, before: Reached) -> Reached:
        """The difference."""
        return Reached(
            self.writes - before.writes, self.written_bytes - before.written_bytes, self.flushes - before.flushes
        )


@dataclass(frozen=True)
class Disk:
    """A mounted loop device."""

    device: str
    mount_point: Path

    def reached(self) -> Reached:
        """So far (fields of the kernel's Documentation/admin-guide/iostats.rst)."""
        fields = Path(f"/sys/class/block/{Path(self.device).name}/stat").read_text().split()
        return Reached(int(fields[4]), int(fields[6]) * _SECTOR_BYTES, int(fields[15]))

    @contextmanager
    def slow(self, writes_per_s: int) -> Iterator[None]:
        """No more writes a second than this reach the device within the block."""
        number = Path(self.device).stat().st_rdev
        which = f"{os.major(number)}:{os.minor(number)}"
        THROTTLE.write_text(f"{which} {writes_per_s}")
        try:
            yield
        finally:
            THROTTLE.write_text(f"{which} 0")


@contextmanager
def loop_disk(directory: Path, size_bytes: int = SIZE_BYTES) -> Iterator[Disk]:
    """An ext4 on a loop device over a file of `directory`, mounted as role local_ssd does, until the block ends."""
    image, mount_point = directory / "disk.img", directory / "disk"
    with image.open("wb") as file:
        file.truncate(size_bytes)
    mount_point.mkdir()
    device = _run("losetup", "--find", "--show", str(image)).strip()
    try:
        _run("mkfs.ext4", "-q", device)
        _run("mount", "-o", "noatime", device, str(mount_point))
        try:
            yield Disk(device, mount_point)
        finally:
            _run("umount", str(mount_point))
    finally:
        _run("losetup", "--detach", device)
        image.unlink()


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout
