"""Writing the inventory's machines into the cluster: one MachinePower for each node that the scaler may switch.

What power is wanted, what people ask and all that the scaler has seen is not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi, NotFound
from gpu_burnin.api.machine_power import (
    MachinePower,
    MachineSpec,
    Power,
    machine_document,
    machines_path,
    parse_machine,
)
from gpu_burnin.api.names import MACHINE_KIND, Names
from gpu_burnin.system.codec import to_json

_PARTS = ("supply", "gpus", "model", "place")
_MOST_TRIES = 10


@dataclass(frozen=True)
class Machines:
    """What differs, before and after, by name; and sentences on machines that nobody would put on again."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether anything was (or would be) written."""
        return bool(self.before or self.after)


def have_machines(api: KubeApi, names: Names, wanted: Mapping[str, MachineSpec], *, apply: bool) -> Machines:
    """Make the MachinePowers those of the inventory. Raises ApiError and MachineError.

    One that has left goes, unless it is off: nobody would put it on again, so a person does that first.
    """
    try:
        known = _known(api, names)
    except NotFound:
        if apply:
            raise
        known = {}
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    notes: list[str] = []
    for name, spec in sorted(wanted.items()):
        old = known.get(name)
        if old is None:
            after[name] = _parts(spec)
        elif _parts(old.spec) != _parts(spec):
            before[name], after[name] = _parts(old.spec), _parts(spec)
    for name in sorted(known.keys() - wanted.keys()):
        if known[name].status.power is Power.OFF:
            notes.append(
                f"{name}: its machine is off, and the inventory says no more how it is switched on (fleet_power); put "
                "it on, or take it away for good and delete its MachinePower with provisioner.kubeconfig of "
                "fleet_state_dir"
            )
        else:
            before[name] = _parts(known[name].spec)
    if apply:
        for name in {**before, **after}:
            if name in wanted:
                _write(api, names, name, wanted[name], known.get(name))
            elif why := _remove(api, names, known[name]):
                del before[name]
                notes.append(why)
    return Machines(before, after, tuple(notes))


def forget_machines(api: KubeApi, names: Names, *, apply: bool) -> Machines:
    """Without the scaler there are no MachinePowers: one that is off is missed like any other. Raises ApiError."""
    try:
        known = _known(api, names)
    except NotFound:
        return Machines({}, {})
    if apply:
        known = {name: _forget(api, names, one) for name, one in known.items()}
    notes = (
        f"{name}: its machine is off or on its way there, and without fleet_scale nobody puts it on; put it on, then "
        f'take back the hold of the scaler: muster node release {name} --reason "no scaler"'
        for name, one in sorted(known.items())
        if one.status.power is Power.OFF or (one.spec.wanted is not None and one.spec.wanted.power is Power.OFF)
    )
    return Machines({name: _parts(one.spec) for name, one in known.items()}, {}, tuple(notes))


def _known(api: KubeApi, names: Names) -> dict[str, MachinePower]:
    """All of the cluster by name. Raises NotFound where it does not know the kind, ApiError, MachineError."""
    return {one.name: one for one in map(parse_machine, api.items(machines_path(names), f"list {MACHINE_KIND}s"))}


def _remove(api: KubeApi, names: Names, old: MachinePower) -> str:
    """Delete one as it was read; why it stays, "" when it has gone."""
    try:
        _delete(api, names, old)
    except Conflict as error:
        return (
            f"{old.name}: its {MACHINE_KIND} was written since it was read ({error}), as for another power that is "
            "wanted or was seen, so it stays; run this again, which decides anew"
        )
    return ""


def _forget(api: KubeApi, names: Names, old: MachinePower) -> MachinePower:
    """Delete one, whatever is written into it meanwhile; as it was then, for what is to be said of it."""
    for _ in range(_MOST_TRIES):
        # Somebody else may have done it.
        with suppress(NotFound):
            try:
                _delete(api, names, old)
            except Conflict as error:
                conflict = error
                old = parse_machine(api.get(machines_path(names, old.name), f"read {MACHINE_KIND} {old.name}"))
                continue
        return old
    raise ApiError(
        f"{old.name}: its {MACHINE_KIND} changed at each of {_MOST_TRIES} tries ({conflict}); run this again"
    )


def _delete(api: KubeApi, names: Names, old: MachinePower) -> None:
    api.delete(machines_path(names, old.name), f"delete {MACHINE_KIND} {old.name}", version=old.version)


def _write(api: KubeApi, names: Names, name: str, spec: MachineSpec, old: MachinePower | None) -> None:
    path = machines_path(names, name)
    if old is None:
        made = machine_document(MachinePower(name, replace(spec, wanted=None, hold=None, release=None)), names)
        api.create(machines_path(names), made, f"create {MACHINE_KIND} {name}")
        return
    for _ in range(_MOST_TRIES):
        version = str(api.get(path, f"read {MACHINE_KIND} {name}")["metadata"]["resourceVersion"])
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        changes = [{"op": "add", "path": f"/spec/{part}", "value": value} for part, value in _parts(spec).items()]
        try:
            api.patch(path, [test, *changes], f"patch {MACHINE_KIND} {name}")
            return
        except Conflict as error:
            conflict = error
    raise ApiError(f"{name}: its {MACHINE_KIND} changed at each of {_MOST_TRIES} tries ({conflict}); run this again")


def _parts(spec: MachineSpec) -> dict[str, Any]:
    return {part: to_json(getattr(spec, part)) for part in _PARTS}
