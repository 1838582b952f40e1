"""What people ask of machines that the scaler switches."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound
from gpu_burnin.admission.decide.words import active
from gpu_burnin.api.machine_power import MachineError, MachinePower, machines_path, parse_machine
from gpu_burnin.api.names import MACHINE_KIND, Names
from gpu_burnin.api.record import Ask
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json

_MOST_TRIES = 8


def machine_of(api: KubeApi, names: Names, name: str) -> MachinePower | None:
    """The MachinePower of a node, None where it is not switched. Raises ApiError and MachineError."""
    found = api.find(machines_path(names, name), f"read {MACHINE_KIND} {name}")
    return parse_machine(found) if found is not None else None


def powered_off(kubeconfig: Path, domain: str) -> frozenset[str]:
    """The machines that are off because that is wanted; none where the cluster knows none. Raises GpuBurninError."""
    api, names = KubeApi(kubeconfig), Names(domain)
    try:
        items = [*api.items(machines_path(names), f"list the {MACHINE_KIND}s")]
    except NotFound:
        return frozenset()
    return frozenset(machine.name for machine in map(parse_machine, items) if machine.off)


def hold(api: KubeApi, names: Names, name: str, who: str, why: str, now: datetime) -> str:
    """Keep the scaler's hands off a machine; what became of that, in a sentence. Raises ApiError and MachineError."""

    def patch_of(machine: MachinePower) -> list[dict[str, Any]]:
        if active(machine.spec.hold, now) is not None:
            return []
        return [{"op": "add", "path": "/spec/hold", "value": to_json(Ask(who, why, rfc3339(now)))}]

    done, machine = _change(api, names, name, patch_of)
    if not done and machine.spec.hold is not None:
        return f"{name}: {machine.spec.hold.who} holds it already: {machine.spec.hold.why}"
    return f"{name}: the scaler leaves it as it is ({machine.status.power}) until `muster machine release {name}`"


def release(api: KubeApi, names: Names, name: str, who: str, why: str, now: datetime) -> str:
    """End a hold, and what a failure keeps for a person; what became of that. Raises ApiError and MachineError."""

    def patch_of(machine: MachinePower) -> list[dict[str, Any]]:
        patch: list[dict[str, Any]] = [{"op": "remove", "path": "/spec/hold"}] if machine.spec.hold is not None else []
        if machine.status.held and (
            machine.spec.release is None or machine.spec.release.since <= machine.status.held_since
        ):
            patch.append({"op": "add", "path": "/spec/release", "value": to_json(Ask(who, why, rfc3339(now)))})
        return patch

    done, _ = _change(api, names, name, patch_of)
    return f"{name}: the scaler may switch it again" if done else f"{name}: nothing keeps it from the scaler"


def _change(api: KubeApi, names: Names, name: str, patch_of: Any) -> tuple[bool, MachinePower]:
    """Write what `patch_of` gives for the newest one; whether there was need to."""
    path = machines_path(names, name)
    for _ in range(_MOST_TRIES):
        try:
            machine = parse_machine(api.get(path, f"read {MACHINE_KIND} {name}"))
        except NotFound as error:
            raise MachineError(
                f"{name}: it has no {MACHINE_KIND}, so the scaler does not switch it; give it fleet_power, and run "
                "site.yml"
            ) from error
        patch = patch_of(machine)
        if not patch:
            return False, machine
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": machine.version}
        try:
            return True, parse_machine(api.patch(path, [test, *patch], f"ask for machine {name}"))
        except Conflict as error:
            conflict = error
    raise ApiError(f"{name}: its {MACHINE_KIND} changes all the time ({conflict}); run this again")
