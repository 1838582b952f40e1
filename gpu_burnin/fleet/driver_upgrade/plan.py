"""Who gets the other driver in this run, in which batches, and who is left as it is. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.admission.view import Pod
from gpu_burnin.api.record import Ask, NodeAdmission, State
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.driver_upgrade.book import Entry, Left, Outcome, Run
from gpu_burnin.fleet.repair.permit import upgrading
from gpu_burnin.fleet.roll.batches import batches
from gpu_burnin.system.prose import listed

IMAGE = "image"
# A node in one of these works, or did before a person took it.
_AT_WORK = (State.READY, State.EXPIRING, State.HELD)


class UpgradeRefused(GpuBurninError):
    """Why nothing is done at all, or not to this host now."""


@dataclass(frozen=True)
class HostView:
    """What is known of a host: what the inventory asks for, and what role nvidia_driver says of it in check mode.

    `differs` is the first thing that it would do, "" where the driver is as asked; `cannot`: why the host cannot have
    the driver, or cannot be asked; `lacks`: what no package source has.
    """

    name: str
    source: str
    wanted: str
    loaded: str = ""
    differs: str = ""
    cannot: str = ""
    lacks: str = ""
    record: NodeAdmission | None = None
    pods: tuple[Pod, ...] = ()

    @property
    def work(self) -> tuple[str, ...]:
        """What a drain asks to leave."""
        return tuple(f"{pod.namespace}/{pod.name}" for pod in working(self.pods))


def working(pods: Sequence[Pod]) -> tuple[Pod, ...]:
    """The pods that are at work still; one that is ending is. Daemons leave with the host's kubelet alone."""
    return tuple(pod for pod in pods if not pod.daemon and not pod.ended)


def plan(hosts: Sequence[HostView], entries: Mapping[str, Entry], paused: str, most_nodes: int, run_id: str) -> Run:
    """The run for the hosts that were named. Raises UpgradeRefused where nothing may be done at all."""
    if paused:
        raise UpgradeRefused(f"the fleet is paused ({paused}); run this again after `muster resume`")
    refuse_mix(hosts)
    half_way = [name for name, entry in entries.items() if entry.outcome is Outcome.UNDER_WAY]
    names = {host.name for host in hosts}
    if outside := sorted(set(half_way) - names):
        raise UpgradeRefused(
            f"{listed(outside)}: a run that was lost on the way to driver {entries[outside[0]].wanted} keeps it out of "
            "work; add it to --limit"
        )
    left = {host.name: found for host in hosts if (found := _left(host, entries.get(host.name)))}
    chosen = [host for host in hosts if host.name not in left]
    if not chosen and (lacking := [host for host in hosts if host.lacks]):
        raise UpgradeRefused(f"{listed([host.name for host in lacking])}: {lacking[0].lacks}; nothing was done")
    # Those that are out already come first, then those whose work has not to leave.
    begun = [host for host in chosen if host.name in half_way]
    rest = [host for host in chosen if host.name not in half_way]
    rest.sort(key=lambda host: (not _failed(entries.get(host.name)), bool(host.work)))
    return Run(
        id=run_id,
        wanted=hosts[0].wanted if hosts else "",
        hosts=tuple(host.name for host in (*begun, *rest)),
        batches=batches(len(begun), len(rest), most_nodes),
        left=tuple(left.values()),
    )


def refuse_elsewhere(records: Mapping[str, NodeAdmission], entries: Mapping[str, Entry]) -> None:
    """Raises UpgradeRefused where the ledger shows a run of another controller, whose folder is not this one."""
    found: list[tuple[str, Ask]] = []
    for name, record in sorted(records.items()):
        ask, entry = upgrading(record), entries.get(name)
        if ask and not (entry is not None and any(ask == asked.ask for asked in entry.asks)):
            found.append((name, ask))
    if found:
        ask = min((ask for _, ask in found), key=lambda ask: ask.since)
        raise UpgradeRefused(
            f"{listed([name for name, _ in found])}: {ask.who} upgrades drivers from another controller since "
            f"{ask.since}; wait until that run has ended. If it was lost, run it again there; if it cannot be, see "
            "docs/operations/driver-upgrade.md, 'When the run is killed'"
        )


def refuse_mix(hosts: Sequence[HostView]) -> None:
    """One source and one version: a canary of another kind proves nothing. Raises UpgradeRefused."""
    images = [host.name for host in hosts if host.source == IMAGE]
    if images:
        raise UpgradeRefused(
            f"{listed(images)}: fleet_nvidia_source is image, so the driver comes with the machine image; boot another "
            "image, or set fleet_nvidia_source"
        )
    for what, values in (
        ("fleet_nvidia_source", [host.source for host in hosts]),
        ("fleet_nvidia_driver_version", [host.wanted for host in hosts]),
    ):
        if len(set(values)) > 1:
            told = (f"{value} on {hosts[values.index(value)].name}" for value in dict.fromkeys(values))
            raise UpgradeRefused(
                f"{what} is not the same on all hosts ({', '.join(told)}), and a canary of one says nothing of the "
                "others; name hosts with the same one in --limit"
            )


def _failed(entry: Entry | None) -> bool:
    return entry is not None and entry.open


def _left(host: HostView, entry: Entry | None) -> Left | None:
    """Why a host is not touched; None for one that is."""
    if why := host.cannot or host.lacks:
        out = "; an earlier run keeps it out of work" if entry is not None and entry.open else ""
        return Left(host.name, f"{why}{out}")
    if entry is not None and entry.open:
        return None
    if not host.differs:
        return Left(host.name, f"driver {host.wanted} is loaded", as_asked=True)
    if host.record is None:
        return Left(host.name, f"the cluster does not know it: `site.yml -l {host.name}` gives it its driver")
    status = host.record.status
    asked = status.code == "QUARANTINED_BY_PERSON" or status.state is State.REPAIRING
    if status.state in _AT_WORK or asked or (status.state is State.TESTING and status.accepted is not None):
        return None
    return Left(
        host.name,
        f"it is {status.state} and does no work ({status.code}: {status.message.removeprefix(f'{host.name}: ')}); mend "
        "that first, or where its kubelet does not run, `site.yml` gives it the driver",
    )
