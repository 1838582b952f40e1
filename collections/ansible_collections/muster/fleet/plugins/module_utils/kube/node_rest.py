"""Quiescing a node: nothing starts on it by itself any more, and no pod is left. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import services

# What would start pods, a burn-in or a look at the GPUs, now or after a reboot. Their roles enable them again.
UNITS = ("kubelet.service", "gpu-burnin-boot.service", "gpu-burnin-watch.service")
# What observes GPUs keeps the driver in use; the burn-in's end, or the role `nvidia_dcgm`, starts it again.
OBSERVERS = "gpu-monitoring.target"
# kubelet's namespace of containerd.
KUBERNETES = "k8s.io"
_POLL_S = 0.5
_KILLED_S = 30.0
# kubelet and the agent may take their time to stop.
_COMMAND_S = 150.0


@dataclass(frozen=True)
class Node:
    """The node that is worked on. `clock` and `sleep` are time's."""

    run: Run
    show: Callable[[str], systemd_unit.Unit] = systemd_unit.show
    root: Path = Path("/")
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def rest(node: Node, burnin_timeout_s: float, grace_s: float, *, act: bool) -> list[str]:
    """Quiesce it; what was (without `act`: would be) done.

    Services are stopped, and not started at the next boot. A burn-in comes to its end. Then what is left in containers,
    which is of pods that nobody evicts (daemons), gets SIGTERM and `grace_s` later SIGKILL. Raises FleetError.
    """
    done = []
    for unit in (*UNITS, OBSERVERS):
        found = node.show(unit)
        stays_off = unit == OBSERVERS or not found.enabled
        if not found.loaded or (stays_off and not found.running):
            continue
        done.append(f"stop {unit}")
        if act:
            _must(node, ["systemctl", *(["stop"] if unit == OBSERVERS else ["disable", "--now"]), "--", unit])
    if act and not _wait(node, burnin_timeout_s, lambda: not _burns(node)):
        raise FleetError(f"a burn-in runs for more than {burnin_timeout_s:.0f} s; look at `gpu-burnin status`")
    foreign = [one for one in services.tasks(node.root) if one[0] != KUBERNETES]
    if foreign:
        raise FleetError(f"the container {'/'.join(foreign[0])} runs and is no pod's; end it, then run this again")
    left = services.tasks(node.root)
    if left:
        done.append(f"end {len(left)} containers")
    if left and act:
        _end(node, grace_s)
    return done


def _end(node: Node, grace_s: float) -> None:
    for signal, timeout_s in (("SIGTERM", grace_s), ("SIGKILL", _KILLED_S)):
        for namespace, container in services.tasks(node.root):
            # One that has ended meanwhile is no error: what is left in the end counts.
            _failure(node, ["ctr", "-n", namespace, "tasks", "kill", "--all", "--signal", signal, container])
        if _wait(node, timeout_s, lambda: not services.tasks(node.root)):
            return
    names = ", ".join(container for _, container in services.tasks(node.root))
    why = _failure(node, ["ctr", "-n", KUBERNETES, "tasks", "ls"])
    raise FleetError(
        f"these containers do not end: {names}{f' ({why})' if why else ''}; look at `ctr -n k8s.io tasks ls`"
    )


def _burns(node: Node) -> bool:
    try:
        state = services.states([services.BURNIN], node.run)[services.BURNIN]
    except CommandError as error:
        raise FleetError(f"whether a burn-in runs cannot be told: {error}") from error
    return state in services.RUNNING


def _wait(node: Node, timeout_s: float, condition: Callable[[], bool]) -> bool:
    deadline_s = node.clock() + timeout_s
    while not condition():
        if node.clock() >= deadline_s:
            return False
        node.sleep(_POLL_S)
    return True


def _must(node: Node, command: list[str]) -> None:
    if said := _failure(node, command):
        raise FleetError(f"{' '.join(command)} failed: {said}")


def _failure(node: Node, command: list[str]) -> str:
    """Run a command; its last words when it failed, empty when it did not."""
    try:
        ended = node.run(command, _COMMAND_S)
    except CommandError as error:
        return str(error)
    return "" if ended.code == 0 else " ".join(ended.err.split()) or f"exit code {ended.code}"
