"""Whether somebody watches the GPUs of a node: its agent's heartbeat. Pure."""

from __future__ import annotations

from gpu_burnin.admission.decide.nodes import boot_id, gated
from gpu_burnin.admission.view import Node, Rules, View
from gpu_burnin.api.record import State, Status

AGENT_SILENT, AGENT_BOOT = "AGENT_SILENT", "AGENT_BOOT"
# A node that is kept from work stays so while nothing is heard: else a new leader, to whom no heartbeat is fresh yet,
# would count all of them as new boots, and its budget would let as many again be kept from work.
_KEPT_BACK = (State.SUSPECT, State.EXPIRING)


def unwatched(view: View, node: Node, status: Status, rules: Rules) -> tuple[State, str, str] | None:
    """State, code and message of a node whose agent sends no heartbeat; None for one that is watched.

    The agent's note is no sign of life: it stays, and of a new boot `gpu-burnin gate --cluster` writes it too.
    """
    heartbeat = view.heartbeat
    if heartbeat is None:
        return None
    # Once it was told, the node is in doubt until its agent is heard: to a new leader everybody's silence is new.
    doubted = status.code == AGENT_SILENT and not heartbeat.fresh
    if doubted or heartbeat.silent_s > rules.agent_silent_s:
        message = (
            f"{view.name}: its agent sends no heartbeat (it is off, hangs, or does not reach the API), so nobody "
            "watches its GPUs"
        )
        return State.SUSPECT, AGENT_SILENT, message
    if gated(node, rules.names) and not (heartbeat.fresh and heartbeat.boot_id == boot_id(node)):
        state = status.state if status.state in _KEPT_BACK else State.TESTING
        return state, AGENT_BOOT, f"{view.name}: no heartbeat of its agent in this boot has come yet"
    return None
