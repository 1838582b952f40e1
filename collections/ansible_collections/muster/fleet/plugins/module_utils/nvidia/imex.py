"""IMEX on a node of a rack: whether its daemon is ready, and which nodes of the domain are not.

Standard library only, because it runs on the hosts.
"""

from __future__ import annotations

import json

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run

# What `nvidia-imex-ctl -q` says of the daemon, and -N of the domain (DCGM, dcgm_fields.h, DCGM_FI_IMEX_DAEMON_STATUS).
READY, UP = "READY", "UP"
_STATES = (
    "INITIALIZING", "STARTING_AUTH_SERVER", "WAITING_FOR_PEERS", "WAITING_FOR_RECOVERY", "INIT_GPU", READY,
    "SHUTTING_DOWN", "UNAVAILABLE",
)  # fmt: skip
_NAMED_NODES = 5
_TIMEOUT_S = 30.0


def not_ready(run: Run) -> str:
    """Why the daemon of this host is not ready, as a clause; empty when it is."""
    try:
        done = run(["nvidia-imex-ctl", "-q"], _TIMEOUT_S)
    except CommandError as error:
        return str(error)
    said = " ".join(done.out.split())
    if said == READY and done.code == 0:
        return ""
    if said in _STATES:
        return f"it is {said}"
    words = (done.err + done.out).strip().splitlines() or ["it said nothing"]
    return (
        f"nvidia-imex-ctl -q ended with {done.code} ({words[-1].strip()[:200]}); without IMEX_CMD_ENABLED=1 in "
        "/etc/nvidia-imex/config.cfg nobody can ask"
    )


def incomplete(run: Run, nodes: int) -> str:
    """What the domain of so many nodes lacks, as a clause; empty when every node of it is there."""
    try:
        done = run(["nvidia-imex-ctl", "-N", "-j"], _TIMEOUT_S)
        document = json.loads(done.out)
        found = {str(node["host"]): str(node["status"]) for node in document["nodes"].values()}
        domain = str(document["status"])
    except (CommandError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the IMEX domain cannot be read ({error})"
    away = [f"{host} ({status})" for host, status in found.items() if status != READY]
    if not away and domain == UP and len(found) == nodes:
        return ""
    more = len(away) - _NAMED_NODES
    named = ", ".join(away[:_NAMED_NODES]) + (f" and {more} more" if more > 0 else "")
    return f"the IMEX domain is {domain} with {len(found) - len(away)} of {nodes} nodes ready" + (
        f"; not ready: {named}" if away else ""
    )
