"""Jinja filter: one screen that says what the fleet looks like after a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from gpu_burnin.system.host_names import name_hosts
from gpu_burnin.system.prose import STANDARD_WIDTH, short_uuids, wrap

DOCUMENTATION = r"""
name: fleet_summary
short_description: One screen with each host, its role and its state
version_added: "0.1.0"
description:
  - A line for each host; for GPU nodes also verdict, reasons and what to do; then the commands to try next.
options:
  _input:
    description: Names of hosts.
    type: list
    elements: str
    required: true
  hostvars:
    description: Ansible's C(hostvars), with the results that the roles registered.
    type: dict
    required: true
  groups:
    description: Ansible's C(groups).
    type: dict
    required: true
  well:
    description: Hosts without a failed task.
    type: list
    elements: str
    required: true
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
msg: "{{ groups['all'] | muster.fleet.fleet_summary(hostvars, groups, ansible_play_hosts) }}"
"""

RETURN = r"""
_value:
  description: Several lines of text.
  type: str
"""

ROLES = {
    "etcd": "etcd",
    "etcd_events": "etcd (events)",
    "kube_apiserver": "API server",
    "api_loadbalancer": "load balancer",
    "system_nodes": "system node",
    "gpu_nodes": "GPU node",
    "monitoring": "monitoring",
}
# So many hosts are named where there may be hundreds.
NAMED_HOSTS = 5
# Parts of the NVIDIA stack without which no new host does work, and their roles.
_PARTS = {
    "driver": "driver", "fabric": "fabricmanager", "DCGM": "dcgm", "CDI specification": "container_toolkit",
}  # fmt: skip


def fleet_summary(
    hosts: Iterable[str],
    hostvars: Mapping[str, Any],
    groups: Mapping[str, Collection[str]],
    well: Collection[str],
) -> str:
    """The text. Pure: everything comes from the variables given."""
    admitted = _admission(hostvars)
    names = sorted(hosts, key=lambda host: (_rank(host, groups), host))
    rows = [(host, _role(host, groups), _state(host, hostvars, admitted, well)) for host in names]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    rest = " " * (widths[0] + widths[1] + 4)
    lines = [
        line
        for host, role, state in rows
        for line in wrap(state, STANDARD_WIDTH, f"{host:{widths[0]}}  {role:{widths[1]}}  ", rest)
    ]
    held = []
    for host in names:
        waits = host in groups.get("gpu_nodes", ()) and _gpu_state(host, admitted) != "ready"
        if waits and not _is_absent(host, hostvars):
            held.append(host)
    lines += ["", *_absent([host for host in names if _is_absent(host, hostvars)])]
    for host in held:
        lines += _why(host, hostvars, admitted)
    lines += _notes(names, hostvars)
    lines += _without_backup(hostvars, groups)
    new = [host for host in names if _new_gpus(_burnin(host, hostvars))]
    lines += _wanted(new)
    lines += _next(hostvars, names, held, new)
    return "\n".join(lines)


def _admission(hostvars: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    result = hostvars.get("localhost", {}).get("__node_admission_result", {})
    return {str(node["name"]): node for node in result.get("nodes", [])}


def _rank(host: str, groups: Mapping[str, Collection[str]]) -> int:
    return next((rank for rank, group in enumerate(ROLES) if host in groups.get(group, ())), len(ROLES))


def _role(host: str, groups: Mapping[str, Collection[str]]) -> str:
    return ", ".join(text for group, text in ROLES.items() if host in groups.get(group, ())) or "-"


def _gpu_state(host: str, admitted: Mapping[str, Mapping[str, Any]]) -> str:
    return "ready" if admitted.get(host, {}).get("state") == "ready" else "held"


def _state(
    host: str, hostvars: Mapping[str, Any], admitted: Mapping[str, Mapping[str, Any]], well: Collection[str]
) -> str:
    if _is_absent(host, hostvars):
        return "LEFT OUT: does not answer SSH"
    if host not in well:
        return "FAILED: see the failed task above"
    burnin, admission = _burnin(host, hostvars), admitted.get(host, {})
    if not burnin and not admission:
        return next((f"held  no {part} as asked" for part in _stack(host, hostvars)), "up")
    loaded = ((hostvars[host].get("nvidia_driver_found") or {}).get("driver") or {}).get("loaded")
    driver = f"  driver {loaded}" if loaded else ""
    simulated = " (simulated)" if admission.get("simulated") else ""
    verdict = burnin.get("verdict") or str(admission.get("verdict") or "no verdict").upper()
    codes = ", ".join(dict.fromkeys(str(reason["code"]) for reason in _reasons(burnin, admission)))
    return f"{_gpu_state(host, admitted)}{simulated}  {verdict}{': ' + codes if codes else ''}{driver}"


def _is_absent(host: str, hostvars: Mapping[str, Any]) -> bool:
    """Whether preflight could not reach the host, so that the run went on without it."""
    return bool((hostvars[host].get("__preflight_facts") or {}).get("unreachable"))


def _absent(hosts: list[str]) -> list[str]:
    if not hosts:
        return []
    told = (
        f"{name_hosts(hosts)}: no answer to SSH, so this run has changed nothing there and the exit code is not 0. "
        "Look at power, BMC and network, then run site.yml again; or take the host out of the inventory"
    )
    return [*wrap(told, STANDARD_WIDTH, "", "  "), ""]


def _reasons(burnin: Mapping[str, Any], admission: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The burn-in's reasons; the admitter's where the burn-in has none."""
    reasons = [reason for reason in burnin.get("reasons", []) if _counts(reason)]
    return reasons or [reason for reason in admission.get("reasons", []) if _counts(reason)]


def _counts(reason: Mapping[str, Any]) -> bool:
    """SIMULATED says what kind of run it was, PASS is the verdict itself: no reasons to hold a node."""
    return reason["code"] not in ("SIMULATED", "PASS")


def _burnin(host: str, hostvars: Mapping[str, Any]) -> Mapping[str, Any]:
    result: Mapping[str, Any] = hostvars[host].get("__gpu_burnin_result") or {}
    return result


def _stack(host: str, hostvars: Mapping[str, Any]) -> dict[str, str]:
    """{part of the NVIDIA stack without which a host does no work: why it is not as asked}."""
    found = {part: hostvars[host].get(f"nvidia_{role}_found") or {} for part, role in _PARTS.items()}
    return {part: str(result["held"]) for part, result in found.items() if result.get("held")}


def _notes(names: list[str], hostvars: Mapping[str, Any]) -> list[str]:
    """What the stack's roles would change and did not on a node that does work, and what is wrong with its DCGM."""
    found = [(host, hostvars[host].get(f"nvidia_{role}_found") or {}) for role in _PARTS.values() for host in names]
    noted = [(host, short_uuids(str(note))) for host, result in found for note in result.get("notes", [])]
    lines = [line for host, note in noted[:NAMED_HOSTS] for line in wrap(f"{host}: {note}", STANDARD_WIDTH, "", "  ")]
    more = len(noted) - NAMED_HOSTS
    return [*lines, *([f"and {more} more notes of the NVIDIA stack"] if more > 0 else []), *([""] if noted else [])]


def _without_backup(hostvars: Mapping[str, Any], groups: Mapping[str, Collection[str]]) -> list[str]:
    """A line about the etcd clusters of which no snapshots are made."""
    bare = [
        group
        for group in ("etcd", "etcd_events")
        if any(not hostvars[host].get("etcd_backup_recipients") for host in groups.get(group, ()))
    ]
    told = (
        f"No snapshots are made of {' and '.join(bare)}: set etcd_backup_recipients and a second place "
        "(docs/operations/backup-and-restore.md)"
    )
    return [*wrap(told, STANDARD_WIDTH, "", "  "), ""] if bare else []


def _why(host: str, hostvars: Mapping[str, Any], admitted: Mapping[str, Mapping[str, Any]]) -> list[str]:
    burnin = _burnin(host, hostvars)
    reasons = _reasons(burnin, admitted.get(host, {}))
    lines = [f"{host} is held{_order(burnin)}"]
    for part, held in _stack(host, hostvars).items():
        lines += wrap(f"{part}: {short_uuids(held)}", STANDARD_WIDTH, "  ", "    ")
    if burnin.get("postponed"):
        lines += wrap(f"not tested: {burnin['why']}", STANDARD_WIDTH, "  ", "    ")
    for reason in reasons:
        lines += wrap(f"{reason['code']}: {short_uuids(reason['message'])}", STANDARD_WIDTH, "  ", "    ")
    return [*lines, ""]


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


def _wanted(new: list[str]) -> list[str]:
    if not new:
        return []
    more = f" and {len(new) - NAMED_HOSTS} more" if len(new) > NAMED_HOSTS else ""
    have = "has" if len(new) == 1 else "have"
    return [
        f"{', '.join(new[:NAMED_HOSTS])}{more} {have} GPUs that want an extended burn-in once (EXTENDED_WANTED)",
        "",
    ]


def _next(hostvars: Mapping[str, Any], names: list[str], held: list[str], new: list[str]) -> list[str]:
    variables = hostvars[names[0]]
    state = variables["fleet_state_dir"]
    inventory = " ".join(f"-i {source}" for source in variables.get("ansible_inventory_sources", []))
    lines = ["Next:", f"  kubectl --kubeconfig {state}/kubeconfig/admin.kubeconfig get nodes"]
    if len(held) > 1:
        lines.append(f"  gpu-burnin report {state}/reports    (all that are held, and why)")
    for host in held[:1]:
        lines.append(f"  gpu-burnin report {state}/reports/{host}/report.json")
        if _burnin(host, hostvars).get("page"):
            lines.append(f"  {state}/reports/{host}/report.html    (the same with plots, for a browser)")
        lines.append(f"  ansible-playbook {inventory} playbooks/burnin.yml -l {host}    (after the repair)")
    for host in [host for host in new if host not in held][:1]:
        retest = f"playbooks/burnin.yml -l {host} -e gpu_burnin_retest_level=extended"
        lines.append(f"  ansible-playbook {inventory} {retest}    (its new GPUs; drain it first)")
    return lines


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"fleet_summary": fleet_summary}
