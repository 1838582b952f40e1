"""File systems that many hosts share are told by none of them: one that is full would be an alert of each node."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest

TEMPLATE = Path(__file__).resolve().parents[3] / "roles/host_metrics/templates/node_exporter.j2"
SHARED = (
    "nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "beegfs_nodev", "wekafs", "glusterfs", "9p",
    "virtiofs", "afs", "gfs2", "ocfs2", "orangefs", "panfs", "fuse", "fuse.juicefs", "fuse.s3fs", "fuse.ceph-fuse",
)  # fmt: skip
OF_THE_KERNEL = ("tmpfs", "overlay", "proc", "cgroup", "cgroup2", "fusectl")


def _line(tells_sync: bool = True) -> str:
    text = jinja2.Template(TEMPLATE.read_text(), undefined=jinja2.StrictUndefined)
    return text.render(
        host_metrics_textfile_dir="/textfiles",
        __host_metrics_units=["a[.]service", "b[.]service"],
        __host_metrics_tells_sync=tells_sync,
    )


@pytest.mark.parametrize("tells", [True, False])
def test_who_may_not_set_its_clock_does_not_say_that_nobody_does(tells: bool) -> None:
    """The kernel's word is that of the machine of a container; its time is told all the same."""
    line = _line(tells)
    assert (" --collector.timex " in line) == tells and " --collector.time " in line


def _excluded() -> re.Pattern[str]:
    line = _line()
    # systemd takes a backslash in an environment file for itself.
    assert "\\" not in line
    [expression] = re.findall(r" --collector\.filesystem\.fs-types-exclude=(\S+) ", line)
    return re.compile(expression)


@pytest.mark.parametrize("kind", [*SHARED, *OF_THE_KERNEL])
def test_a_shared_file_system_and_one_of_the_kernel_is_left_out(kind: str) -> None:
    assert _excluded().match(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "vfat", "f2fs", "fuseblk"])
def test_a_disk_of_the_host_is_told(kind: str) -> None:
    assert not _excluded().match(kind)
