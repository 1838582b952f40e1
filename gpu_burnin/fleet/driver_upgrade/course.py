"""One host on its way to another driver, in the moments at which the controller decides.

The host's entry is written before each step, and the asks are in it before they are in the cluster: a run that is lost
leaves what the next one goes on from, and what it may take back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.decide.words import active
from gpu_burnin.admission.view import Pod
from gpu_burnin.api.names import KIND
from gpu_burnin.api.record import Ask, NodeAdmission, State
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.driver_upgrade import book
from gpu_burnin.fleet.driver_upgrade.book import Asked, Entry, Outcome, Run, Step
from gpu_burnin.fleet.driver_upgrade.plan import UpgradeRefused, working
from gpu_burnin.fleet.repair.cluster import Cluster
from gpu_burnin.fleet.repair.permit import DRIVER_UPGRADE, UPGRADE_FAILED, RepairRefused, maintenance, refuse_processes
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.prose import listed
from gpu_burnin.types import Verdict

_QUARANTINE, _REPAIR = "quarantine", "repair"
# An ask's longest reason.
_MOST_WHY = 256
# How long the admitter may take to see an ask.
_TAKE_OVER_S = 60.0
_POLL_S = 2.0


class UpgradeFailed(GpuBurninError):
    """Why a host that was taken out of work stays out."""


@dataclass(frozen=True)
class Found:
    """What the roles left on the host: the driver that is loaded, and why they hold the host, "" each where not."""

    loaded: str
    driver: str = ""
    fabric: str = ""
    dcgm: str = ""
    containers: str = ""


@dataclass(frozen=True)
class Upgrade:
    """One host of the newest run in `directory`. `maintenance` is as in repair.climb."""

    node: str
    directory: Path
    cluster: Cluster
    now: Callable[[], datetime]
    now_s: Callable[[], float]
    sleep: Callable[[float], None]
    drain_timeout_s: float
    admission_timeout_s: float
    maintenance: str = ""

    def begin(self, loaded: str) -> Entry:
        """Take the host out of work. On return its pods have left, or it was given back, as its outcome says.

        Raises UpgradeFailed where a host that an earlier run has changed cannot be gone on with.
        """
        run = book.read_run(self.directory)
        entry = self._entry(run, loaded)
        book.write_entry(self.directory, entry)
        try:
            self._permit(entry)
        except GpuBurninError as error:
            return self._refused(entry, str(error))
        try:
            entry = self._ask(entry, _QUARANTINE)
            self.cluster.await_out(self.node, _TAKE_OVER_S, repairing=False)
            self._await_empty()
        except (UpgradeRefused, RepairRefused) as error:
            return self._refused(self._kept(), str(error))
        return entry

    def change(self, look: Mapping[str, Any] | None) -> Entry:
        """Before the driver is touched: nothing works on the host now, or it is given back. Raises UpgradeFailed.

        Only now it is asked for as one in repair: after that the admitter wants a test, and a host that is given back
        before needs none, since a quarantine leaves what it was.
        """
        entry = self._kept()
        try:
            if look is None:
                raise UpgradeRefused(
                    f"{self.node}: `gpu-burnin repair look` does not answer on it; look at its console"
                )
            refuse_processes(self.node, look)
            self._refuse_work()
            entry = self._ask(entry, _REPAIR)
            self.cluster.await_out(self.node, _TAKE_OVER_S, repairing=True)
            # Who has taken the quarantine away meanwhile let work in.
            self._refuse_work()
        except GpuBurninError as error:
            return self._refused(self._kept(), str(error))
        return self._step(entry, Step.DRIVER)

    def test(self, found: Found) -> Entry:
        """Before the burn-in: the driver that was asked for is loaded and works. Raises UpgradeFailed."""
        entry = self._kept()
        for what in (found.driver, found.fabric, found.dcgm, found.containers):
            if what:
                raise UpgradeFailed(f"{self.node}: {what}")
        if found.loaded != entry.wanted:
            raise UpgradeFailed(
                f"{self.node}: driver {found.loaded or 'of no version'} is loaded and {entry.wanted} was asked for; "
                "look at nvidia_driver_found in the play's output"
            )
        return self._step(entry, Step.TEST)

    def admit(self, verdict: str, why: str) -> Entry:
        """Give the host back, and wait until the admitter has let it in. Raises UpgradeFailed.

        `verdict` and `why` are the burn-in's. One that a person keeps out stays out, and is done too.
        """
        entry = self._kept()
        if verdict != Verdict.PASS:
            raise UpgradeFailed(f"{self.node}: burn-in {verdict or 'without a result'}: {why}")
        entry = self._step(entry, Step.ADMIT)
        self._release(entry)
        kept = self._await_admitted()
        return self._end(entry, Outcome.DONE, kept)

    def fail(self, why: str) -> Entry:
        """Keep the host out of work, with the reason where people look for it."""
        entry = self._kept()
        # Modules of the controller put its own name in front.
        why = re.sub(rf"^(\S+: )?{re.escape(self.node)}: ", "", " ".join(why.split()))
        said = f"{DRIVER_UPGRADE}{entry.wanted}{UPGRADE_FAILED}{why}"[:_MOST_WHY]
        ask = Ask(self.cluster.me, said, rfc3339(self.now()))
        # On the disk first: no admitter and no API server are needed for a run to stop.
        entry = replace(entry, asks=(*entry.asks, Asked(_QUARANTINE, ask))).end(Outcome.FAILED, why, ask.since)
        book.write_entry(self.directory, entry)

        def kept(record: NodeAdmission) -> Mapping[str, Ask | None] | None:
            asks: dict[str, Ask | None] = {}
            standing = active(record.spec.quarantine, self.now())
            if standing is None or entry.ours(_QUARANTINE, standing):
                asks[_QUARANTINE] = ask
            if entry.ours(_REPAIR, record.spec.repair):
                asks[_REPAIR] = None
            return asks or None

        try:
            self.cluster.change(self.node, kept)
        except GpuBurninError as error:
            entry = replace(entry, why=f"{why}; that could not be written into its {KIND} ({error})")
            book.write_entry(self.directory, entry)
        return entry

    def _kept(self) -> Entry:
        return book.read_entry(self.directory, self.node)

    def _entry(self, run: Run, loaded: str) -> Entry:
        old = book.entries(self.directory).get(self.node)
        if old is None or not old.open:
            return Entry(self.node, run.id, loaded, run.wanted, rfc3339(self.now()))
        return replace(old, run=run.id, wanted=run.wanted, outcome=Outcome.UNDER_WAY, why="", ended_at="")

    def _permit(self, entry: Entry) -> None:
        scene = self.cluster.scene(self.node)
        if scene.record is None:
            raise UpgradeRefused(f"{self.node}: the cluster has no {KIND} of this name; run site.yml")
        _refuse_repair(scene.record, entry)
        if scene.paused:
            raise UpgradeRefused(
                f"{self.node}: the fleet is paused ({scene.paused}); run this again after `muster resume`"
            )
        near = self.maintenance or maintenance(scene, self.now())
        if near and not _touched(entry):
            raise UpgradeRefused(f"{self.node}: {near}; run this again when it is over")

    def _ask(self, entry: Entry, kind: str) -> Entry:
        """Ask for the host, where nobody does. A person's quarantine does what ours would, and stays theirs.

        Raises UpgradeRefused where somebody else has it in repair.
        """
        ask = Ask(self.cluster.me, f"{DRIVER_UPGRADE}{entry.wanted}", rfc3339(self.now()))
        entry = replace(entry, asks=(*entry.asks, Asked(kind, ask)))
        book.write_entry(self.directory, entry)

        def missing(record: NodeAdmission) -> Mapping[str, Ask | None] | None:
            _refuse_repair(record, entry)
            return None if active(getattr(record.spec, kind), self.now()) is not None else {kind: ask}

        self.cluster.change(self.node, missing)
        return entry

    def _refuse_work(self) -> None:
        if left := working(self.cluster.pods(self.node)):
            raise UpgradeRefused(f"{self.node}: work has come: {_names(left)}; run this again")

    def _await_empty(self) -> None:
        deadline_s = self.now_s() + self.drain_timeout_s
        while left := working(self.cluster.pods(self.node)):
            if self.now_s() >= deadline_s:
                raise UpgradeRefused(
                    f"{self.node}: after {self.drain_timeout_s:.0f} s work is still on it: {_names(left)}; run this "
                    "again when it has ended, or raise driver_upgrade_drain_timeout_s"
                )
            self.sleep(_POLL_S)

    def _await_admitted(self) -> str:
        """Wait for the admitter; why a person keeps the node out, "" where it may take work. Raises UpgradeFailed."""
        deadline_s = self.now_s() + self.admission_timeout_s
        while True:
            record, stands = self.cluster.standing(self.node)
            for verb in ("hold", _QUARANTINE):
                asked: Ask | None = active(getattr(record.spec, verb), self.now())
                if asked is not None:
                    return f"it stays out of work: {verb} by {asked.who} ({asked.why})"
            if stands.state == "ready":
                return ""
            said = f"{stands.message.removeprefix(f'{self.node}: ')} ({stands.code})"
            if record.status.state is State.QUARANTINED and record.status.code != "QUARANTINED_BY_PERSON":
                raise UpgradeFailed(f"{self.node}: the admitter does not let it in: {said}")
            if self.now_s() >= deadline_s:
                raise UpgradeFailed(
                    f"{self.node}: not let in within {self.admission_timeout_s:.0f} s: {said}"
                    f"{f'; next: {stands.next}' if stands.next else ''}; look at `muster why {self.node}`"
                )
            self.sleep(_POLL_S)

    def _release(self, entry: Entry) -> None:
        """Take the own asks away, and nobody else's."""

        def without(record: NodeAdmission) -> Mapping[str, Ask | None] | None:
            kinds = (_REPAIR, _QUARANTINE)
            return {kind: None for kind in kinds if entry.ours(kind, getattr(record.spec, kind))} or None

        self.cluster.change(self.node, without)

    def _refused(self, entry: Entry, why: str) -> Entry:
        """Give back a host that nothing was done to. Raises UpgradeFailed for one that an earlier run has changed."""
        if _touched(entry):
            raise UpgradeFailed(why)
        if entry.asks:
            self._release(entry)
        return self._end(entry, Outcome.GIVEN_BACK, why.removeprefix(f"{self.node}: "))

    def _step(self, entry: Entry, step: Step) -> Entry:
        entry = replace(entry, step=step)
        book.write_entry(self.directory, entry)
        return entry

    def _end(self, entry: Entry, outcome: Outcome, why: str) -> Entry:
        entry = replace(entry, asks=()).end(outcome, why, rfc3339(self.now()))
        book.write_entry(self.directory, entry)
        return entry


def _touched(entry: Entry) -> bool:
    return entry.step is not Step.DRAIN


def _refuse_repair(record: NodeAdmission, entry: Entry) -> None:
    asked = record.spec.repair
    if asked is not None and not entry.ours(_REPAIR, asked):
        raise UpgradeRefused(
            f"{record.name}: {asked.who} has it in repair since {asked.since} ({asked.why}); run this again after it"
        )


def _names(pods: Sequence[Pod]) -> str:
    return listed(
        [f"{pod.namespace}/{pod.name}{f' (holds until {pod.hold_until})' if pod.hold_until else ''}" for pod in pods]
    )
