"""The root file system that all lab hosts share (read-only, below an overlay each)."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir, locked
from gpu_burnin.fleet.mirror.commands import WITH_US, run
from gpu_burnin.fleet.mirror.progress import Progress

from .error import LabError
from .machine import unmount_below
from .preparing import preparing

# What a provider's base image brings, plus the packages that the roles would install: apt then finds
# them present, and the lab needs no package source while it runs.
PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "python3", "python3-apt", "python3-venv",
    "iproute2", "ca-certificates", "kmod", "procps", "e2fsprogs", "curl", "iputils-ping",
    "containerd", "runc", "containernetworking-plugins", "iptables", "conntrack", "chrony", "haproxy", "keepalived",
    "age", "bird2", "prometheus", "prometheus-alertmanager", "prometheus-node-exporter",
)  # fmt: skip
# By the name of each, that of NVIDIA's repository for it.
SUITES = {"bookworm": "debian12", "noble": "ubuntu2404"}
# Packages start their services when installed; in a fleet the roles decide, so a host begins without them.
DISABLED_UNITS = (
    "bird.service",
    "containerd.service",
    "haproxy.service",
    "keepalived.service",
    "chrony.service",
    "prometheus.service",
    "prometheus-alertmanager.service",
    "prometheus-node-exporter.service",
)


STAGE = "make the root file system of the hosts"


def ensure_image(progress: Progress | None = None) -> Path:
    """Return the root file system of the lab hosts, building it once (30 s) when the cache has none.

    One that was begun and not finished is begun again.
    """
    with (
        preparing(progress) as shown,
        locked(
            cache_dir() / "image.lock", lambda: shown.say("waiting for another lab that makes the root file system")
        ),
    ):
        if image_stages():
            shown.plan(image_stages())
            shown.stage(STAGE)
            _build(suite(), _image())
    return _image() / "rootfs"


def image_stages() -> tuple[str, ...]:
    """What is to be done for the image: nothing when the cache has it."""
    return () if (_image() / ".complete").exists() else (STAGE,)


def _image() -> Path:
    release = suite()
    key = hashlib.sha256(repr((release, PACKAGES, DISABLED_UNITS, _SETUP)).encode()).hexdigest()[:16]
    return cache_dir() / "image" / f"{release}-{key}"


def _build(release: str, image: Path) -> None:
    for left_over in (image.parent).glob(f"{release}-*.building"):
        # One that was killed may have left its /proc and /dev there.
        unmount_below(left_over)
        shutil.rmtree(left_over)
    building = image.with_suffix(".building")
    building.mkdir(parents=True)
    run([
        *WITH_US, "mmdebstrap", "--variant=minbase", "--aptopt=Acquire::Languages \"none\"",
        f"--include={','.join(PACKAGES)}", f"--customize-hook={_SETUP}", release, building / "rootfs",
    ])  # fmt: skip
    (building / ".complete").touch()
    building.rename(image)


# No machine id, no host keys: each host makes its own at its first start, as after any cloning.
_SETUP = " && ".join([
    'rm -f "$1"/etc/ssh/ssh_host_*_key*',
    ': > "$1"/etc/machine-id',
    'rm -f "$1"/var/lib/dbus/machine-id',
    *(f'rm -f "$1"/etc/systemd/system/*.wants/{unit}' for unit in DISABLED_UNITS),
    'printf "PermitRootLogin prohibit-password\\nUseDNS no\\n" > "$1"/etc/ssh/sshd_config.d/lab.conf',
])  # fmt: skip


def suite() -> str:
    """The release of the hosts, which is this machine's. Raises LabError for any other than those of SUITES."""
    for line in Path("/etc/os-release").read_text().splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME" and value.strip('"') in SUITES:
            return value.strip('"')
    raise LabError("the lab runs on Debian 12 or Ubuntu 24.04, and /etc/os-release names neither: use one of them")
