"""What etcd and Kubernetes run on the hosts of a fleet, and what the inventory pins. Pure; for the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import Version, parse

SERVER = "kube-apiserver"
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
NODE_PROGRAMS = ("kubelet", "kube-proxy")
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "etcd": ("etcd",),
    "etcd_events": ("etcd",),
    "kube_apiserver": (SERVER, *CONTROLLERS),
    "system_nodes": NODE_PROGRAMS,
    "gpu_nodes": NODE_PROGRAMS,
}
CLUSTERS = ("etcd", "etcd_events")
NODES = ("system_nodes", "gpu_nodes")
# The work of a node, by its name.
Work = Callable[[str], tuple[str, ...]]


@dataclass(frozen=True)
class Program:
    """One program of a host: what runs, what the inventory pins, and whether process and file are that build."""

    running: Version | None
    wanted: Version | None
    current: bool


@dataclass(frozen=True)
class Host:
    """What a host says. `sick`: why its member or API server does not answer; `served`: whether its API server has
    answered since its program was installed; `leads`: whether its member leads its cluster; `work`: pods that a drain
    would move; `closed`: whether its admitter is out of service since an upgrade that did not come to its end; `room`:
    what is too small for the programs that lie ready."""

    name: str
    programs: Mapping[str, Program]
    sick: str = ""
    served: bool = True
    leads: bool = False
    work: tuple[str, ...] = ()
    closed: bool = False
    room: str = ""

    def of(self, names: Sequence[str]) -> list[tuple[str, Program]]:
        """Those of the named programs that it has."""
        return [(name, self.programs[name]) for name in names if name in self.programs]

    def behind(self, names: Sequence[str]) -> bool:
        """Whether one of the named programs is not the pinned build."""
        return any(not program.current for _, program in self.of(names))


@dataclass(frozen=True)
class Fleet:
    """The hosts of each group in their order, None for one that gave no facts."""

    groups: Mapping[str, Mapping[str, Host | None]]

    def hosts(self, *groups: str) -> list[Host]:
        """Those that gave facts."""
        return [host for group in groups for host in self.groups.get(group, {}).values() if host is not None]

    def running(self, name: str, *groups: str, stored: bool = False) -> list[Version]:
        """Oldest first; of hosts that answer, since a program that dies again and again runs too. `stored`: also of
        API servers that do not answer any more, and have when they could store something."""
        found = [
            host.programs[name].running
            for host in self.hosts(*groups)
            if name in host.programs and (not host.sick or (stored and host.served))
        ]
        return sorted(version for version in found if version is not None)

    def coming(self, name: str, *groups: str, changes: bool) -> Version | None:
        """The oldest that will run beside what this run changes: what is pinned where `changes`, else what runs."""
        running = self.running(name, *groups)
        return self.wanted(name) if changes or not running else running[0]

    def wanted(self, name: str) -> Version | None:
        """What the inventory pins: one build for the whole fleet."""
        for host in self.hosts(*PROGRAMS):
            if name in host.programs and (version := host.programs[name].wanted):
                return version
        return None


def host_of(name: str, found: Mapping[str, Any]) -> Host:
    """One host by what muster.fleet.upgrade_facts has returned on it."""
    programs = {
        one: Program(parse(facts["running"]), parse(facts["wanted"]), facts["current"])
        for one, facts in found["programs"].items()
    }
    return Host(name, programs, **{key: found[key] for key in ("sick", "served", "leads", "closed", "room")})


def fleet_of(groups: Mapping[str, Sequence[str]], facts: Mapping[str, Mapping[str, Any]], work: Work) -> Fleet:
    """The fleet by its hosts' facts. `work` is asked for a node's work where its kubelet changes its minor."""

    def host(group: str, name: str) -> Host | None:
        if name not in facts:
            return None
        found = host_of(name, facts[name])
        kubelet = found.programs.get("kubelet") if group in NODES else None
        minor = kubelet and kubelet.running and kubelet.wanted and kubelet.running.release != kubelet.wanted.release
        return replace(found, work=work(name)) if minor else found

    return Fleet({group: {name: host(group, name) for name in groups.get(group, ())} for group in PROGRAMS})
