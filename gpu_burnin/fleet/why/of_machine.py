"""What a MachinePower says, as entries. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_burnin.api.machine_power import MachinePower
from gpu_burnin.fleet.why.entry import Entry, Source, What
from gpu_burnin.system.clock import time_of


def of_machine(machine: MachinePower) -> Iterator[Entry]:
    """What the scaler did with it and what became of that, and what people ask now."""
    for step in machine.status.changes:
        if at := time_of(step.at):
            message = f"machine {step.what}: {step.message.removeprefix(f'{machine.name}: ')}"
            yield Entry(at, Source.SCALER, What.TOLD, message, "", step.who, machine.name)
    for name in ("hold", "release"):
        ask = getattr(machine.spec, name)
        if ask is not None and (at := time_of(ask.since)):
            yield Entry(at, Source.SCALER, What.PERSON, f"machine {name}: {ask.why}", "", ask.who, machine.name)
