"""What `muster roll` reads of an inventory for its workers."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.places import levels_of
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader, Read

from gpu_burnin.fleet.feeds.limits import LIMITS, OTHERS
from gpu_burnin.fleet.waves.grants import EXTENDED, MODE

_ENCRYPTED = b"$ANSIBLE_VAULT;"
_BURNIN = Path(__file__).resolve().parents[2] / "roles/gpu_burnin/defaults/main.yml"


def workers_of(reader: InventoryReader, read: Read, group: str, nodes: Iterable[str]) -> list[str]:
    """The hosts of a group in the form of --worker."""
    names = read.inventory.groups.get(group, ())
    if not names:
        raise AnsibleActionFail(f"the inventory has no hosts in a group {group}; name the group of its workers")
    if both := sorted(set(names) & set(nodes)):
        raise AnsibleActionFail(
            f"{both[0]} is a node of the fleet and in the group {group}; take it out, a worker is another machine"
        )
    values = _values(reader, read, ("ansible_host", "ansible_user", "ansible_port", "muster_roll_shards"))
    found = []
    for name in names:
        host, user, port, shards = (values[key].get(name) for key in values)
        login = f"{user}@{host or name}" if user else str(host or name)
        found.append(f"{login}{f':{port}' if port else ''}{'' if shards is None else f'={shards}'}")
    return found


def power_of(reader: InventoryReader, read: Read, nodes: Sequence[str]) -> dict[str, Any]:
    """How many nodes may swing their power where, and which of these do: gpu_burnin.fleet.waves.grants.Power."""
    usual, fleet = reader.file(_BURNIN), read.inventory.fleet
    values = _values(reader, read, (MODE, OTHERS, EXTENDED))
    nodes = [name for name in nodes if name in read.inventory.groups.get("gpu_nodes", ())]
    try:
        places = {name: levels_of(name, read.inventory.places.get(name) or {}) for name in nodes}
    except FleetError as error:
        raise AnsibleActionFail(str(error)) from error
    of_nodes = {key: [values[key].get(name, usual.get(key, "")) for name in nodes] for key in values}
    return {
        "by_feed": fleet.get(LIMITS) or {},
        # The play's first host has a word for all, and workers' shards begin with others.
        "others": int(min(_numbers(OTHERS, nodes, of_nodes[OTHERS]), default=usual[OTHERS])),
        "extended_s": max(_numbers(EXTENDED, nodes, of_nodes[EXTENDED]), default=0.0),
        "scaled": str(fleet.get("fleet_scale", False)).lower() in ("true", "yes", "1"),
        "feeds": {name: place.get("feed", "") for name, place in places.items()},
        "modes": dict(zip(nodes, map(str, of_nodes[MODE]), strict=True)),
    }


def sealed_in(sources: Iterable[str], loader: Any) -> list[str]:
    """The names in an inventory's files that are encrypted as a whole, for which `loader` has the password.

    Raises AnsibleActionFail for one whose names cannot be read.
    """
    found: set[str] = set()
    for path in itertools.chain.from_iterable(map(_files, map(Path, sources))):
        if path.is_file() and _begins(path) == _ENCRYPTED:
            found.update(_names(_loaded(path, loader)))
    return sorted(found)


def _files(source: Path) -> Iterator[Path]:
    """What Ansible may read of a source, which enters folders below, also those that are links."""
    folders = [source]
    if not source.is_dir():
        yield source
        folders = [source.parent / name for name in ("group_vars", "host_vars")]
    seen: set[str] = set()
    for top, below, files in itertools.chain.from_iterable(os.walk(folder, followlinks=True) for folder in folders):
        # A link may lead to a folder above it.
        again = (real := os.path.realpath(top)) in seen
        seen.add(real)
        below[:] = [] if again else [name for name in below if not name.startswith(".")]
        yield from () if again else (Path(top, name) for name in files)


def _loaded(path: Path, loader: Any) -> object:
    try:
        value: object = loader.load_from_file(str(path))
    except AnsibleError:
        value = ""  # its words may be of the secret
    if value is None or isinstance(value, Mapping):
        return value
    raise AnsibleActionFail(
        f"{path} is encrypted as a whole, and which variables it has cannot be read, which workers may not get: give "
        "its password (ANSIBLE_VAULT_PASSWORD_FILE), write it as YAML, or take it out of the inventory"
    )


def _begins(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_ENCRYPTED))


def _names(value: object) -> Iterator[str]:
    """Also those of groups and hosts, in an inventory: a few too many do no harm."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield str(name)
            yield from _names(below)


def _numbers(variable: str, nodes: Sequence[str], values: Sequence[Any]) -> list[float]:
    """Raises AnsibleActionFail for what is no number above 0."""
    found = []
    for name, value in zip(nodes, values, strict=True):
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            raise AnsibleActionFail(f"{variable} of {name} is {value!r}; give a number above 0")
        found.append(number)
    return found


def _values(reader: InventoryReader, read: Read, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Variables of all hosts. Raises AnsibleActionFail for one that cannot be resolved."""
    found: dict[str, dict[str, Any]] = reader.host_values(read.scopes, names, len(read.homes))
    for name, values in found.items():
        if unknown := [host for host, value in values.items() if value is UNRESOLVED]:
            raise AnsibleActionFail(f"{name} of {unknown[0]} cannot be resolved, and workers need it; correct it")
    return found
