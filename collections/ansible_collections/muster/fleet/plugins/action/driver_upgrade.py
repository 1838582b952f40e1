"""The decisions of a driver upgrade. Thin: they are made in gpu_burnin.fleet.driver_upgrade."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.modules.driver_upgrade import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.roll import RollAction, RollFailed, now

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.driver_upgrade import book, text
from gpu_burnin.fleet.driver_upgrade.book import Entry, Outcome
from gpu_burnin.fleet.driver_upgrade.course import Found, Upgrade
from gpu_burnin.fleet.driver_upgrade.plan import HostView, plan, refuse_elsewhere
from gpu_burnin.fleet.roll import lock
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import Misfit, from_json


class ActionModule(RollAction):
    """One phase for one host, or for the run."""

    ARGUMENTS = ARGUMENT_SPEC

    def phase(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the phase does; its result. Raises GpuBurninError."""
        directory = Path(given["directory"]).expanduser()
        if name == "plan":
            return self._plan(directory, given)
        if name == "next":
            return self._next(directory, given)
        if name == "summary":
            return self._summary(directory, given)
        if self._task.check_mode:
            return {"changed": True}
        entry = self._step(name, self._upgrade(directory, given), given)
        return {"changed": True, "given_back": entry.why if entry.outcome is Outcome.GIVEN_BACK else ""}

    def _plan(self, directory: Path, given: Mapping[str, Any]) -> dict[str, Any]:
        check_mode, cluster = bool(self._task.check_mode), self.cluster(given)
        at, me = rfc3339(now()), lock.owner()
        before = lock.other_holder(directory, me) if check_mode else lock.take(directory, lock.Lock(cluster.me, at, me))
        planned = False
        try:
            records, entries = cluster.records(), book.entries(directory)
            if not check_mode:
                refuse_elsewhere(records, entries)
            views = [
                HostView(**host, record=records.get(host["name"]), pods=cluster.pods(host["name"]))
                for host in given["hosts"]
            ]
            run = plan(views, entries, cluster.paused(), given["max_nodes"], at)
            planned = bool(run.hosts)
            if not check_mode:
                book.write_run(directory, run)
        finally:
            # The summary gives it back; there is none where there is nothing to do.
            if not planned and not check_mode:
                lock.release(directory, me)
        lines = [*([before] if before else []), *text.planned(run, views)]
        self.show(lines)
        batches = list(run.batches)
        # The next play goes by the batches of the controller's facts.
        facts = {"driver_upgrade_batches": batches}
        return {
            "changed": planned, "hosts": list(run.hosts), "batches": batches, "text": lines, "ansible_facts": facts,
        }  # fmt: skip

    def _next(self, directory: Path, given: Mapping[str, Any]) -> dict[str, Any]:
        stop = lock.lost(directory, lock.owner()) or text.stop(
            book.read_run(directory), book.entries(directory), given["max_failures"]
        )
        if stop:
            self.show([f"This run stops before its next batch: {stop}."])
        return {"changed": False, "stop": stop}

    def _summary(self, directory: Path, given: Mapping[str, Any]) -> dict[str, Any]:
        me = lock.owner()
        if lost := lock.lost(directory, me):
            raise GpuBurninError(f"this run ended before its next batch: {lost}")
        run, entries = book.read_run(directory), book.entries(directory)
        lock.release(directory, me)
        lines, failed = text.summary(run, entries, given["command"]), text.failed(run, entries)
        self.show(lines)
        if failed:
            names = ", ".join(entry.node for entry in failed)
            raise RollFailed(f"{names}: the driver was not changed; see the lines above", text=lines)
        return {"changed": False, "text": lines}

    def _upgrade(self, directory: Path, given: Mapping[str, Any]) -> Upgrade:
        return Upgrade(
            node=given["node"],
            directory=directory,
            cluster=self.cluster(given),
            now=now,
            now_s=time.monotonic,
            sleep=time.sleep,
            drain_timeout_s=given["drain_timeout_s"],
            admission_timeout_s=given["admission_timeout_s"],
            maintenance=given["maintenance"],
        )

    def _look(self, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """None also where gpu-burnin fails on the host: it is given back then, since nobody knows what works there."""
        try:
            return self.look(given)
        except GpuBurninError:
            return None

    def _step(self, name: str, upgrade: Upgrade, given: Mapping[str, Any]) -> Entry:
        if name == "begin":
            entry = upgrade.begin(given["loaded"])
            return entry if entry.outcome is Outcome.GIVEN_BACK else upgrade.change(self._look(given))
        if name == "test":
            try:
                found = from_json(Found, {"loaded": given["loaded"], **given["held"]})
            except Misfit as error:
                raise GpuBurninError(f"held: {error}") from error
            return upgrade.test(found)
        if name == "admit":
            return upgrade.admit(given["verdict"], given["why"])
        return upgrade.fail(given["why"])
