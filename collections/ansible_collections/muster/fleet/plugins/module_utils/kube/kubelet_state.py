"""Facts of a host that decide how its kubelet is set up. Standard library only: runs on the hosts."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.upstreams import (
    RESOLV_CONF,
    RESOLVED_UPSTREAM,
    is_resolved_stub,
)
from ansible_collections.muster.fleet.plugins.module_utils.kube.health import Check, Server, ask, context_of
from ansible_collections.muster.fleet.plugins.module_utils.pki.pem_certificates import first

_SERVER = re.compile(r"^\s*server:\s*[\"']?([^\s\"']+)", re.MULTILINE)
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
# kubelet tries to register every 7 s at least, and never again once it has (k8s.io/kubernetes v1.36,
# pkg/kubelet/kubelet_node_status.go, registerWithAPIServer).
REGISTRATION_S = 20.0
POLL_S = 1.0
REQUEST_TIMEOUT_S = 5.0


def kubeconfig_server(path: Path) -> str:
    """The API server's address in a kubeconfig with one cluster; empty when there is no such file or line."""
    try:
        match = _SERVER.search(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ""
    return match[1] if match else ""


def machine_id(root: Path = Path("/")) -> str:
    """The host's machine id; empty when it has none (machine-id(5): also before the first boot is over)."""
    try:
        text = (root / "etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
    return text if _MACHINE_ID.fullmatch(text) else ""


def resolv_conf(root: Path = Path("/")) -> str:
    """The resolv.conf with the real name servers.

    Where /etc/resolv.conf names only systemd-resolved's stub, pods must be given the file behind it: the stub listens
    on the host's loopback. It may be a link to resolved's file, or a copy of it, or a file that somebody wrote.
    """
    found = is_resolved_stub(root) and (root / RESOLVED_UPSTREAM).exists()
    return f"/{RESOLVED_UPSTREAM}" if found else f"/{RESOLV_CONF}"


def foreign_certificates(paths: Sequence[Path], signer: str) -> list[Path]:
    """Those of these certificate files that another CA than the first in `signer` (PEM, empty: none named) has signed.

    A file that is not there, or whose signer cannot be told, is not foreign.
    """
    authority = first(signer)
    if authority is None or not authority.key_id:
        return []
    found = []
    for path in paths:
        leaf = first(path.read_text(encoding="ascii", errors="replace")) if path.exists() else None
        if leaf is not None and leaf.signer_id and leaf.signer_id != authority.key_id:
            found.append(path)
    return found


def node_absent(server: Server, node: str) -> bool:
    """Whether the API server says that there is no Node of this name; no clear answer is no absence."""
    try:
        check = Check(f"/api/v1/nodes/{quote(node, safe='')}")
        answer = ask(server, context_of(server), check, REQUEST_TIMEOUT_S)
        details = json.loads(answer.text)["details"]
        # A balancer has its own 404: only the API server names what it looked for.
        return answer.status == 404 and (details["kind"], details["name"]) == ("nodes", node)
    except (OSError, http.client.HTTPException, FleetError, ValueError, KeyError, TypeError):
        return False


def will_not_register(
    absent: Callable[[], bool],
    age_s: float,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Whether a kubelet runs without a Node and will not make one: it has had the time to register, and there is none.

    `age_s`: for how long it has been running with its certificate. A younger one is given the rest of the time.
    """
    end = clock() + min(max(REGISTRATION_S - age_s, 0.0), REGISTRATION_S)
    while absent():
        if clock() >= end:
            return True
        pause(POLL_S)
    return False
