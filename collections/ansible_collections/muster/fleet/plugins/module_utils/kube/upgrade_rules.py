"""What an upgrade of etcd and Kubernetes may do, and on which hosts it has something to do. Pure; for the controller.

Kubernetes: https://kubernetes.io/releases/version-skew-policy/. etcd:
https://etcd.io/docs/v3.7/upgrades/upgrade_3_7/ and https://etcd.io/docs/v3.7/downgrades/downgrade_3_7/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import Version
from ansible_collections.muster.fleet.plugins.module_utils.kube import native_gangs
from ansible_collections.muster.fleet.plugins.module_utils.kube.upgrade_fleet import (
    CLUSTERS,
    CONTROLLERS,
    NODE_PROGRAMS,
    NODES,
    PROGRAMS,
    SERVER,
    Fleet,
)
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem

PARTS: Mapping[str, tuple[str, ...]] = {
    "etcd": CLUSTERS,
    "control_plane": ("servers", "controllers"),
    "nodes": ("nodes",),
    "all": (*CLUSTERS, "servers", "controllers", "nodes"),
}
NODE_MINORS_BEHIND = 3
# ManifestBasedAdmissionControlConfig, by which the gate is on the servers' disks.
GATE_SINCE = Version(1, 36, 0)
# Down to 3.6 the playbook has been tried; 3.6 to 3.5 changes flags.
ETCD_DOWN_TO = Version(3, 6, 0)
# MinExternalEtcdVersion of Kubernetes 1.36, cmd/kubeadm/app/constants/constants.go.
SERVER_NEEDS_ETCD = Version(3, 5, 24)


@dataclass(frozen=True)
class Plan:
    """The hosts of each phase in their order. `left`: nodes that stay as they are, with the reason.

    Admission is closed before the servers change, and opened when they are done.
    """

    phases: Mapping[str, tuple[str, ...]]
    close_admission: bool = False
    open_admission: bool = False
    left: Mapping[str, str] = field(default_factory=dict)


def problems(fleet: Fleet, part: str, gang: str = native_gangs.OFF, left: str = "") -> list[Problem]:
    """Everything that speaks against this part of it, all at once. `gang`: `fleet_gang`; `left`: its objects."""
    found = [*_silent(fleet), *_nameless(fleet), *_crowded(fleet)]
    for cluster in CLUSTERS:
        found += [*_sick(fleet, cluster, "etcd"), *_etcd(fleet, cluster)]
    phases = PARTS[part]
    servers = fleet.coming(SERVER, "kube_apiserver", changes="servers" in phases)
    etcd = fleet.coming("etcd", "etcd", changes="etcd" in phases)
    found += [*_sick(fleet, "kube_apiserver", SERVER), *_servers(fleet), *_servers_need(fleet, etcd)]
    if "servers" in phases and (wanted := fleet.wanted(SERVER)):
        found += native_gangs.upgrade_problems(wanted, _names(fleet, "kube_apiserver"), gang, left)
    return [*found, *_controllers(fleet, servers), *_nodes(fleet, servers)]


def behind_servers(fleet: Fleet) -> list[Problem]:
    """Why shards of nodes may not begin: the playbook alone brings etcd and the control plane to their builds."""
    return [
        Problem(
            f"its {name} is not the pinned build",
            "upgrade the control plane before: ansible-playbook playbooks/upgrade.yml with -e part=etcd, and then "
            "-e part=control_plane",
            (host.name,),
        )
        for group in (*CLUSTERS, "kube_apiserver")
        for host in fleet.hosts(group)
        for name, program in host.of(PROGRAMS[group])
        if not program.current
    ]


def changes_minor(fleet: Fleet) -> bool:
    """Whether an API server that answers is of another minor than the one that is pinned."""
    wanted = fleet.wanted(SERVER)
    return wanted is not None and any(one.release != wanted.release for one in fleet.running(SERVER, "kube_apiserver"))


def plan(fleet: Fleet, part: str) -> Plan:
    """What is left to do, from what runs. A host that is sick comes first: it is the one that an earlier run left.

    A leader comes last: so the leadership moves once.
    """

    def behind(groups: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
        hosts = [host for host in fleet.hosts(*groups) if host.behind(names)]
        return tuple(host.name for host in sorted(hosts, key=lambda host: (not host.sick, host.leads)))

    left = dict(_left(fleet))
    phases = {
        **{cluster: behind([cluster], ["etcd"]) for cluster in CLUSTERS},
        "servers": behind(["kube_apiserver"], [SERVER]),
        "controllers": behind(["kube_apiserver"], CONTROLLERS),
        "nodes": tuple(name for name in behind(NODES, NODE_PROGRAMS) if name not in left),
    }
    chosen = {phase: names if phase in PARTS[part] else () for phase, names in phases.items()}
    close, opened = _admission(fleet, bool(chosen["servers"]))
    return Plan(chosen, close, opened, left if "nodes" in PARTS[part] else {})


def _admission(fleet: Fleet, servers_change: bool) -> tuple[bool, bool]:
    """Whether admission is to be closed, and to be opened. A server that is sick may serve somebody: it counts."""
    servers = fleet.hosts("kube_apiserver")
    running = [program.running for host in servers for _, program in host.of([SERVER]) if program.running]
    without_gate = any(version < GATE_SINCE for version in running)
    close = without_gate and servers_change
    return close, close or (not without_gate and any(host.closed for host in servers))


def lines(fleet: Fleet, planned: Plan) -> list[str]:
    """For people: one line for each program that changes, in their order, and for each node that is left; and what is
    left of an earlier run.
    """
    names = {"servers": (SERVER,), "controllers": CONTROLLERS, "nodes": NODE_PROGRAMS}
    hosts = {host.name: host for host in fleet.hosts(*PROGRAMS)}
    told = [
        f"{host}: {name} {program.running or 'that does not run'} -> {program.wanted}"
        for phase, members in planned.phases.items()
        for host in members
        for name, program in hosts[host].of(names.get(phase, ("etcd",)))
        if not program.current
    ]
    if planned.open_admission and not planned.close_admission:
        told.append("Admission, which an earlier run has closed, is opened.")
    return [*told, *(f"{name}: left as it is, {why}" for name, why in planned.left.items())]


def state(fleet: Fleet) -> list[str]:
    """For people: what each host runs."""
    told = []
    for group, members in fleet.groups.items():
        for name, host in members.items():
            if host is None:
                told.append(f"{name}: did not answer")
                continue
            runs = [
                f"{program} {one.running or 'does not run'}{'' if one.current else f' (wanted: {one.wanted})'}"
                for program, one in host.of(PROGRAMS[group])
            ]
            told.append(f"{name}: {', '.join(runs)}{f'; {host.sick}' if host.sick else ''}")
    return told


def _silent(fleet: Fleet) -> Iterator[Problem]:
    for group in (*CLUSTERS, "kube_apiserver"):
        for name, host in fleet.groups.get(group, {}).items():
            if host is None:
                yield Problem("did not say what it runs", "see its own error above, and repair it first", (name,))


def _nameless(fleet: Fleet) -> Iterator[Problem]:
    for host in fleet.hosts(*PROGRAMS):
        for name, program in host.programs.items():
            if program.wanted is None:
                yield Problem(
                    f"the {name} of kube_binaries_checksums does not say its version",
                    "correct the mirror and the checksum",
                    (host.name,),
                )


def _crowded(fleet: Fleet) -> Iterator[Problem]:
    for host in {host.name: host for host in fleet.hosts(*PROGRAMS)}.values():
        if host.room:
            yield Problem(host.room, "make room there", (host.name,))


def _sick(fleet: Fleet, group: str, program: str) -> Iterator[Problem]:
    """One that an earlier run broke may be mended by this one, while the others hold, or where there are no others."""
    hosts = fleet.hosts(group)
    sick = [host for host in hosts if host.sick]
    enough = len(hosts) - len(sick) > len(hosts) // 2 if group in CLUSTERS else len(hosts) > len(sick)
    if len(sick) == 1 and (enough or len(hosts) == 1) and sick[0].behind([program]):
        return
    for host in sick:
        yield Problem(f"its {program} is not healthy: {host.sick}", "repair it first", (host.name,))


def _etcd(fleet: Fleet, cluster: str) -> Iterator[Problem]:
    running, wanted = fleet.running("etcd", cluster), fleet.wanted("etcd")
    if not running or wanted is None:
        return
    hosts = tuple(host.name for host in fleet.hosts(cluster))
    oldest, newest = running[0], running[-1]
    if wanted.minors_after(oldest) > 1:
        after = f"{oldest.major}.{oldest.minor + 1}"
        yield Problem(f"etcd {oldest} cannot go to {wanted} in one step", f"pin a {after} first", hosts)
    elif wanted.minors_after(newest) < -1 or (
        wanted.release != newest.release and wanted < newest and wanted < ETCD_DOWN_TO
    ):
        yield Problem(
            f"etcd {newest} cannot go down to {wanted}: one minor at a time, and to {ETCD_DOWN_TO.release} at most",
            f"pin {newest.major}.{max(newest.minor - 1, ETCD_DOWN_TO.minor)}, or restore a snapshot",
            hosts,
        )


def _servers(fleet: Fleet) -> Iterator[Problem]:
    running, wanted = fleet.running(SERVER, "kube_apiserver", stored=True), fleet.wanted(SERVER)
    if not running or wanted is None:
        return
    hosts = _names(fleet, "kube_apiserver")
    oldest, newest = running[0], running[-1]
    if wanted.minors_after(oldest) > 1:
        after = f"{oldest.major}.{oldest.minor + 1}"
        yield Problem(f"{SERVER} {oldest} cannot go to {wanted} in one step", f"pin a {after} first", hosts)
    if wanted.minors_after(newest) < 0:
        yield Problem(
            f"{SERVER} {newest} cannot go back to {wanted}: what it has stored an older minor may not read",
            f"pin a {newest.release}, or restore a snapshot from before the upgrade",
            hosts,
        )
    if wanted < GATE_SINCE:
        yield Problem(
            f"{SERVER} {wanted} cannot have the gate's policies on its disk",
            f"pin {GATE_SINCE.release} or newer",
            hosts,
        )


def _servers_need(fleet: Fleet, etcd: Version | None) -> Iterator[Problem]:
    wanted = fleet.wanted(SERVER)
    if wanted and etcd and etcd < SERVER_NEEDS_ETCD:
        yield Problem(
            f"{SERVER} {wanted} needs etcd {SERVER_NEEDS_ETCD} or newer, and would have {etcd}",
            "pin a newer one, and run part=etcd or part=all",
            _names(fleet, "kube_apiserver"),
        )


def _controllers(fleet: Fleet, server: Version | None) -> Iterator[Problem]:
    """`server`: the oldest beside which they will run."""
    hosts = _names(fleet, "kube_apiserver")
    for name in CONTROLLERS:
        wanted, running = fleet.wanted(name), fleet.running(name, "kube_apiserver")
        # Servers change first: what an earlier run left of the minor before may be too old by then.
        if server and running and server.minors_after(running[0]) > 1:
            yield Problem(
                f"{name} {running[0]} would be over a minor older than {SERVER} {server}",
                f"bring it to {running[0].major}.{running[0].minor + 1} first: pin that release for all, and upgrade",
                hosts,
            )
        if server and wanted and not -1 <= wanted.minors_after(server) <= 0:
            yield Problem(
                f"{name} {wanted} does not fit {SERVER} {server}: it may be one minor older and not newer",
                f"pin the one of {server}",
                hosts,
            )


def _nodes(fleet: Fleet, server: Version | None) -> Iterator[Problem]:
    """`server`: the oldest beside which they will run."""
    if server is None:
        return
    for host in fleet.hosts(*NODES):
        for name, program in host.of(NODE_PROGRAMS):
            if program.wanted and not -NODE_MINORS_BEHIND <= program.wanted.minors_after(server) <= 0:
                yield Problem(
                    f"{name} {program.wanted} does not fit {SERVER} {server}: it may be {NODE_MINORS_BEHIND} minors "
                    "older and not newer",
                    f"pin the one of {server}, or upgrade the servers first (part=control_plane)",
                    (host.name,),
                )
            if program.running is None:
                continue
            if program.running.minors_after(server) > 0:
                yield Problem(
                    f"runs {name} {program.running}, which is newer than {SERVER} {server}",
                    f"pin {program.running.release} or newer for the servers",
                    (host.name,),
                )
            elif program.running.minors_after(server) < -NODE_MINORS_BEHIND:
                yield Problem(
                    f"runs {name} {program.running}, over {NODE_MINORS_BEHIND} minors older than {SERVER} {server}",
                    "bring the nodes to the servers' present version first",
                    (host.name,),
                )
            elif program.wanted and program.wanted.minors_after(program.running) < 0:
                yield Problem(
                    f"{name} {program.running} cannot go back to {program.wanted}",
                    f"pin a {program.running.release}",
                    (host.name,),
                )


def _left(fleet: Fleet) -> Iterator[tuple[str, str]]:
    """Nodes that did not answer, and those with work whose kubelet changes its minor, for which they are drained."""
    for group in NODES:
        for name, host in fleet.groups.get(group, {}).items():
            if host is None:
                yield name, "it did not answer; run this again with -e part=nodes"
                continue
            kubelet = host.programs.get("kubelet")
            if kubelet is None or kubelet.current or kubelet.running is None or kubelet.wanted is None:
                continue
            if host.work and kubelet.wanted.release != kubelet.running.release:
                yield name, f"another minor of kubelet needs a node without work: {', '.join(host.work[:3])}"


def _names(fleet: Fleet, group: str) -> tuple[str, ...]:
    return tuple(host.name for host in fleet.hosts(group))
