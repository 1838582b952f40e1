"""Facts of a host that decide how its kubelet is set up. Standard library only: runs on the hosts."""

from __future__ import annotations

import re
from pathlib import Path

_SERVER = re.compile(r"^\s*server:\s*[\"']?([^\s\"']+)", re.MULTILINE)
RESOLVED_UPSTREAM = "run/systemd/resolve/resolv.conf"
RESOLVED_STUB = "stub-resolv.conf"


def kubeconfig_server(path: Path) -> str:
    """The API server's address in a kubeconfig with one cluster; empty when there is no such file or line."""
    try:
        match = _SERVER.search(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    return match[1] if match else ""


def resolv_conf(root: Path = Path("/")) -> str:
    """The resolv.conf with the real name servers.

    Where /etc/resolv.conf names only systemd-resolved's stub on 127.0.0.53, pods must be given the file behind it.
    """
    etc = root / "etc/resolv.conf"
    stub = etc.is_symlink() and etc.readlink().name == RESOLVED_STUB
    return f"/{RESOLVED_UPSTREAM}" if stub and (root / RESOLVED_UPSTREAM).exists() else "/etc/resolv.conf"
