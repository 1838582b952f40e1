"""Action muster.fleet.inventory_check: all that can be known to be wrong before a host is touched."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible import constants as C
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.playbook import Playbook
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import become_loader, connection_loader
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

# The only place that knows in which file and line a value stands; ansible-core is pinned to 2.19.
from ansible._internal._datatag._tags import Origin  # isort: skip

from ansible_collections.muster.fleet.plugins.module_utils.inventory_rules import Inventory, check
from ansible_collections.muster.fleet.plugins.module_utils.problems import Problem, report
from ansible_collections.muster.fleet.plugins.module_utils.role_rules import ROLE_RULES, RoleRule
from ansible_collections.muster.fleet.plugins.module_utils.role_specs import (
    RoleSpec,
    has_template,
    is_foreign,
    known_names,
    load_role_specs,
    missing_options,
    unknown_variable,
    value_errors,
)
from ansible_collections.muster.fleet.plugins.module_utils.template_inputs import Key, inputs
from ansible_collections.muster.fleet.plugins.modules.inventory_check import ARGUMENT_SPEC

FLEET = "fleet"
# Set per host by their nature; every other fleet_ variable must be the same on all hosts.
PER_HOST = frozenset({"fleet_address", "fleet_host_key_fingerprint"})
# What the inventory's own rules read per host, and the variable that names the fleet's address of last resort.
HOST_VARIABLES = ("fleet_address", "ansible_host", "pod_network_range")


def origin_of(*values: Any) -> str:
    """File and line of the first value that knows its own, shown relative to the working folder."""
    for value in values:
        origin = Origin.get_tag(value)
        if origin is None:
            continue
        if origin.path is None:
            return str(origin.description or "").strip("<>")
        path = Path(origin.path)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{shown}:{origin.line_num}" if origin.line_num else str(shown)
    return ""


def ansible_names() -> frozenset[str]:
    """The variables by which an inventory tells Ansible how to reach and enter a host."""
    for loader, name in ((connection_loader, "ssh"), (become_loader, "sudo"), (become_loader, "su")):
        loader.get(name, class_only=True)  # which makes its options known
    definitions = [
        C.config.get_configuration_definitions(*plugin).values()
        for plugin in ((), ("connection", "ssh"), ("become", "sudo"), ("become", "su"))
    ]
    plugins = {entry["name"] for options in definitions for option in options for entry in option.get("vars") or ()}
    magic = {name for names in C.MAGIC_VARIABLE_MAPPING.values() for name in names}
    return frozenset({*C.COMMON_CONNECTION_VARS, *magic, *plugins})


class Resolver:
    """Templates values, each set of equal inputs once."""

    def __init__(self, templar: Any) -> None:
        self._templar = templar
        self._done: dict[Key, Any] = {}

    def resolve(self, name: str, raw: Mapping[str, Any]) -> Any:
        """The value of one variable among `raw`. Raises AnsibleError."""
        key = inputs(name, raw)
        if key is not None and key in self._done:
            value = self._done[key]
        else:
            self._templar.available_variables = raw
            try:
                value = self._templar.template(raw[name])
            except AnsibleError as error:
                value = error
            if key is not None:
                self._done[key] = value
        if isinstance(value, AnsibleError):
            raise value
        return value


class Variables:
    """One host's variables; values are templated when read, and plain ones are not."""

    def __init__(self, raw: Mapping[str, Any], resolver: Resolver) -> None:
        self.raw = raw
        self._resolver = resolver

    def value(self, name: str) -> Any:
        """The variable's value. Raises KeyError, and AnsibleError when its template cannot be resolved."""
        value = self.raw[name]
        return self._resolver.resolve(name, self.raw) if has_template(value) else value

    def reads(self, name: str) -> frozenset[str]:
        """The variables that the value is made of, as far as that is known."""
        return frozenset(read for read, _ in inputs(name, self.raw) or ())

    def origin(self, name: str) -> str:
        """Where the variable is set."""
        key = next((key for key in self.raw if key == name), None)
        return origin_of(self.raw.get(name), key)


class Findings:
    """Collects problems: the same one of many hosts or variables is one line, what follows from another is none."""

    def __init__(self) -> None:
        self._hosts: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
        self._unresolved: list[tuple[str, str, str, frozenset[str]]] = []
        self._at_fault: set[tuple[str, str]] = set()

    def add(self, host: str, message: str, fix: str, where: str = "", at_fault: str = "") -> None:
        """One problem of one host; `at_fault` is the variable that it is about."""
        self._hosts[(message, fix, where)][host] = None
        self.blame(host, at_fault)

    def blame(self, host: str, variable: str) -> None:
        """What else is wrong with this variable, or is made of it, follows from a problem that is known."""
        self._at_fault.add((host, variable))

    def is_blamed(self, host: str, variable: str) -> bool:
        """Whether a problem of this host's variable is known."""
        return (host, variable) in self._at_fault

    def add_unresolved(self, host: str, shown: str, cause: str, reads: frozenset[str]) -> None:
        """A variable (with its place) whose template fails, and all that it reads."""
        self._unresolved.append((host, shown, cause, reads))

    def problems(self) -> list[Problem]:
        """All of them: those of values, then those of templates, where all that fail for one cause share a line."""
        found = [
            Problem(message, fix, tuple(hosts), where=where) for (message, fix, where), hosts in self._hosts.items()
        ]
        hosts: dict[str, dict[str, None]] = defaultdict(dict)
        variables: dict[str, dict[str, None]] = defaultdict(dict)
        for host, shown, cause, reads in self._unresolved:
            if not any(self.is_blamed(host, read) for read in reads):
                hosts[cause][host] = None
                variables[cause][shown] = None
        for cause, names in variables.items():
            more = f" and {len(names) - 1} more that follow from it" if len(names) > 1 else ""
            message = f"{next(iter(names))}{more} cannot be resolved: {cause.rstrip('.')}"
            found.append(Problem(message, "set the variable that it refers to, or correct it", tuple(hosts[cause])))
        return found


def _roles_of(play: Any) -> Iterator[Any]:
    """The play's roles in order, each behind the roles it depends on."""
    for role in play.roles:
        yield from role.get_all_dependencies()
        yield role


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
        self._templates = self._templar.copy_with_new_env()
        self._resolver = Resolver(self._templates)
        plays = self._plays(arguments["playbook"])
        # Where one role of the plays lies are others, whose variables a play without them must not be given misspelt.
        roots = list(dict.fromkeys(Path(role.get_role_path()).parent for play in plays for role in _roles_of(play)))
        try:
            specs = load_role_specs(roots)
        except FleetError as error:
            raise AnsibleActionFail(str(error)) from error
        defaults = self._fleet_defaults(roots)
        self._foreign: dict[str, str] = {}
        problems = self._inventory_problems(plays, defaults)
        problems += self._variable_problems(plays, specs, problems)
        result["changed"] = False
        if self._display.verbosity:
            result["foreign_variables"] = self._foreign
        if problems:
            sources = ", ".join(str(source) for source in self._inventory._sources)
            title = f"The inventory {sources} is not usable, nothing was touched"
            result.update(failed=True, msg=report(title, problems))
        else:
            result["msg"] = f"{len(self._all_hosts())} hosts and {len(specs)} roles checked"
        return result

    def _fleet_defaults(self, roots: list[Path]) -> Mapping[str, Any]:
        """The fleet role's defaults, below every variable of the inventory."""
        for root in roots:
            path = root / FLEET / "defaults" / "main.yml"
            if path.exists():
                return self._loader.load_from_file(str(path), trusted_as_template=True) or {}
        return {}

    def _plays(self, playbook: str) -> list[Any]:
        try:
            return Playbook.load(playbook, variable_manager=self._manager, loader=self._loader).get_plays()
        except AnsibleError as error:
            raise AnsibleActionFail(f"the playbook {playbook} cannot be loaded: {error}") from error

    def _all_hosts(self) -> list[Any]:
        return list(self._inventory.get_hosts("all", ignore_limits=True, ignore_restrictions=True))

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
            self._templates.available_variables = self._manager.get_vars(play=play)
            return str(self._templates.template(play.hosts))
        except AnsibleError:
            return ""

    def _inventory_problems(self, plays: list[Any], defaults: Mapping[str, Any]) -> list[Problem]:
        findings = Findings()
        values: dict[str, dict[str, Any]] = {}
        variables: dict[str, Variables] = {}
        for host in self._all_hosts():
            raw = {**defaults, **self._manager.get_vars(host=host)}
            variables[host.name] = Variables(raw, self._resolver)
            values[host.name] = self._resolve(variables[host.name])
        names = {name for found in variables.values() for name in found.raw if name.startswith(f"{FLEET}_")}
        for name in sorted(names - PER_HOST):
            self._same_everywhere(name, variables, findings)
        first = next(iter(values.values()), {})
        inventory = Inventory(
            groups={name: [host.name for host in group.get_hosts()] for name, group in self._inventory.groups.items()},
            addresses={host: found.get("fleet_address") or found.get("ansible_host") for host, found in values.items()},
            pod_ranges={host: found.get("pod_network_range") for host, found in values.items()},
            fleet={name: value for name, value in first.items() if name.startswith(f"{FLEET}_")},
            patterns=[pattern for play in plays if (pattern := self._pattern(play))],
        )
        located = []
        for problem in check(inventory):
            owner = variables.get(problem.hosts[0] if problem.hosts else next(iter(variables), ""))
            where = owner.origin(problem.variable) if owner and problem.variable else ""
            if not where and problem.hosts:
                where = origin_of(*(host.name for host in self._all_hosts() if host.name == problem.hosts[0]))
            located.append(Problem(problem.message, problem.fix, problem.hosts, problem.variable, where))
        return [*located, *findings.problems()]

    @staticmethod
    def _resolve(variables: Variables) -> dict[str, Any]:
        """What the inventory rules read; what cannot be resolved is the roles' check's to report."""
        found: dict[str, Any] = {}
        for name in variables.raw:
            if name.startswith(f"{FLEET}_") or name in HOST_VARIABLES:
                try:
                    found[name] = variables.value(name)
                except AnsibleError:
                    continue
        return found

    @staticmethod
    def _same_everywhere(name: str, variables: Mapping[str, Variables], findings: Findings) -> None:
        """A fleet-wide variable with another value on some host builds two fleets."""
        values = {host: repr(found.raw.get(name)) for host, found in variables.items()}
        usual, count = Counter(values.values()).most_common(1)[0]
        if count == len(values):
            return
        model = next(host for host, value in values.items() if value == usual)
        for host, value in values.items():
            if value != usual:
                findings.add(
                    host,
                    f"{name} differs from its value on {model}, but the whole fleet has one value for it",
                    "set it once, in group_vars/all",
                    variables[host].origin(name),
                )

    def _variable_problems(
        self, plays: list[Any], specs: Mapping[str, RoleSpec], known: Iterable[Problem]
    ) -> list[Problem]:
        """Names that no role knows, then what is wrong with those that one does and does not follow from `known`."""
        findings = Findings()
        everywhere = ["localhost", *(host.name for host in self._all_hosts())]
        for problem in known:
            for host in problem.hosts or everywhere:
                findings.blame(host, problem.variable)
        self._check_names(plays, specs, findings)
        self._check_roles(plays, specs, findings)
        return findings.problems()

    def _check_names(self, plays: list[Any], specs: Mapping[str, RoleSpec], findings: Findings) -> None:
        # The controller too, which no group has to list.
        hosts = {host.name: host for host in [*self._all_hosts(), self._inventory.get_host("localhost")]}
        places: Iterable[tuple[str, Mapping[str, Any]]] = itertools.chain(
            ((name, self._manager.get_vars(host=host, include_hostvars=False)) for name, host in hosts.items()),
            ((f"play {play.get_name()!r}", play.get_vars()) for play in plays),
        )
        names = known_names(specs, ansible_names())
        for host, raw in places:
            for name, value in raw.items():
                unknown = unknown_variable(str(name), specs, names)
                if unknown is not None:
                    findings.add(host, unknown.message, unknown.fix, origin_of(name, value))
                    # The variable that was meant is missing, which is no second problem.
                    findings.blame(host, unknown.suggestion)
                elif name not in self._foreign and is_foreign(str(name), specs):
                    self._foreign[str(name)] = origin_of(name, value)

    def _check_roles(self, plays: list[Any], specs: Mapping[str, RoleSpec], findings: Findings) -> None:
        checked: dict[tuple[str, str, str], list[str]] = {}
        for play in plays:
            roles = [role for role in _roles_of(play) if role.get_name(include_role_fqcn=False) in specs]
            for host in self._hosts_of(play) if roles else []:
                raw = self._manager.get_vars(play=play, host=host)
                for role in roles:
                    name = role.get_name(include_role_fqcn=False)
                    options = specs[name].entries.get(role._from_files.get("tasks", "main"))
                    # The fleet role has no tasks: its one set of variables is for every play it is in.
                    options = options or (specs[name].options if name == FLEET else {})
                    own = {**raw, **role.vars, **role.get_role_params(), "role_path": role.get_role_path()}
                    variables = Variables(own, self._resolver)
                    self._check_role(host.name, name, options, variables, checked, findings)
                    for rule in ROLE_RULES.get(name, ()):
                        self._check_rule(host.name, rule, variables, findings)

    def _check_role(
        self,
        host: str,
        role: str,
        options: Mapping[str, Mapping[str, Any]],
        variables: Variables,
        checked: dict[tuple[str, str, str], list[str]],
        findings: Findings,
    ) -> None:
        for name in missing_options(options, variables.raw):
            if not findings.is_blamed(host, name):
                findings.add(
                    host, f"role {role} needs {name}, which is not set", f"set {name} in the inventory", "", name
                )
        for name in options:
            if name not in variables.raw:
                continue
            where = variables.origin(name)
            try:
                value = variables.value(name)
            except AnsibleError as error:
                findings.add_unresolved(host, f"{name} ({where})" if where else name, str(error), variables.reads(name))
                continue
            # Most hosts of a group share most values: each is validated once.
            key = (role, name, repr(value))
            if key not in checked:
                checked[key] = value_errors(name, options[name], value)
            for message in checked[key]:
                findings.add(host, f"role {role}: {message}", f"correct {name}", where, name)

    @staticmethod
    def _check_rule(host: str, rule: RoleRule, variables: Variables, findings: Findings) -> None:
        try:
            values = [variables.value(name) for name in rule.variables]
        except (KeyError, AnsibleError):
            return  # reported as missing or unresolved
        for message, fix in rule.check(*values):
            findings.add(host, message, fix, variables.origin(rule.blamed), rule.blamed)
