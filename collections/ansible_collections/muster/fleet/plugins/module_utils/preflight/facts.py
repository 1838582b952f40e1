"""What a host says of itself before it is touched. Standard library only; reads, never writes.

Every reader takes the root of the file system, so that tests can give it another one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import platform
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

LISTEN = "0A"
# A service that fails at once is started again many times a second; nobody waits for its end.
LOOKS = 5
_SYSTEMCTL_TIMEOUT_S = 30.0


def read_text(path: Path) -> str:
    """The file's text without the final newline; empty when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def os_release(root: Path) -> dict[str, str]:
    """`id` and `version` from os-release(5)."""
    fields: dict[str, str] = {}
    for line in read_text(root / "etc/os-release").splitlines():
        key, found, value = line.partition("=")
        if found:
            fields[key.strip()] = value.strip().strip("\"'")
    return {"id": fields.get("ID", ""), "version": fields.get("VERSION_ID", "")}


def host_keys(root: Path) -> dict[str, str]:
    """Key type to fingerprint (`SHA256:...`, as ssh-keygen -l prints it) of each SSH host key."""
    found: dict[str, str] = {}
    for path in sorted((root / "etc/ssh").glob("ssh_host_*_key.pub")):
        words = read_text(path).split()
        if len(words) < 2:
            continue
        try:
            digest = hashlib.sha256(base64.b64decode(words[1], validate=True)).digest()
        except ValueError:
            continue
        found[words[0]] = "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    return found


def memory_bytes(root: Path) -> int:
    """MemTotal; 0 when it cannot be read."""
    for line in read_text(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def swap_devices(root: Path) -> list[str]:
    """Swap areas in use."""
    return [line.split()[0] for line in read_text(root / "proc/swaps").splitlines()[1:] if line.strip()]


def cgroup_version(root: Path) -> int:
    """2 for the unified hierarchy alone, else 1."""
    return 2 if (root / "sys/fs/cgroup/cgroup.controllers").exists() else 1


def listening_inodes(root: Path, ports: Sequence[int]) -> dict[int, set[str]]:
    """Port to the inodes of TCP sockets that listen on it, from /proc/net/tcp and tcp6."""
    wanted = set(ports)
    found: dict[int, set[str]] = {}
    for name in ("tcp", "tcp6"):
        for line in read_text(root / "proc/net" / name).splitlines()[1:]:
            words = line.split()
            if len(words) < 10 or words[3] != LISTEN:
                continue
            port = int(words[1].rsplit(":", 1)[1], 16)
            if port in wanted:
                found.setdefault(port, set()).add(words[9])
    return found


def owner_unit(root: Path, pid: str) -> str:
    """The systemd unit of a process, or its command name when it has none."""
    for line in read_text(root / "proc" / pid / "cgroup").splitlines():
        for part in reversed(line.split("/")):
            if part.endswith((".service", ".scope")):
                return part
    return read_text(root / "proc" / pid / "comm") or f"process {pid}"


def open_files(process: Path) -> list[str]:
    """What the descriptors of a process point at; none for one that has ended or is not ours to look into."""
    links: list[str] = []
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            # A busy server closes connections while its descriptors are read: the others still count.
            with contextlib.suppress(OSError):
                links.append(str(descriptor.readlink()))
    return links


def port_owners(root: Path, ports: Sequence[int]) -> dict[int, str]:
    """Port to the unit (or program) that listens on it, for those of `ports` that are in use.

    Empty for a listener that no visible process holds: the kernel's own, or one of another namespace.
    """
    owners: dict[int, str] = {}
    inodes = listening_inodes(root, ports)
    # A service that restarts meanwhile closes a socket that was listed before its process was looked at: such a port is
    # looked at again, until nobody holds the same socket twice.
    for _ in range(LOOKS):
        owners.update(_holders(root, inodes))
        unheld = {port: inodes[port] for port in inodes if not owners[port]}
        inodes = listening_inodes(root, list(unheld)) if unheld else {}
        for port in unheld.keys() - inodes.keys():
            del owners[port]
        inodes = {port: found for port, found in inodes.items() if found != unheld[port]}
        if not inodes:
            break
    return owners


def _holders(root: Path, inodes: Mapping[int, set[str]]) -> dict[int, str]:
    """Port to who holds one of its sockets; "" where nobody visible does."""
    sockets = {f"socket:[{inode}]": port for port, found in inodes.items() for inode in found}
    owners = dict.fromkeys(inodes, "")
    if not sockets:
        return owners
    for process in (root / "proc").iterdir():
        if not process.name.isdigit():
            continue
        for port in {sockets[link] for link in open_files(process) if link in sockets}:
            owners[port] = owner_unit(root, process.name)
    return owners


def unit_state(unit: str) -> str:
    """systemd's ActiveState of a unit; "" where it does not tell."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["systemctl", "show", "--property", "ActiveState", "--value", "--", unit]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SYSTEMCTL_TIMEOUT_S)
        return done.stdout.strip()
    return ""


def holding(units: Sequence[str], state: Callable[[str], str]) -> str:
    """Of the units that may have a port the one that holds it unseen, "" for none.

    A process that ends gives its files away before its sockets: for a moment nobody has them. But a unit that runs or
    is being stopped has its port, and no other program could have taken it meanwhile.
    """
    return next((unit for unit in units if state(unit) in ("active", "reloading", "deactivating")), "")


def gather(
    ports: Mapping[int, Sequence[str]], root: Path = Path("/"), states: Callable[[str], str] = unit_state
) -> dict[str, Any]:
    """All facts in one dictionary. `states` tells the state of a unit.

    `ports` maps each port that the host's roles need to the units that may hold it already. Sizes
    are bytes, `clock_s` is the Unix time. Raises OSError when / cannot be measured.
    """
    disk = os.statvfs(root)
    owners = port_owners(root, list(ports))
    owners |= {port: unit for port, owner in owners.items() if not owner and (unit := holding(ports[port], states))}
    return {
        "os": os_release(root),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "hostname": socket.gethostname(),
        "machine_id": read_text(root / "etc/machine-id"),
        "product_uuid": read_text(root / "sys/class/dmi/id/product_uuid").lower(),
        "boot_id": read_text(root / "proc/sys/kernel/random/boot_id"),
        "host_keys": host_keys(root),
        "memory_bytes": memory_bytes(root),
        "cpus": os.cpu_count() or 0,
        "disk_free_bytes": disk.f_bavail * disk.f_frsize,
        "ports_taken": {str(port): owner for port, owner in owners.items() if owner not in ports[port]},
        "cgroup_version": cgroup_version(root),
        "swap": swap_devices(root),
        "is_root": os.geteuid() == 0,
        "systemd": (root / "run/systemd/system").is_dir(),
        "clock_s": time.time(),
    }
