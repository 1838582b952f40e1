"""Action muster.fleet.inventory_check: all that can be known to be wrong before a host is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.playbook import Playbook
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import KNOWN_GROUPS
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_rules import check
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_specs import (
    RoleSpec,
    has_template,
    is_foreign,
    known_names,
    load_role_specs,
    unknown_variable,
)
from ansible_collections.muster.fleet.plugins.modules.inventory_check import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.ansible_names import ansible_names
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import failure, forget
from ansible_collections.muster.fleet.plugins.plugin_utils.findings import Findings
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables, Scope
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import locked, unreadable
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_reader import InventoryReader
from ansible_collections.muster.fleet.plugins.plugin_utils.progress import Progress
from ansible_collections.muster.fleet.plugins.plugin_utils.role_check import FLEET, RoleCheck, roles_of
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver, Variables, origin_of

# Set per host by their nature; every other fleet_ variable must be the same on all hosts.
PER_HOST = frozenset(
    {
        "fleet_address",
        "fleet_fabric_nics",
        "fleet_host_key_fingerprint",
        # Of a host's machine: control plane and GPU nodes differ, and GPU nodes among each other while they change.
        "fleet_kernel_root",
        "fleet_nvidia_driver_version",
        "fleet_nvidia_repository_fingerprint",
        "fleet_nvidia_repository_key",
        "fleet_nvidia_repository_url",
        "fleet_nvidia_source",
        "fleet_place",
        "fleet_power",
        # A mirror may be near to some.
        "fleet_wheelhouse_url",
    }
)
# In the fleet's state: all problems, when there are too many for a screen.
LIST_NAME = "inventory-problems.txt"


class ActionModule(ActionBase):
    """Runs on the controller alone."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset({"playbook"})

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fails with every problem in one message."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        self._manager = self._task.get_variable_manager()
        self._inventory = (task_vars or {})["hostvars"]._inventory
        sources = ", ".join(str(source) for source in self._inventory._sources)
        title = f"The inventory {sources} is not usable, nothing was touched"
        # What stands in a file that cannot be read is missing everywhere else.
        files = (self._inventory._sources, self._loader.get_basedir(), self._loader)
        if problems := unreadable(*files):
            raise failure(title, problems, None, **result)
        self._variables = FleetVariables(self._manager, self._inventory, self._loader)
        self._resolver = Resolver(self._templar)
        self._reader = InventoryReader(self._variables, self._resolver, self._inventory, self._loader, self._advance)
        self._hosts = [host.name for host in self._reader.every_host]
        plays = self._plays(arguments["playbook"])
        # Where one role of the plays lies are others, whose variables a play without them must not be given misspelt.
        roots = list(dict.fromkeys(Path(role.get_role_path()).parent for play in plays for role in roles_of(play)))
        try:
            specs = load_role_specs(roots)
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        if problems := locked(*files, lambda name: not is_foreign(name, specs)):
            raise failure(title, problems, None, **result)
        self._foreign: dict[str, str] = {}
        self._list_file: Path | None = None
        problems = self._inventory_problems(plays, self._reader.defaults(roots))
        problems += self._variable_problems(plays, specs, problems)
        result["changed"] = False
        if self._display.verbosity:
            result["foreign_variables"] = self._foreign
        if problems:
            known = [name for name in ("all", *KNOWN_GROUPS) if name in self._inventory.groups]
            groups = {name: [host.name for host in self._inventory.groups[name].get_hosts()] for name in known}
            raise failure(title, problems, self._list_file, groups=groups, **result)
        forget(self._list_file)
        result["msg"] = f"{len(self._hosts):,} hosts and {len(specs)} roles checked"
        return result

    def _plays(self, playbook: str) -> list[Any]:
        try:
            return Playbook.load(playbook, variable_manager=self._manager, loader=self._loader).get_plays()
        except AnsibleError as error:
            raise AnsibleActionFail(f"the playbook {playbook} cannot be loaded: {error}") from error

    def _hosts_of(self, play: Any) -> list[Any]:
        pattern = self._pattern(play)
        if not pattern:
            return []
        return list(self._inventory.get_hosts(pattern, ignore_limits=True, ignore_restrictions=True))

    def _pattern(self, play: Any) -> str:
        """The play's host pattern; one that only a later moment can resolve counts as nobody."""
        words = play.hosts if isinstance(play.hosts, list) else [play.hosts]
        text = ",".join(str(word) for word in words)
        if not has_template(text):
            return text
        try:
            return str(self._resolver.template(play.hosts, self._manager.get_vars(play=play)))
        except AnsibleError:
            return ""

    def _advance(self, what: str, total: int) -> Callable[[int], None]:
        return Progress(what, total, self._display.display).advance

    def _inventory_problems(self, plays: list[Any], defaults: Mapping[str, Any]) -> list[Problem]:
        read = self._reader.read(defaults, [pattern for play in plays if (pattern := self._pattern(play))])
        findings = Findings()
        names = {name for scope in read.scopes for name in (*scope.shared, *scope.may_set)}
        for name in sorted(name for name in names - PER_HOST if name.startswith(f"{FLEET}_")):
            _same_everywhere(name, read.scopes, findings)
        if (state := read.inventory.fleet.get("fleet_state_dir")) and isinstance(state, str):
            self._list_file = Path(state).expanduser() / LIST_NAME
        return [*self._reader.located(check(read.inventory), read), *findings.problems()]

    def _variable_problems(
        self, plays: list[Any], specs: Mapping[str, RoleSpec], known: Iterable[Problem]
    ) -> list[Problem]:
        """Names that no role knows, then what is wrong with those that one does and does not follow from `known`."""
        findings = Findings()
        everywhere = ["localhost", *self._hosts]
        for problem in known:
            for host in problem.hosts or everywhere:
                findings.blame(host, problem.variable)
        self._check_names(plays, specs, findings)
        roles = RoleCheck(self._variables, self._resolver, specs, findings)
        limited = {host.name for host in self._inventory.get_hosts("all", ignore_restrictions=True)} | {"localhost"}
        hosts = {play: [host for host in self._hosts_of(play) if host.name in limited] for play in plays}
        for play in plays:
            roles.add_play(play, hosts[play])
        roles.run(self._advance("checked", len({host.name for found in hosts.values() for host in found})))
        return findings.problems()

    def _check_names(self, plays: list[Any], specs: Mapping[str, RoleSpec], findings: Findings) -> None:
        # The controller too, which no group has to list.
        hosts = {host.name: host for host in [*self._reader.every_host, self._inventory.get_host("localhost")]}
        scopes = [self._variables.scope(members) for members in self._variables.classes(hosts.values())]
        every = {name for scope in scopes for name in (*scope.shared, *scope.may_set)}
        every |= {name for play in plays for name in play.get_vars()}
        known = known_names(specs, ansible_names())
        for name in sorted(every - {"hostvars"}):
            unknown = unknown_variable(name, specs, known)
            if unknown is None and not is_foreign(name, specs):
                continue
            # Of the names that nobody claims only the inventory's are the site's own: a play has its own for itself.
            for place, raw in _places(name, scopes, () if unknown is None else plays):
                where = origin_of(next(key for key in raw if key == name), raw[name])
                if unknown is None:
                    self._foreign[name] = where
                    break
                findings.add(place, unknown.message, unknown.fix, where)
                # The variable that was meant is missing, which is no second problem.
                findings.blame(place, unknown.suggestion)


def _places(name: str, scopes: Sequence[Scope], plays: Sequence[Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The hosts and the plays that have a variable, with all their variables."""
    for scope in scopes:
        if name in scope.shared or name in scope.may_set:
            yield from ((host, raw) for host in scope.members.hosts if name in (raw := scope.of(host)))
    yield from ((f"play {play.get_name()!r}", play.get_vars()) for play in plays if name in play.get_vars())


def _same_everywhere(name: str, scopes: Sequence[Scope], findings: Findings) -> None:
    """A fleet-wide variable with another value on some host builds two fleets."""
    values: dict[str, str] = {}
    for scope in scopes:
        shared = repr(scope.shared.get(name))
        for host in scope.members.hosts:
            own = scope.members.own[host] if name in scope.may_set else {}
            values[host] = repr(own[name]) if name in own else shared
    counted = Counter(values.values()).most_common(1)
    if not counted or counted[0][1] == len(values):
        return
    usual = counted[0][0]
    model = next(host for host, value in values.items() if value == usual)
    homes = {host: scope for scope in scopes for host in scope.members.hosts}
    for host, value in values.items():
        if value != usual:
            own = Variables(homes[host].of(host), None).origin(name)
            findings.add(
                host,
                f"{name} differs from its value on {model}, but the whole fleet has one value for it",
                "set it once, in group_vars/all",
                own,
            )
