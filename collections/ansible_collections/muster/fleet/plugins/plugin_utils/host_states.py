"""How each host of a run stands, from what the roles registered. Each host's variables are read once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

ROLES = {
    "etcd": "etcd",
    "etcd_events": "etcd (events)",
    "kube_apiserver": "API server",
    "api_loadbalancer": "load balancer",
    "system_nodes": "system node",
    "gpu_nodes": "GPU node",
    "monitoring": "monitoring",
}
# Parts of the NVIDIA stack without which no new host does work, and their roles.
_PARTS = {
    "driver": "driver", "fabric": "fabricmanager", "DCGM": "dcgm", "CDI specification": "container_toolkit",
}  # fmt: skip
# Ansible's hostvars.raw_get: a host's variables, put together anew by each call.
Registered = Callable[[str], Mapping[str, Any]]


@dataclass(frozen=True)
class HostState:
    """One host: what it is, how it stands, and why it is held, in sentences that nothing has wrapped."""

    name: str
    # The place of its first role in the house, then all of its roles in words.
    rank: int
    role: str
    state: str
    # Did not answer SSH, so that the run went on without it.
    absent: bool = False
    # A GPU node that does no work yet, and why not.
    held: bool = False
    order: str = ""
    reasons: tuple[str, ...] = ()
    # What is not as asked on a node that does work.
    notes: tuple[str, ...] = ()
    # Its GPUs want an extended burn-in once.
    new_gpus: bool = False
    # Its report has a page for a browser.
    page: bool = False


def host_states(
    hosts: Iterable[str], registered: Registered, groups: Mapping[str, Iterable[str]], well: Iterable[str]
) -> list[HostState]:
    """The hosts in the order of the house; `well` are those without a failed task. Raises FleetError for a stranger."""
    controller = registered("localhost")
    result = controller.get("__node_admission_result", {})
    off = set((controller.get("__fleet_first_contact") or {}).get("switched_off", ()))
    admitted: dict[str, Mapping[str, Any]] = {str(node["name"]): node for node in result.get("nodes", [])}
    roles: dict[str, list[str]] = defaultdict(list)
    for group in ROLES:
        for host in groups.get(group, ()):
            roles[host].append(group)
    fine = set(well)
    found = (
        _host(host, roles.get(host, ()), registered(host), admitted.get(host, {}), well=host in fine, off=host in off)
        for host in hosts
    )
    return sorted(found, key=lambda host: (host.rank, host.name))


def without_backup(groups: Mapping[str, Iterable[str]], hostvars: Mapping[str, Any]) -> list[str]:
    """The groups of etcd of which no snapshots are made. They are few hosts, and their values may be templates."""
    return [
        group
        for group in ("etcd", "etcd_events")
        if any(not hostvars[host].get("etcd_backup_recipients") for host in groups.get(group, ()))
    ]


def _host(
    name: str, groups: Collection[str], variables: Any, admission: Mapping[str, Any], *, well: bool, off: bool
) -> HostState:
    if not isinstance(variables, Mapping):
        raise FleetError(f"{name} is not in the inventory; correct the hosts of the summary")
    rank = next((rank for rank, group in enumerate(ROLES) if group in groups), len(ROLES))
    role = ", ".join(ROLES[group] for group in groups) or "-"
    burnin: Mapping[str, Any] = variables.get("__gpu_burnin_result") or {}
    found = {part: variables.get(f"nvidia_{role}_found") or {} for part, role in _PARTS.items()}
    stack = {part: str(result["held"]) for part, result in found.items() if result.get("held")}
    silent = bool((variables.get("__preflight_facts") or {}).get("unreachable"))
    off, absent = silent and off, silent and not off
    held = "gpu_nodes" in groups and admission.get("state") != "ready" and not silent
    if off:
        state = "off  the scaler has switched it off"
    elif absent:
        state = "LEFT OUT: does not answer SSH"
    elif not well:
        state = "FAILED: see the failed task above"
    elif not burnin and not admission:
        state = next((f"held  no {part} as asked" for part in stack), "up")
    else:
        state = _judged(burnin, admission, (found["driver"].get("driver") or {}).get("loaded"))
    return HostState(
        name=name,
        rank=rank,
        role=role,
        state=state,
        absent=absent,
        held=held,
        order=_order(burnin) if held else "",
        reasons=tuple(_why(burnin, admission, stack)) if held else (),
        notes=tuple(str(note) for result in found.values() for note in result.get("notes", [])),
        new_gpus=_new_gpus(burnin),
        page=bool(burnin.get("page")),
    )


def _judged(burnin: Mapping[str, Any], admission: Mapping[str, Any], loaded: object) -> str:
    """Of a host that the burn-in or the admitter knows."""
    gate = "ready" if admission.get("state") == "ready" else "held"
    driver = f"  driver {loaded}" if loaded else ""
    simulated = " (simulated)" if admission.get("simulated") else ""
    verdict = burnin.get("verdict") or str(admission.get("verdict") or "no verdict").upper()
    codes = ", ".join(dict.fromkeys(str(reason["code"]) for reason in _reasons(burnin, admission)))
    return f"{gate}{simulated}  {verdict}{': ' + codes if codes else ''}{driver}"


def _reasons(burnin: Mapping[str, Any], admission: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The burn-in's reasons; the admitter's where the burn-in has none."""
    reasons = [reason for reason in burnin.get("reasons", []) if _counts(reason)]
    return reasons or [reason for reason in admission.get("reasons", []) if _counts(reason)]


def _counts(reason: Mapping[str, Any]) -> bool:
    """SIMULATED says what kind of run it was, PASS is the verdict itself: no reasons to hold a node."""
    return reason["code"] not in ("SIMULATED", "PASS")


def _why(burnin: Mapping[str, Any], admission: Mapping[str, Any], stack: Mapping[str, str]) -> Iterable[str]:
    yield from (f"{part}: {held}" for part, held in stack.items())
    if burnin.get("postponed"):
        yield f"not tested: {burnin['why']}"
    yield from (f"{reason['code']}: {reason['message']}" for reason in _reasons(burnin, admission))


def _order(burnin: Mapping[str, Any]) -> str:
    """What to do next; the command that tests again is in the last lines. A PASS is held for the admitter's reasons."""
    order = burnin.get("order")
    if not order or burnin.get("verdict") == "PASS":
        return ""
    return f". {order['sentence']}" + (", then test it again" if order["command"] else "")


def _new_gpus(burnin: Mapping[str, Any]) -> bool:
    """Whether a host's burn-in warns of GPUs that are new to it; simulated ones need no more than they had."""
    codes = {warning["code"] for warning in burnin.get("burnin_warnings", [])}
    return "EXTENDED_WANTED" in codes and not burnin.get("simulated")
