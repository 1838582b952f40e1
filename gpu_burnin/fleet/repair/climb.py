"""One repair of one node, in the four moments at which the controller decides: begin, rung, record, end.

What is done is written to the ledger before it is begun, so that a run that is lost leaves what the next one goes on
from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair import ledger, permit, technician
from gpu_burnin.fleet.repair.cluster import Cluster
from gpu_burnin.fleet.repair.ladder import Found, Next, Rung, Step, StepState, found_of, next_rung
from gpu_burnin.node import reports
from gpu_burnin.report import model
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.files import write_atomic

# An ask's and a hold's longest reason.
_MOST_WHY = 256
# How long the admitter may take to see an ask.
TAKE_OVER_S = 60.0


@dataclass(frozen=True)
class Repair:
    """One node and what the ladder has there. `can` are the rungs that are possible from here.

    `report` is where the controller keeps the node's newest report. `maintenance` is why a window of the inventory's
    calendar is near or open, "" for none.
    """

    node: str
    directory: Path
    cluster: Cluster
    can: Collection[Rung]
    report: Path
    limits: permit.Limits
    now: Callable[[], datetime]
    maintenance: str = ""

    def begin(self, look: Mapping[str, Any] | None, *, apply: bool = True) -> Next:
        """What comes first. For what touches the machine the node is asked for, and new work is off it on return.

        Without `apply` nothing is written. Raises RepairRefused.
        """
        book, found = ledger.read(self.directory, self.node), found_of(look)
        last = book.steps[-1] if book.steps else None
        permit.refuse_node(self.node, found, look, last, self.limits)
        first = next_rung(found, book.steps, self.can, self.now(), self.cluster.owed_power_cycle(self.node))
        if first.rung in (None, Rung.HOLD):
            return first
        near = self.maintenance or (look["status"]["maintenance"]["near"] if look else "")
        permit.refuse_maintenance(self.node, near, self.limits)
        permit.refuse_cluster(self.cluster.scene(self.node), self.limits, self.now())
        if apply:
            self._take(found)
        return first

    def _take(self, found: Found) -> None:
        codes = ", ".join(dict.fromkeys(fault.code for fault in found.blamed))
        self.cluster.ask(self.node, f"repair ladder: {codes or 'test'}"[:_MOST_WHY], self.now())
        try:
            # Two that ask at the same moment both see the other, and both give way.
            permit.refuse_cluster(self.cluster.scene(self.node), self.limits, self.now())
            self.cluster.await_out(self.node, TAKE_OVER_S, repairing=True)
            permit.refuse_pods(self.cluster.scene(self.node))
        except GpuBurninError:
            self.cluster.release(self.node)
            raise

    def rung(self, look: Mapping[str, Any] | None) -> tuple[Next, tuple[str, ...]]:
        """The next rung, written down as begun, and the UUIDs of the GPUs that it is about.

        Raises RepairRefused where work has come.
        """
        book, found = ledger.read(self.directory, self.node), found_of(look)
        chosen = next_rung(found, book.steps, self.can, self.now(), self.cluster.owed_power_cycle(self.node))
        last = book.steps[-1] if book.steps else None
        if last is not None and last.state is StepState.BEGUN:
            if chosen.rung is last.rung and not chosen.done:
                again = replace(last, attempt=last.attempt + 1, boot_id=found.boot_id or last.boot_id)
                self._permit(look)
                ledger.write(self.directory, book.amend(again))
                return chosen, _gpus(last)
            state = StepState.DONE if chosen.done else StepState.FAILED
            ended = replace(last, state=state, ended_at=self._time(), message=chosen.why)
            self._confirm_power_cycle(ended, found)
            book = book.amend(ended)
        if chosen.rung in (None, Rung.HOLD):
            ledger.write(self.directory, book)
            return chosen, ()
        self._permit(look)
        step = Step(chosen.rung, found.blamed, self._time(), found.boot_id, found.machine_id, self.cluster.me)
        ledger.write(self.directory, book.add(step))
        return chosen, _gpus(step)

    def record(self, look: Mapping[str, Any] | None, failed: str = "") -> Step:
        """Write down the end of the step: what the test found after it, or why the rung could not be climbed."""
        book, found = ledger.read(self.directory, self.node), found_of(look)
        if not book.steps:
            raise GpuBurninError(f"{self.node}: no step was begun; run playbooks/repair.yml from its start")
        begun = book.steps[-1]
        failed = failed or _not_done(begun, found)
        tested = not failed and not found.stale
        ended = replace(
            begun,
            state=StepState.FAILED if failed else StepState.DONE,
            ended_at=self._time(),
            message=failed,
            verdict=found.verdict if tested else "",
            run_id=found.run_id if tested else "",
        )
        ledger.write(self.directory, book.amend(ended))
        self._confirm_power_cycle(ended, found)
        return ended

    def stop(self, *, untouched: bool) -> bool:
        """As give_back, after an error; with `untouched` the step that was begun is as if it never was."""
        book = ledger.read(self.directory, self.node)
        if untouched and book.steps and book.steps[-1].state is StepState.BEGUN:
            ledger.write(self.directory, replace(book, steps=book.steps[:-1]))
        return self.give_back()

    def give_back(self) -> bool:
        """Give the node back to the admitter; whether it was in repair."""
        return self.cluster.release(self.node)

    def hold(self, look: Mapping[str, Any] | None, why: str) -> technician.Order:
        """Give the node into the hands of a technician, whose order is returned."""
        book = ledger.read(self.directory, self.node)
        report, owed = self._report(), self.cluster.owed_power_cycle(self.node)
        order = technician.make_order(self.node, self._time(), why, report, look, book.steps, str(self.report), owed)
        now = found_of(look)
        step = Step(Rung.HOLD, now.blamed, self._time(), now.boot_id, now.machine_id, self.cluster.me)
        ended = replace(step, state=StepState.DONE, ended_at=self._time(), message=why)
        text = technician.render(order)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self.order_path(".txt"), text.encode())
            write_atomic(self.order_path(".json"), json.dumps(to_json(order), indent=1).encode() + b"\n")
        except OSError as error:
            raise GpuBurninError(
                f"{self.node}: {error.filename or self.directory} cannot be written ({error.strerror})"
            ) from error
        self.cluster.hold(self.node, technician.summary(order)[:_MOST_WHY], self.now())
        self.cluster.release(self.node)
        if not self.held(now):
            ledger.write(self.directory, book.add(ended))
        return order

    def held(self, found: Found) -> bool:
        """Whether the technician has the node already, for these faults."""
        steps = ledger.read(self.directory, self.node).steps
        return bool(steps) and steps[-1].rung is Rung.HOLD and steps[-1].faults == found.blamed

    def order_path(self, suffix: str) -> Path:
        """Where the technician's order is kept."""
        return self.directory / f"{self.node}-technician{suffix}"

    def dmi(self, look: Mapping[str, Any] | None) -> Mapping[str, str]:
        """What is printed on the machine, as it says itself, or has said in its newest report."""
        if look:
            told: Mapping[str, str] = look["dmi"]
            return told
        report = self._report()
        return report.host.dmi if report else {}

    def _report(self) -> model.Report | None:
        return model.parse(reports.read(self.report), str(self.report)) if self.report.is_file() else None

    def _confirm_power_cycle(self, step: Step, found: Found) -> None:
        """As of now where it passes, since all that was found is of before; else as of when the rung began."""
        if step.rung is Rung.POWER_CYCLE and step.state is StepState.DONE:
            self.cluster.power_cycled(self.node, self._time() if found.passes else step.began_at)

    def _permit(self, look: Mapping[str, Any] | None) -> None:
        permit.refuse_processes(self.node, look)
        permit.refuse_pods(self.cluster.scene(self.node))

    def _time(self) -> str:
        return rfc3339(self.now())


def _not_done(begun: Step, found: Found) -> str:
    """Why a rung had not the effect that it must have, "" where it had."""
    if not found.reached or not begun.boot_id:
        return ""
    if found.machine_id != begun.machine_id:
        return f"another machine answers now: its machine id is {found.machine_id}, and was {begun.machine_id}"
    if begun.rung.boots and found.boot_id == begun.boot_id:
        return f"the machine is still in the boot of before, {begun.boot_id}: look whether its BMC is another machine's"
    return ""


def _gpus(step: Step) -> tuple[str, ...]:
    """The GPUs of a step; none where a fault of it is the node's."""
    gpus = tuple(dict.fromkeys(fault.gpu for fault in step.faults))
    return () if "" in gpus else gpus
