"""Making the fleet's image of a machine that `site.yml` has built: what is this machine's own is found, and secrets go.

The roles are the one place that says what a node has on its disk, so the image is made by them, and this is its end:
where the node's name, address and pod range stand is noted for the first boot, and what no two machines may share is
removed. What is removed twice is removed once: it may be run again.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_burnin.api.enrolment import EnrolmentError
from gpu_burnin.node.enrol.settle import MANIFEST, SCHEMA, Manifest, word
from gpu_burnin.system.files import read_bytes, replace_symlink, write_atomic

_SYSTEMD = "etc/systemd/system"
_WANTED = f"{_SYSTEMD}/multi-user.target.wants"
# Machines have these from their own first boot, or from the controller.
_SECRETS = (
    "etc/ssh/ssh_host_*",
    "etc/kubernetes/bootstrap-kubelet.kubeconfig",
    "etc/kubernetes/pki/kube-proxy.crt",
    "etc/kubernetes/pki/kube-proxy.key",
    "etc/muster-metrics/server.crt*",
    "etc/muster/enrol",
    "root/.ssh/id_*",
)
# Of this machine alone: certificates, runs and their count, what cloud-init has done, logs, seeds. Where a folder's
# contents are named, the folder stays: journald keeps nothing, and dhclient no lease, where theirs is not.
_STATE = (
    "var/lib/kubelet/pki",
    "var/lib/muster-enrol",
    "var/lib/gpu-burnin/*",
    "var/lib/cloud",
    "var/lib/dbus/machine-id",
    "var/lib/systemd/random-seed",
    # The host's key of systemd-creds: binary, so the search below does not know it.
    "var/lib/systemd/credential.secret",
    "var/lib/dhcp/*",
    "var/log/journal/*",
    "root/.bash_history",
)
# Both parts of the pair are in one file; role kube_apiserver lets nodes read what kube-proxy does.
_PROXY = ("etc/kubernetes/pki/kube-proxy.crt", "etc/kubernetes/pki/kube-proxy.key")
_CLIENT = "/var/lib/kubelet/pki/kubelet-client-current.pem"
# They need the node's name, or its certificate.
_WAITING = ("kubelet", "kube-proxy", "gpu-burnin-boot", "gpu-burnin-watch", "pod-network-routes")
_SEARCHED = ("boot", "etc", "root", "home", "srv", "var/lib", "usr/local/etc")
# What container images hold is theirs, and the same for everybody.
_NOT_SEARCHED = "var/lib/containerd"
_MOST_BYTES = 1 << 20
# The last one is a token as machines are given it, also within quotes, and at the end of a file.
_KEY = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----|client-key-data: *\S|[a-z0-9]:[a-z0-9]{6}\.[a-z0-9]{16}(?![A-Za-z0-9_.-])"
)
# Where user-data is written, and host keys: the second name is that of newer versions.
_CLOUD_INIT_UNITS = "cloud-init.service cloud-init-network.service"
_UNITS = {
    "muster-host-keys.service": f"""\
[Unit]
Description=Make the SSH host keys of this machine
After={_CLOUD_INIT_UNITS}
Before=ssh.service sshd.service muster-enrol.service
# A power cut may have left an empty one.
ConditionFileNotEmpty=!/etc/ssh/ssh_host_ed25519_key

[Service]
Type=oneshot
ExecStart=/usr/bin/ssh-keygen -A

[Install]
WantedBy=multi-user.target
""",
    "muster-enrol.service": f"""\
[Unit]
Description=Say who this machine is, and wait until it is let in as a node
ConditionPathExists=!/var/lib/muster-enrol/enrolled
# Each start of this tries the keys again; and no id that is only in memory is told.
Wants=network-online.target muster-host-keys.service
After=network-online.target muster-host-keys.service systemd-machine-id-commit.service {_CLOUD_INIT_UNITS}
OnSuccess=muster-enrolled.service
StartLimitIntervalSec=0

[Service]
# Not a oneshot: the boot does not wait for a person.
Type=exec
# The key with which it says who it is outlives a power cut.
ExecStartPre=/usr/bin/sync
ExecStart=/usr/local/bin/gpu-burnin enrol
Restart=on-failure
RestartSec=60
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
""",
    # A service of its own, since to read all units again fails where that takes long: it is tried until it succeeds.
    "muster-enrolled.service": """\
[Unit]
Description=Begin what waited for the name of this machine, by the units as they are now
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/usr/bin/systemctl daemon-reload
ExecStart=/usr/bin/systemctl --no-block start multi-user.target
Restart=on-failure
RestartSec=5
""",
}
# Without it cloud-init makes new host keys whenever its data source changes or is gone, as after the token's disk was
# taken out, and the key that was approved is lost. User-data says so only for boots that have it.
_CLOUD = "etc/cloud/cloud.cfg.d"
_CLOUD_INIT = """\
# Of the fleet's image: this machine's host keys are what it was let in by.
ssh_deletekeys: false
"""
_DROP_IN = """\
# Of the fleet's image: not before this machine is a node.
[Unit]
ConditionPathExists=/var/lib/muster-enrol/enrolled
"""


@dataclass(frozen=True)
class Sealed:
    """Where this machine's own values stand, and what was removed, as paths from the root."""

    files: tuple[str, ...]
    removed: tuple[str, ...]


def stop() -> None:
    """Stop on this machine what would write there again what sealing removes. Raises EnrolmentError."""
    units = [f"{name}.service" for name in _WAITING]
    words = ["systemctl", "list-units", "--plain", "--no-legend", "--all", *units]
    try:
        listed = subprocess.run(words, capture_output=True, text=True, check=True)
        known = [line.split()[0] for line in listed.stdout.splitlines()]
        if known:
            subprocess.run(["systemctl", "stop", *known], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = str(getattr(error, "stderr", None) or error).strip()
        raise EnrolmentError(f"its services cannot be stopped ({why}); stop {', '.join(units)}, and again") from error


def seal(root: Path, node: str, address: str, pod_range: str) -> Sealed:
    """Make the disk of this machine an image. Raises EnrolmentError where a value is nowhere, or a secret is left."""
    try:
        files = _places(root, (node, address, pod_range))
        removed = tuple(_remove(root))
        for name in _PROXY:
            if (root / name).parent.is_dir():
                replace_symlink(root / name, _CLIENT)
        write_atomic(root / "etc/machine-id", b"", mode=0o444)
        (root / MANIFEST).parent.mkdir(mode=0o755, exist_ok=True)
        manifest = Manifest(SCHEMA, node, address, pod_range, files)
        write_atomic(root / MANIFEST, json.dumps(asdict(manifest), indent=1).encode() + b"\n", mode=0o644)
        _units(root)
        if (root / _CLOUD).is_dir():
            write_atomic(root / _CLOUD / "99-muster.cfg", _CLOUD_INIT.encode(), mode=0o644)
        left = tuple(_left(root))
    except OSError as error:
        raise EnrolmentError(f"{node}: cannot seal {root} ({error}); run as root, and again") from error
    if left:
        raise EnrolmentError(
            f"{node}: {', '.join(left)}: a private key or a token is still on this disk, and each machine of the image "
            "would have it; remove it, then seal again"
        )
    return Sealed(files, removed)


def _places(root: Path, values: tuple[str, ...]) -> tuple[str, ...]:
    """The files below /etc where one of the values stands as a word. Raises EnrolmentError for one that is nowhere."""
    words = {value: word(value) for value in values}
    found, seen = [], set()
    for path, content in _texts(root, ("etc",)):
        here = {value for value, pattern in words.items() if pattern.search(content)}
        name = str(path.relative_to(root))
        if here and name not in ("etc/hostname", MANIFEST) and not _is_secret(root, path):
            found.append(name)
            seen |= here
    if missing := [value for value in values if value not in seen]:
        raise EnrolmentError(
            f"{missing[0]} is in no file of {root / 'etc'}: build this machine with site.yml first, and give the name, "
            "address and pod range that its inventory has"
        )
    return tuple(sorted(found))


def _is_secret(root: Path, path: Path) -> bool:
    return any(path in root.glob(pattern) for pattern in _SECRETS)


def _remove(root: Path) -> Iterator[str]:
    for path in sorted({one for pattern in (*_SECRETS, *_STATE) for one in root.glob(pattern)}):
        # What is mounted there cannot be removed: a log or a state folder may be a disk of its own.
        for one in path.iterdir() if path.is_mount() else (path,):
            if one.is_dir() and not one.is_symlink():
                shutil.rmtree(one)
            else:
                one.unlink(missing_ok=True)
        yield str(path.relative_to(root))


def _units(root: Path) -> None:
    (root / _WANTED).mkdir(parents=True, exist_ok=True)
    for name, text in _UNITS.items():
        write_atomic(root / _SYSTEMD / name, text.encode(), mode=0o644)
        if "[Install]" in text:
            replace_symlink(root / _WANTED / name, f"../{name}")
    for name in _WAITING:
        folder = root / _SYSTEMD / f"{name}.service.d"
        folder.mkdir(mode=0o755, exist_ok=True)
        write_atomic(folder / "20-enrolled.conf", _DROP_IN.encode(), mode=0o644)


def _left(root: Path) -> Iterator[str]:
    """Files that hold a secret."""
    for path, content in _texts(root, _SEARCHED):
        if not path.is_relative_to(root / _NOT_SEARCHED) and _KEY.search(content):
            yield str(path.relative_to(root))


def _texts(root: Path, folders: Iterable[str]) -> Iterator[tuple[Path, bytes]]:
    """Regular files of a size that people write; links are not followed."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_BYTES:
                yield path, read_bytes(path, follow=False)
