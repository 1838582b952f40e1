"""The variables of thousands of hosts, as Ansible gives them and without asking it once a host and play.

Hosts of the same groups differ in what each sets itself: its own variables and its name. So a class of such hosts costs
two calls of VariableManager.get_vars() in each play, with hosts that stand for all of them, and a host costs a merge.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible import constants
from ansible.inventory.host import Host
from ansible.utils.vars import combine_vars
from ansible.vars.plugins import get_vars_from_inventory_sources, get_vars_from_path
from ansible_collections.muster.fleet.plugins.module_utils.host.template_inputs import names_of

# A name that no inventory has (RFC 6761); its dot tells it from inventory_hostname_short.
_STAND_IN = "stand-in.muster.invalid"


@dataclass(frozen=True, eq=False)
class HostClass:
    """Hosts that differ only in `own`: by host, the variables that it sets itself, its name included."""

    hosts: tuple[str, ...]
    own: Mapping[str, Mapping[str, Any]]
    # A host whose variables are the same without what it sets itself; the host itself when it is the only one.
    model: Host

    @functools.cached_property
    def reads(self) -> Mapping[str, frozenset[str] | None]:
        """Each variable that some host sets itself, with those that its values read; None when that cannot be known."""
        found: dict[str, frozenset[str] | None] = {}
        for own in self.own.values():
            for name, value in own.items():
                known, read = found.get(name, frozenset()), names_of(value)
                found[name] = None if known is None or read is None else known | read
        return found


@dataclass(frozen=True, eq=False)
class Scope:
    """The variables of a class of hosts in one place: `shared` by all, but for those names that hosts `may_set`."""

    members: HostClass
    shared: Mapping[str, Any]
    may_set: frozenset[str]

    def own(self, host: str) -> dict[str, Any]:
        """What the host sets itself and nothing here overrides."""
        return {name: value for name, value in self.members.own[host].items() if name in self.may_set}

    def of(self, host: str) -> dict[str, Any]:
        """All variables of one host."""
        merged = {**self.shared, **self.own(host)}
        if "vars" in merged:
            merged["vars"] = {name: value for name, value in merged.items() if name != "vars"}
        return merged

    def below(self, above: Mapping[str, Any]) -> Scope:
        """The same place with variables that override all others, such as those of a role."""
        return Scope(self.members, {**self.shared, **above}, self.may_set - above.keys())

    def over(self, defaults: Mapping[str, Any]) -> Scope:
        """The same place with defaults, which every other variable overrides."""
        return Scope(self.members, {**defaults, **self.shared}, self.may_set)


@dataclass(eq=False)
class FleetVariables:
    """Variables by class of hosts. `manager`, `inventory` and `loader` are Ansible's."""

    manager: Any
    inventory: Any
    loader: Any
    _own: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _classes: dict[tuple[bool, tuple[str, ...]], HostClass] = field(default_factory=dict)

    def classes(self, hosts: Iterable[Host], play: Any = None) -> list[HostClass]:
        """The hosts in classes; those of the same hosts are the same object each time."""
        alike: dict[object, list[Host]] = {}
        alone = constants.DEFAULT_HASH_BEHAVIOUR == "merge" or bool(play is not None and play.get_vars_files())
        for host in hosts:
            key = host.name if alone or self._is_known_further(host) else frozenset(g.name for g in host.get_groups())
            alike.setdefault(key, []).append(host)
        return [self._class(members, isinstance(key, str)) for key, members in alike.items()]

    def scope(self, members: HostClass, play: Any = None) -> Scope:
        """The variables of a class, in a play or outside of all."""
        if not isinstance(members.model, _StandIn):
            return Scope(members, self.manager.get_vars(play=play, host=members.model), frozenset())
        shared = self.manager.get_vars(play=play, host=members.model)
        marks: dict[str, Any] = {name: _Mark() for name in members.reads}
        marked = self.manager.get_vars(play=play, host=_stand_in(members.model.get_groups(), marks))
        marks |= members.model.get_magic_vars()
        return Scope(members, shared, frozenset(name for name in marks if marked.get(name) == marks[name]))

    def _class(self, hosts: Sequence[Host], alone: bool) -> HostClass:
        names = tuple(host.name for host in hosts)
        if (alone, names) not in self._classes:
            own = {host.name: {} if alone else self._set_by(host) for host in hosts}
            model = hosts[0] if alone else _stand_in(hosts[0].get_groups(), {})
            self._classes[alone, names] = HostClass(names, own, model)
        return self._classes[alone, names]

    def _is_known_further(self, host: Host) -> bool:
        """Whether the host has facts, or variables that a task set: what those override is Ansible's to say."""
        try:
            facts = self.manager._fact_cache.get(host.name)
        except KeyError:
            facts = None
        caches = (self.manager._vars_cache, self.manager._nonpersistent_fact_cache)
        return bool(facts) or any(cache.get(host.name) for cache in caches)

    def _set_by(self, host: Host) -> Mapping[str, Any]:
        """What the host sets itself: in the inventory, then in host_vars beside the inventory, then beside the play."""
        if host.name not in self._own:
            own = host.get_vars()
            places = [get_vars_from_inventory_sources(self.loader, self.inventory._sources, [host], "task")]
            if self.manager.safe_basedir:
                places.append(get_vars_from_path(self.loader, self.loader.get_basedir(), [host], "task"))
            for found in places:
                own = combine_vars(own, found)
            self._own[host.name] = own
        return self._own[host.name]


class _StandIn(Host):
    """A host for all of its groups; not in the inventory."""


class _Mark:
    """A value that is only equal to itself."""


def _stand_in(groups: Sequence[Any], variables: Mapping[str, Any]) -> _StandIn:
    host = _StandIn(_STAND_IN)
    host.groups = list(groups)
    host.vars = dict(variables)
    return host
