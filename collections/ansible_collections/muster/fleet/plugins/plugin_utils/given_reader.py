"""What an inventory says about the size of its fleet: values with the roles' defaults, counts, ranges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.pki.plan import expand_leaves
from ansible_collections.muster.fleet.plugins.module_utils.preflight import monitoring_size
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import (
    KNOWN_GROUPS,
    Inventory,
    address_of,
    whole,
)
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_rules import check_sizes
from ansible_collections.muster.fleet.plugins.module_utils.preflight.network_rules import pod_room
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import together
from ansible_collections.muster.fleet.plugins.module_utils.preflight.scrape_targets import metric_hosts
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import Scope
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader, Read
from ansible_collections.muster.fleet.plugins.plugin_utils.role_check import FLEET, Inputs
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver, Variables

from gpu_burnin.fleet.plan import given as plan

_PLANNED = "fleet_planned_nodes"
_DEFAULTS = "/defaults/main.yml"


@dataclass
class GivenReader:
    """Reads one inventory; `roles` is the folder of the collection's roles, `forks` what Ansible works on at a time."""

    reader: InventoryReader
    roles: Path
    forks: int

    def given(self) -> plan.Given:
        """What the plan is made of. Raises FleetError where the number of planned nodes is missing or none."""
        read = self.reader.read(self.reader.defaults([self.roles]))
        inventory = read.inventory
        planned = whole(inventory.fleet.get(_PLANNED))
        if planned is None or planned < 1:
            said = f"is {inventory.fleet[_PLANNED]!r}" if _PLANNED in inventory.fleet else "is not set"
            raise FleetError(f"{_PLANNED} {said}; set it in group_vars/all to the nodes that the fleet may grow to")
        settings, unknown = self._settings(read)
        problems = together(self.reader.located(check_sizes(inventory), read))
        return plan.Given(
            name=str(inventory.fleet.get("fleet_name", "")),
            planned_nodes=planned,
            forks=self.forks,
            may_be_single=inventory.fleet.get("fleet_allow_single_members") is True,
            service_cidr=str(inventory.fleet.get("fleet_service_cidr", "")),
            groups={name: len(inventory.groups.get(name, ())) for name in ("all", *KNOWN_GROUPS)},
            settings=settings,
            unknown=unknown,
            certificates=self._certificates(read, unknown),
            addresses=tuple(_addresses(inventory)),
            pods=_pods(inventory),
            monitoring=self._monitoring(read, planned, settings),
            faults=tuple(_fault(problem.line(inventory.groups), problem.fix) for problem in problems),
        )

    def _scopes(self, role: str, hosts: Iterable[Any]) -> list[Scope]:
        """The scopes of hosts in a play of the role."""
        defaults, above = {}, {"role_path": str(self.roles / role)}
        for name in (FLEET, role):
            defaults |= self.reader.file(self.roles / name / "defaults/main.yml")
            above |= self.reader.file(self.roles / name / "vars/main.yml")
        variables = self.reader.variables
        return [variables.scope(members).over(defaults).below(above) for members in variables.classes(hosts)]

    def _settings(self, read: Read) -> tuple[dict[str, tuple[plan.Setting, ...]], dict[str, str]]:
        by_name = {host.name: host for host in self.reader.every_host}
        found: dict[str, tuple[plan.Setting, ...]] = {}
        unknown: dict[str, str] = {}
        for role, (groups, names) in plan.VARIABLES.items():
            hosts = [self.reader.source.get_host("localhost")]
            if any(groups):
                hosts = [by_name[name] for name in read.inventory.members(*groups)]
            scopes = self._scopes(role, hosts)
            for name in names:
                try:
                    found[name] = tuple(_values(name, scopes, self.reader.resolver))
                except AnsibleError as error:
                    unknown[name] = str(error).splitlines()[0]
        return found, unknown

    def _certificates(self, read: Read, unknown: dict[str, str]) -> dict[str, int]:
        """How many certificates of each CA the role pki issues on the controller."""
        local = self.reader.source.get_host("localhost")
        raw = self._scopes("pki", [local])[0].of(local.name)
        # All that the list reads of other hosts: thousands of them, which Ansible would put together one by one.
        raw["hostvars"] = {host: {"fleet_address": address} for host, address in read.inventory.addresses.items()}
        try:
            leaves = expand_leaves(Variables(raw, self.reader.resolver).value("__pki_leaves"))
        except (AnsibleError, FleetError) as error:
            unknown["the list of certificates"] = str(error).splitlines()[0]
            return {}
        return dict(Counter(leaf.ca for leaf in leaves))

    def _monitoring(
        self, read: Read, planned: int, settings: Mapping[str, tuple[plan.Setting, ...]]
    ) -> plan.Monitoring | None:
        groups = read.inventory.groups
        hosts = groups.get("monitoring", ())
        numbers = [
            plan.number_of(values[0].value) if (values := settings.get(f"fleet_monitoring_{name}")) else None
            for name in ("interval_s", "retention_days", "disk_gib")
        ]
        interval_s, days, disk_gib = numbers
        if not hosts or not interval_s or not days or disk_gib is None:
            return None
        scope = self._scopes("fleet_monitoring", [self.reader.source.get_host(hosts[0])])[0]
        sources = Variables(scope.of(hosts[0]), self.reader.resolver).value("__fleet_metric_sources")
        targets = monitoring_size.planned_targets(metric_hosts(sources, groups), groups, planned)
        kept = self.reader.file(self.roles / "fleet_monitoring/files/series.yaml")
        series = monitoring_size.fleet_series(kept, targets)
        if disk_gib:
            room = disk_gib * monitoring_size.GIB * monitoring_size.SHARE_OF_DISK
            days = min(days, monitoring_size.days_that_fit(series, interval_s, room))
        need = monitoring_size.need(series, interval_s, days)
        return plan.Monitoring(need.series, need.samples_per_s, need.disk_bytes, need.memory_bytes, days)


def _values(name: str, scopes: Sequence[Scope], resolver: Resolver) -> list[plan.Setting]:
    """The values of a variable, the most usual first. Raises AnsibleError."""
    found: dict[str, plan.Setting] = {}
    for scope in scopes:
        for _, alike in Inputs(scope, (name,)).alike(scope.members.hosts):
            variables = Variables(scope.of(alike[0]), resolver)
            value = variables.value(name)
            known = found.get(repr(value))
            hosts = len(alike) + (known.hosts if known else 0)
            where = variables.origin(name)
            # Nobody is to correct the file of a default.
            where = "" if _DEFAULTS in where else where
            first, where = (known.first, known.where) if known else (alike[0], where)
            found[repr(value)] = plan.Setting(value, hosts, first, where)
    return sorted(found.values(), key=lambda setting: -setting.hosts)


def _fault(line: str, fix: str) -> plan.Fault:
    """A problem of the rules; its line already says where it stands."""
    return plan.Fault(line.removesuffix(f"; {fix}"), fix)


def _addresses(inventory: Inventory) -> Iterable[plan.Addresses]:
    for group in KNOWN_GROUPS:
        known = [address_of(inventory.addresses.get(host)) for host in inventory.groups.get(group, ())]
        # IPv4 and IPv6 cannot be compared.
        found = sorted((address for address in known if address is not None), key=lambda one: (one.version, int(one)))
        if found:
            yield plan.Addresses(group, len(known), str(found[0]), str(found[-1]))


def _pods(inventory: Inventory) -> plan.Pods | None:
    room = pod_room(inventory)
    return plan.Pods(str(room.pods), room.prefix, room.room) if room else None
