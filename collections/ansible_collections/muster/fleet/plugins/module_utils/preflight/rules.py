"""Judge the hosts' facts together. Pure functions: facts in, problems out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem

Facts = Mapping[str, Any]

# The oldest Python of a supported host (Debian 12).
PYTHON_MIN = (3, 11)
GIB = 2**30
_TO_OTHER_BUILDS = "bring a running fleet to other versions with playbooks/upgrade.yml, or correct the checksum"


@dataclass(frozen=True)
class Limits:
    """What is asked of a host. Sizes in bytes, the skew in seconds."""

    supported_os: Sequence[str]
    max_skew_s: float
    min_memory_bytes: int
    min_disk_free_bytes: int
    check_product_uuid: bool = True
    allow_swap: bool = False
    allow_cgroup_v1: bool = False


@dataclass(frozen=True)
class Host:
    """One host's facts, what is asked of it, and whether it runs a kubelet."""

    facts: Facts
    limits: Limits
    is_node: bool = False


def check(hosts: Mapping[str, Host | None]) -> list[Problem]:
    """Every problem of every host; None stands for a host that gave no facts."""
    answered = {name: host for name, host in hosts.items() if host is not None}
    found = [
        Problem("gave no preflight facts", "see its own error above: it must be reachable by SSH", (name,))
        for name in hosts
        if name not in answered
    ]
    for name, host in answered.items():
        found += check_host(name, host)
    return [*_together(found), *duplicates(answered)]


def clock_skew_s(facts: Facts) -> float:
    """By how much the host's clock lies outside the time in which the controller was asking, in seconds.

    Positive: the host is ahead. The time on the way counts for the host, so slow links are no skew.
    """
    clock, before, after = (float(facts[key]) for key in ("clock_s", "controller_before_s", "controller_after_s"))
    return max(clock - after, 0.0) + min(clock - before, 0.0)


def check_host(name: str, host: Host) -> Iterable[Problem]:
    """The problems that one host has by itself."""
    facts, limits = host.facts, host.limits

    def problem(message: str, fix: str) -> Problem:
        return Problem(message, fix, (name,))

    system = f"{facts['os']['id']} {facts['os']['version']}".strip()
    if system not in limits.supported_os:
        yield problem(f"runs {system or 'an unknown system'}", f"install {' or '.join(limits.supported_os)}")
    if tuple(int(part) for part in facts["python"].split(".")[:2]) < PYTHON_MIN:
        yield problem(
            f"Ansible's Python there is {facts['python']}",
            f"set ansible_python_interpreter to Python {'.'.join(map(str, PYTHON_MIN))} or newer",
        )
    if not facts["is_root"]:
        yield problem("the login is not root", "log in as root, or set ansible_become: true")
    if not facts["systemd"]:
        yield problem("systemd does not run it", "boot it with systemd")
    if not host_name_fits(name, facts["hostname"]):
        yield problem(f"its hostname is {facts['hostname']!r}", f"run: hostnamectl set-hostname {name}")
    if len(facts["machine_id"]) != 32:
        yield problem("has no machine id", "run: systemd-machine-id-setup, then reboot it")
    if not facts["host_keys"]:
        yield problem("has no SSH host key", "run: ssh-keygen -A")
    if facts["memory_bytes"] < limits.min_memory_bytes:
        yield problem(
            f"has {facts['memory_bytes'] / GIB:.1f} GiB of memory, {limits.min_memory_bytes / GIB:.1f} are needed",
            "add memory, or lower preflight_min_memory_bytes",
        )
    if facts["disk_free_bytes"] < limits.min_disk_free_bytes:
        yield problem(
            f"has {facts['disk_free_bytes'] / GIB:.1f} GiB free on /, "
            f"{limits.min_disk_free_bytes / GIB:.1f} are needed",
            "free some, or lower preflight_min_disk_free_bytes",
        )
    skew = clock_skew_s(facts)
    if abs(skew) > limits.max_skew_s:
        yield problem(
            f"its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the controller's "
            f"({limits.max_skew_s:g} s are allowed)",
            "set the clock of whichever is wrong",
        )
    for port, owner in facts["ports_taken"].items():
        yield problem(f"port {port} is taken by {owner or 'another program'}", free_port(port, owner))
    if host.is_node and facts["swap"] and not limits.allow_swap:
        yield problem(
            f"is a node with swap on {', '.join(facts['swap'])}",
            "run: swapoff -a, and remove it from /etc/fstab",
        )
    if host.is_node and facts["cgroup_version"] != 2 and not limits.allow_cgroup_v1:
        yield problem("is a node with cgroup v1", "boot it with systemd.unified_cgroup_hierarchy=1")
    if facts["mirror_fault"]:
        yield problem(facts["mirror_fault"], "start it, let the host reach it, or correct kube_binaries_url")
    if facts["archive_fault"]:
        fix = "put the controller's wheelhouse there (muster mirror --wheelhouse), or correct fleet_wheelhouse_url"
        yield problem(facts["archive_fault"], fix)
    for build in facts["other_builds"]:
        yield problem(
            f"has {build}, and kube_binaries_checksums names another build",
            _TO_OTHER_BUILDS,
        )
    for fault in facts["disk_faults"]:
        message, _, fix = fault.partition("; ")
        yield problem(f"local_ssd_device {message}", fix or "give another disk")
    for found in facts["nvidia_problems"]:
        if not found["of_machine"]:
            yield problem(found["message"], found["fix"])


def doubts(hosts: Mapping[str, Host | None]) -> list[Problem]:
    """What is wrong with one machine that its own burn-in or driver role holds, or what it keeps: no reason to stop the
    others."""
    answered = [(name, host.facts) for name, host in hosts.items() if host is not None]
    held = [
        Problem(found["message"], f"{found['fix']}; the node is held", (name,))
        for name, facts in answered
        for found in facts["nvidia_problems"]
        if found["of_machine"]
    ]
    kept = [
        Problem(f"keeps {build}, and kube_binaries_checksums names another build", _TO_OTHER_BUILDS, (name,))
        for name, facts in answered
        for build in facts["kept_builds"]
    ]
    return list(_together([*held, *kept]))


def free_port(port: str, owner: str) -> str:
    """What to do about a program on a port: only a service can be named for good."""
    if owner.endswith(".service"):
        return f"run: systemctl disable --now {owner}"
    return f"find it with `ss -ltnp sport = :{port}` and stop it"


def host_name_fits(name: str, hostname: str) -> bool:
    """Whether the hostname is the inventory's name, either of them with or without its domain."""
    return hostname == name or hostname.split(".")[0] == name or hostname == name.split(".")[0]


def duplicates(hosts: Mapping[str, Host]) -> Iterable[Problem]:
    """Identities that more than one host has: cloned disks, copied keys."""
    by_machine: dict[str, list[str]] = defaultdict(list)
    by_uuid: dict[str, list[str]] = defaultdict(list)
    by_key: dict[str, list[str]] = defaultdict(list)
    for name, host in hosts.items():
        if host.facts["machine_id"]:
            by_machine[host.facts["machine_id"]].append(name)
        if host.facts["product_uuid"] and host.limits.check_product_uuid:
            by_uuid[host.facts["product_uuid"]].append(name)
        for fingerprint in host.facts["host_keys"].values():
            by_key[fingerprint].append(name)
    for machine, names in _shared(by_machine):
        yield Problem(
            f"have the same machine id {machine}",
            "on all but one: rm /etc/machine-id, run systemd-machine-id-setup, reboot",
            names,
        )
    for uuid, names in _shared(by_uuid):
        yield Problem(
            f"have the same product UUID {uuid}",
            "correct it in the firmware, or set preflight_product_uuid_check: false for virtual machines",
            names,
        )
    for fingerprint, names in _shared(by_key):
        yield Problem(
            f"have the same SSH host key {fingerprint}",
            "on all but one: rm /etc/ssh/ssh_host_*, run ssh-keygen -A, restart ssh, pin the new key",
            names,
        )


def _together(problems: Iterable[Problem]) -> Iterable[Problem]:
    """The same problem of several hosts as one."""
    hosts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for problem in problems:
        hosts[(problem.message, problem.fix)] += problem.hosts
    return [Problem(message, fix, tuple(names)) for (message, fix), names in hosts.items()]


def _shared(owners: Mapping[str, list[str]]) -> Iterable[tuple[str, tuple[str, ...]]]:
    return [(value, tuple(names)) for value, names in owners.items() if len(names) > 1]
