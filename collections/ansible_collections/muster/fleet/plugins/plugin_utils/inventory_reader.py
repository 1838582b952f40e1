"""The inventory as its rules see it, read out of Ansible's own: groups, addresses, what the whole fleet shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import EXPECT, PLACE
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED, Inventory
from ansible_collections.muster.fleet.plugins.module_utils.preflight.pod_routing_rules import VARIABLES as ROUTING
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables, Scope
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import files_of
from ansible_collections.muster.fleet.plugins.plugin_utils.role_check import BATCH, FLEET, Inputs
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver, Variables, origin_of

# What the inventory's own rules read per host: the second is the fleet's address of last resort.
HOST_VARIABLES = (
    "fleet_address",
    "ansible_host",
    "pod_network_range",
    "repair_bmc_address",
    "repair_bmc_system",
    PLACE,
    EXPECT,
)
# The role whose one DaemonSet serves all GPU nodes.
DEVICE_PLUGIN = "nvidia_device_plugin"
POD_NETWORK = "pod_network"


@dataclass(frozen=True)
class Read:
    """An inventory, the scopes that its hosts' variables are in, and the scope of each host."""

    inventory: Inventory
    scopes: Sequence[Scope]
    homes: Mapping[str, Scope]


@dataclass(frozen=True)
class InventoryReader:
    """Reads what the rules look at. `source` and `loader` are Ansible's inventory and its reader of files."""

    variables: FleetVariables
    resolver: Resolver
    source: Any
    loader: Any
    # Told how many hosts more were read: by what is done, and how many hosts there are.
    progress: Callable[[str, int], Callable[[int], None]]

    @property
    def every_host(self) -> list[Any]:
        """All hosts of the inventory, whatever the run is limited to."""
        return list(self.source.get_hosts("all", ignore_limits=True, ignore_restrictions=True))

    def defaults(self, roots: Iterable[Path]) -> dict[str, Any]:
        """The defaults of the fleet, its device plugin and its pod network, below all variables of the inventory."""
        found: dict[str, Any] = {}
        for path in (
            root / role / "defaults" / "main.yml" for role in (FLEET, DEVICE_PLUGIN, POD_NETWORK) for root in roots
        ):
            found |= self.file(path)
        return found

    def file(self, path: Path) -> dict[str, Any]:
        """The variables of a role's file; none where there is no such file."""
        found: dict[str, Any] = self.loader.load_from_file(str(path), trusted_as_template=True) if path.exists() else {}
        return found or {}

    def read(self, defaults: Mapping[str, Any], patterns: Sequence[str] = ()) -> Read:
        """The inventory with these defaults; `patterns` are the plays' words for hosts."""
        every = self.every_host
        scopes = [self.variables.scope(members).over(defaults) for members in self.variables.classes(every)]
        homes = {host: scope for scope in scopes for host in scope.members.hosts}
        of_plugin = [name for name in defaults if name.startswith(f"{DEVICE_PLUGIN}_")]
        values = self.host_values(scopes, (*HOST_VARIABLES, *ROUTING, *of_plugin), len(every))
        inventory = Inventory(
            groups={name: [host.name for host in group.get_hosts()] for name, group in self.source.groups.items()},
            addresses={
                host.name: values["fleet_address"].get(host.name) or values["ansible_host"].get(host.name)
                for host in every
            },
            ansible_hosts=values["ansible_host"],
            pod_ranges=values["pod_network_range"],
            bmc_addresses=values["repair_bmc_address"],
            bmc_systems=values["repair_bmc_system"],
            device_plugin={name: values[name] for name in of_plugin},
            pod_routing={name: values[name] for name in ROUTING},
            places=values[PLACE],
            expects=values[EXPECT],
            fleet=self._fleet_values(homes[every[0].name].of(every[0].name)) if every else {},
            patterns=patterns,
            group_files=files_of("group_vars", self.source._sources, self.loader.get_basedir()),
            host_files=files_of("host_vars", self.source._sources, self.loader.get_basedir()),
        )
        return Read(inventory, scopes, homes)

    def located(self, problems: Iterable[Problem], read: Read) -> list[Problem]:
        """The problems, each with the file and line of its variable, or of its host."""
        found, first = [], next(iter(read.homes), None)
        for problem in problems:
            owner = problem.hosts[0] if problem.hosts else first
            where = problem.where
            if owner and problem.variable:
                where = Variables(read.homes[owner].of(owner), self.resolver).origin(problem.variable)
            if not where and problem.hosts:
                where = origin_of(self.source.get_host(problem.hosts[0]).name)
            found.append(Problem(problem.message, problem.fix, problem.hosts, problem.variable, where))
        return found

    def host_values(self, scopes: Sequence[Scope], names: Sequence[str], hosts: int) -> dict[str, dict[str, Any]]:
        """Each of these variables by host; what cannot be resolved is the roles' check's to report."""
        values: dict[str, dict[str, Any]] = {name: {} for name in names}
        advance = self.progress("read the addresses of", hosts)
        for scope in scopes:
            inputs = [(name, Inputs(scope, (name,))) for name in names]
            for start in range(0, len(scope.members.hosts), BATCH):
                batch = scope.members.hosts[start : start + BATCH]
                for name, made_of in inputs:
                    for _, alike in made_of.alike(batch):
                        try:
                            value = Variables(scope.of(alike[0]), self.resolver).value(name)
                        except KeyError:
                            continue
                        except AnsibleError:
                            value = UNRESOLVED
                        values[name] |= dict.fromkeys(alike, value)
                advance(len(batch))
        return values

    def _fleet_values(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The variables that the whole fleet shares, as one host has them; as host_values."""
        variables, found = Variables(raw, self.resolver), {}
        for name in raw:
            if name.startswith(f"{FLEET}_"):
                try:
                    found[name] = variables.value(name)
                except AnsibleError:
                    continue
        return found
