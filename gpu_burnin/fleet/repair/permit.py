"""What forbids a repair: work on the node, maintenance, too many nodes in repair, somebody else's ask. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpu_burnin.admission.view import Node, Pod
from gpu_burnin.api.agent_note import AgentNote, Maintenance, NoteError, read_note
from gpu_burnin.api.maintenance import active, unknown
from gpu_burnin.api.names import KIND, Names
from gpu_burnin.api.record import Ask, NodeAdmission, State
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair.ladder import Found, Step, StepState
from gpu_burnin.node.unit import UNIT
from gpu_burnin.system.prose import listed

# A node is kept free of new work this long before a window; a repair takes about as long.
BEFORE_MAINTENANCE_S = 3600.0
# How the asks of a driver upgrade begin, which the same user may have asked; one that has failed goes on so.
DRIVER_UPGRADE = "driver upgrade to "
UPGRADE_FAILED = " failed: "


class RepairRefused(GpuBurninError):
    """Why a node is not repaired now; nothing was done to it."""


@dataclass(frozen=True)
class Scene:
    """The node in the cluster. `others` are the other nodes that are in repair; `me` is the user who asks.

    `paused` is why the fleet is paused, "" when it is not.
    """

    name: str
    names: Names
    me: str
    record: NodeAdmission | None
    node: Node | None = None
    pods: tuple[Pod, ...] = ()
    others: tuple[str, ...] = ()
    paused: str = ""


@dataclass(frozen=True)
class Limits:
    """`nodes` at most are in repair at a time. The others let a person take on what nobody can look up."""

    nodes: int = 1
    despite_maintenance: bool = False
    unreached: bool = False


def in_repair(record: NodeAdmission) -> bool:
    """Whether a node counts against the limit."""
    return record.spec.repair is not None or record.status.state is State.REPAIRING


def upgrading(record: NodeAdmission) -> Ask | None:
    """The ask of a driver upgrade that is under way: its quarantine while work leaves, then its repair too."""
    asks = (ask for ask in (record.spec.repair, record.spec.quarantine) if ask is not None)
    return next((ask for ask in asks if ask.why.startswith(DRIVER_UPGRADE) and UPGRADE_FAILED not in ask.why), None)


def refuse_node(name: str, found: Found, look: Mapping[str, Any] | None, last: Step | None, limits: Limits) -> None:
    """What the node itself says against it. Raises RepairRefused.

    A node that does not answer may work: it is gone on with only where this ladder took it down.
    """
    if not found.reached:
        ours = last is not None and last.rung.boots and last.state is not StepState.DONE
        if not (ours or limits.unreached):
            raise RepairRefused(
                f"{name}: it does not answer by SSH, so nobody knows whether a process is on its GPUs; look at its "
                "console, or, when you are sure, add -e repair_unreached=true, which powers it off and on"
            )
        return
    refuse_processes(name, look)


def refuse_processes(name: str, look: Mapping[str, Any] | None) -> None:
    """Processes that compute, but for the burn-in, whose end is waited for. Raises RepairRefused."""
    working = [holder for holder in (look or {}).get("working", ()) if holder["unit"] != UNIT]
    if working:
        told = [f"{one['name']} (process {one['pid']}{one['unit'] and ', '}{one['unit']})" for one in working]
        raise RepairRefused(f"{name}: work is on its GPUs: {listed(told)}; end it, then run this again")


def refuse_pods(scene: Scene) -> None:
    """Pods with GPUs. Raises RepairRefused."""
    working = [f"{pod.namespace}/{pod.name}" for pod in scene.pods if pod.gpus and not pod.ended]
    if working:
        raise RepairRefused(
            f"{scene.name}: it has work: {listed(working)}; `muster node quarantine {scene.name} --reason REASON` "
            "asks it to leave, then run this again"
        )


def refuse_cluster(scene: Scene, limits: Limits, now: datetime) -> None:
    """What the cluster says against it. Raises RepairRefused with one sentence: what, and what to do."""
    name = scene.name
    if scene.record is None:
        raise RepairRefused(
            f"{name}: the cluster has no {KIND} of this name, so nobody can be told to keep work away; run site.yml"
        )
    if (under_way := upgrading(scene.record)) is not None:
        raise RepairRefused(
            f"{name}: {under_way.who} has asked for it since {under_way.since} ({under_way.why}); let them go on "
            "with it"
        )
    asked = scene.record.spec.repair
    if asked is not None and asked.who != scene.me:
        raise RepairRefused(
            f"{name}: {asked.who} has it in repair since {asked.since} ({asked.why}); let them go on with it"
        )
    if scene.paused:
        raise RepairRefused(f"{name}: the fleet is paused ({scene.paused}); run this again after `muster resume`")
    if len(scene.others) >= limits.nodes:
        raise RepairRefused(
            f"{name}: {len(scene.others)} in repair already ({listed(scene.others)}), and repair_max_nodes allows "
            f"{limits.nodes}; wait for their end"
        )
    refuse_pods(scene)
    refuse_maintenance(name, maintenance(scene, now), limits)


def refuse_maintenance(name: str, near: str, limits: Limits) -> None:
    """A window that is near or open, "" for none. Raises RepairRefused."""
    if near and not limits.despite_maintenance:
        raise RepairRefused(
            f"{name}: {near}; wait until it is over, or add -e repair_despite_maintenance=true when you know better"
        )


def maintenance(scene: Scene, now: datetime) -> str:
    """Why a maintenance window forbids it. Unknown is not none."""
    if scene.node is None:
        return ""
    taints = scene.node.get("spec", {}).get("taints") or ()
    if any(taint["key"] == scene.names.maintenance for taint in taints):
        return f"it has the taint {scene.names.maintenance}: a maintenance window is near or open"
    text = (scene.node["metadata"].get("annotations") or {}).get(scene.names.agent, "")
    try:
        note: AgentNote | None = read_note(text) if text else None
    except NoteError as error:
        return str(error)
    window: Maintenance | None = note.maintenance if note else None
    return active(window, now, BEFORE_MAINTENANCE_S) or unknown(window)
