"""The decisions of the repair ladder. Thin: they are made in gpu_burnin.fleet.repair."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.modules.repair import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.roll import RollAction, RollFailed, now

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair.climb import Repair
from gpu_burnin.fleet.repair.ladder import Next, Rung, found_of
from gpu_burnin.fleet.repair.permit import Limits
from gpu_burnin.fleet.repair.technician import render
from gpu_burnin.fleet.roll import lock
from gpu_burnin.power.redfish import Access, Machine
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json


class ActionModule(RollAction):
    """One phase for one node."""

    ARGUMENTS = ARGUMENT_SPEC

    def phase(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the phase does; its result. Raises GpuBurninError."""
        directory, node = Path(given["directory"]).expanduser(), given["node"]
        locks, me = directory / "locks" / node, lock.owner()
        if name == "stop":
            held = lock.read(locks)
            # Of a node that another run has, or that was refused, nothing is given back.
            if held is not None and held.owner == me:
                self._stop(self._repair(directory, given), locks, given)
            raise RollFailed(given["why"])
        if name != "begin" and (lost := lock.lost(locks, me)):
            raise RollFailed(f"{node}: this run ends here: {lost}")
        repair, look = self._repair(directory, given), self.look(given)
        if name == "begin":
            return self._begin(repair, look, locks, given)
        if self._task.check_mode:
            return {"changed": True}
        if name == "rung":
            chosen, gpus = repair.rung(look)
            if chosen.rung not in (None, Rung.HOLD):
                self.show([f"{node}: {chosen.rung} ({chosen.why})"])
            return {"changed": chosen.rung is not None, "gpus": list(gpus), **_chosen(chosen, look, repair)}
        if name == "record":
            step = repair.record(look, given["failed"])
            self.show([f"{node}: {step.rung}: {step.message or step.verdict or 'done'}"])
            return {"changed": True, "step": to_json(step)}
        result = self._end(repair, look, given)
        lock.release(locks, me)
        return result

    def _repair(self, directory: Path, given: Mapping[str, Any]) -> Repair:
        return Repair(
            node=given["node"],
            directory=directory,
            cluster=self.cluster(given),
            can={*Rung} if given["has_bmc"] else {*Rung} - {Rung.POWER_CYCLE},
            report=Path(given["report"]).expanduser(),
            limits=Limits(given["max_nodes"], given["despite_maintenance"], given["unreached"]),
            maintenance=given["maintenance"],
            now=now,
        )

    def _stop(self, repair: Repair, locks: Path, given: Mapping[str, Any]) -> None:
        try:
            repair.stop(untouched=given["untouched"])
        except GpuBurninError as error:
            raise RollFailed(
                f"{given['why']}; and the node could not be given back ({error}): run this again, which goes on from "
                "there"
            ) from error
        finally:
            lock.release(locks, lock.owner())

    def _begin(
        self, repair: Repair, look: Mapping[str, Any] | None, locks: Path, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        # What can be refused is refused before the node is asked for.
        first = repair.begin(look, apply=False)
        if first.rung is Rung.POWER_CYCLE:
            _refuse_other_machine(given, repair.dmi(look))
        held = first.rung is Rung.HOLD and repair.held(found_of(look))
        me = lock.owner()
        if self._task.check_mode:
            if running := lock.running(locks, me):
                raise RollFailed(running)
            self.show([f"{repair.node}: the first rung would be {first.rung or 'none'} ({first.why})"])
        else:
            # Also where nothing is left: what gives the node back must not meet a run that goes on.
            before = lock.take(locks, lock.Lock(repair.cluster.me, rfc3339(now()), me, f"repairs {repair.node}"))
            self.show([before] if before else [])
            try:
                first = repair.begin(look)
            except GpuBurninError:
                lock.release(locks, me)
                raise
        return {"changed": first.rung is not None and not held, **_chosen(first, look, repair)}

    def _end(self, repair: Repair, look: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
        node, why = repair.node, given["why"]
        if not given["hold"]:
            self.show(
                [f"{node}: nothing is left to repair ({why}); the admitter takes it from here: `muster why {node}`"]
            )
            return {"changed": repair.give_back()}
        held = repair.held(found_of(look))
        order = repair.hold(look, why)
        path = str(repair.order_path(".txt"))
        self.show([f"{node}: held for a technician ({why}); the order is {path}"])
        return {"changed": not held, "order": to_json(order), "text": render(order), "path": path}


def _refuse_other_machine(given: Mapping[str, Any], dmi: Mapping[str, str]) -> None:
    """The BMC answers, and is this machine's. Raises BmcError."""
    bmc = given["bmc"]
    keys = ("address", "user", "password", "verify", "system")
    machine = Machine(Access(node=given["node"], ca_file=bmc["ca_file"] or "", **{key: bmc[key] for key in keys}))
    if bmc["identity_check"]:
        machine.refuse_other(dmi)


def _chosen(chosen: Next, look: Mapping[str, Any] | None, repair: Repair) -> dict[str, Any]:
    dmi = dict(repair.dmi(look))
    return {"rung": str(chosen.rung or ""), "why": chosen.why, "level": found_of(look).level, "dmi": dmi}
