"""Every role's options for every host that a play gives the role: each distinct input is judged once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.errors import AnsibleError
from ansible_collections.muster.fleet.plugins.module_utils.host.template_inputs import closure
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_rules import ROLE_RULES, Finding, RoleRule
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_specs import (
    RoleSpec,
    missing_options,
    option_findings,
)
from ansible_collections.muster.fleet.plugins.plugin_utils import burnin_rules
from ansible_collections.muster.fleet.plugins.plugin_utils.findings import Findings
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables, HostClass, Scope
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver, Variables

# The role that has variables and no tasks: its one set of options is for every play it is in.
FLEET = "fleet"
# The rules between variables of each role, and what the burn-in's own readers refuse.
RULES: Mapping[str, tuple[RoleRule, ...]] = {
    **ROLE_RULES,
    burnin_rules.ROLE: (*ROLE_RULES[burnin_rules.ROLE], *burnin_rules.burnin_rules()),
}
# Hosts that are checked between two looks at the clock.
BATCH = 250


@dataclass(eq=False)
class Inputs:
    """What variables of one scope are made of, so that hosts with equal inputs are looked at once."""

    scope: Scope
    names: Sequence[str]
    # None: it cannot be known, and every host is looked at.
    read: frozenset[str] | None = field(init=False)

    def __post_init__(self) -> None:
        further = {name: read for name, read in self.scope.members.reads.items() if name in self.scope.may_set}
        self.read = closure(self.names, self.scope.shared, further)

    @property
    def key(self) -> object:
        """Equal for scopes of one class in which the variables have the same values."""
        if self.read is None:
            return object()
        scope = self.scope
        values = tuple((name, name in scope.may_set, repr(scope.shared.get(name))) for name in sorted(self.read))
        return scope.members, tuple(self.names), values

    def alike(self, hosts: Iterable[str]) -> Iterator[tuple[object, list[str]]]:
        """The hosts by their inputs, and a key of those within this scope."""
        if self.read is None:
            yield from ((object(), [host]) for host in hosts)
            return
        own = self.scope.members.own
        varying = sorted(self.read & self.scope.may_set)
        found: dict[object, list[str]] = {}
        for host in hosts:
            key = tuple(_comparable(own[host], name) for name in varying)
            found.setdefault(key, []).append(host)
        yield from found.items()


def _comparable(own: Mapping[str, Any], name: str) -> object:
    value = own.get(name)
    # Texts as they are; anything else as Python writes it, apart from texts (1 is not "1").
    return value if isinstance(value, str) else (name in own, repr(value))


@dataclass(eq=False)
class _Question:
    """A question about the hosts of a class; `judge` answers it for one host, `report` reports that answer for each."""

    inputs: Inputs
    judge: Callable[[Variables], Any]
    report: Callable[[str, Any, Scope], None]
    answers: dict[object, Any] = field(default_factory=dict)

    def ask(self, hosts: Sequence[str], resolver: Resolver) -> None:
        """Judge these hosts, those with equal inputs once."""
        for key, alike in self.inputs.alike(hosts):
            if key not in self.answers:
                self.answers[key] = self.judge(Variables(self.inputs.scope.of(alike[0]), resolver))
            if self.answers[key]:
                for host in alike:
                    self.report(host, self.answers[key], self.inputs.scope)


@dataclass(frozen=True)
class _Unresolved:
    cause: str
    reads: frozenset[str]


_MISSING = object()


class RoleCheck:
    """Asks for each play, role and class of hosts; `specs` are the roles', findings go to `findings`."""

    def __init__(
        self, variables: FleetVariables, resolver: Resolver, specs: Mapping[str, RoleSpec], findings: Findings
    ) -> None:
        self._variables = variables
        self._resolver = resolver
        self._specs = specs
        self._findings = findings
        self._questions: dict[HostClass, list[_Question]] = {}
        self._asked: set[object] = set()
        self._valid: dict[tuple[str, str, str, bool], list[Finding]] = {}

    def add_play(self, play: Any, hosts: Sequence[Any]) -> None:
        """Note what there is to ask of the hosts of one play."""
        roles = [role for role in roles_of(play) if role.get_name(include_role_fqcn=False) in self._specs]
        for members in self._variables.classes(hosts, play) if roles else []:
            scope = self._variables.scope(members, play)
            for role in roles:
                above = {**role.vars, **role.get_role_params(), "role_path": role.get_role_path()}
                self._add_role(role, scope.below(above))

    def run(self, advance: Callable[[int], None]) -> None:
        """Ask all questions, host by host; `advance` is told how many hosts more are done."""
        left = {host: 0 for members in self._questions for host in members.hosts}
        for members in self._questions:
            for host in members.hosts:
                left[host] += 1
        for members, questions in self._questions.items():
            for start in range(0, len(members.hosts), BATCH):
                hosts = members.hosts[start : start + BATCH]
                for question in questions:
                    question.ask(hosts, self._resolver)
                for host in hosts:
                    left[host] -= 1
                advance(sum(not left[host] for host in hosts))

    def _add_role(self, role: Any, scope: Scope) -> None:
        name = role.get_name(include_role_fqcn=False)
        spec = self._specs[name]
        options = spec.entries.get(role._from_files.get("tasks", "main"))
        options = options or (spec.options if name == FLEET else {})
        present = scope.shared.keys() | scope.may_set
        for option in [*missing_options(options, present), *(option for option in options if option in present)]:
            self._add_option(name, option, options[option], scope)
        for rule in RULES.get(name, ()):
            self._add(
                (name, rule.blamed, id(rule)), Inputs(scope, rule.variables), rule_judge(rule), self._rule_tell(rule)
            )

    def _add_option(self, role: str, name: str, option: Mapping[str, Any], scope: Scope) -> None:
        def judge(variables: Variables) -> Any:
            if name not in variables.raw:
                return _MISSING if option.get("required") else None
            try:
                value = variables.value(name)
            except AnsibleError as error:
                return _Unresolved(str(error), variables.reads(name))
            # Most hosts of a group share most values: each is validated once.
            is_default = variables.raw[name] == option.get("default")
            key = (role, name, repr(value), is_default)
            if key not in self._valid:
                self._valid[key] = option_findings(role, name, option, value, is_default=is_default)
            if self._valid[key] and variables.is_secret(name):
                return option_findings(role, name, {**option, "no_log": True}, value, is_default=is_default)
            return self._valid[key]

        def report(host: str, answer: Any, scope: Scope) -> None:
            if answer is _MISSING:
                if not self._findings.is_blamed(host, name):
                    needs = f"role {role} needs {name}, which is not set"
                    self._findings.add(host, needs, f"set {name} in the inventory", "", name)
                return
            variables = Variables(scope.of(host), self._resolver)
            where = variables.origin(name)
            if isinstance(answer, _Unresolved):
                shown = f"{name} ({where})" if where else name
                self._findings.add_unresolved(host, shown, answer.cause, answer.reads)
                return
            for message, fix in answer:
                self._findings.add(host, message, fix, where, name, variables.reads(name))

        self._add((role, name, id(option)), Inputs(scope, (name,)), judge, report)

    def _rule_tell(self, rule: RoleRule) -> Callable[[str, Any, Scope], None]:
        def report(host: str, answer: Any, scope: Scope) -> None:
            variables = Variables(scope.of(host), self._resolver)
            where, reads = variables.origin(rule.blamed), variables.reads(rule.blamed)
            for message, fix in answer:
                self._findings.add(host, message, fix, where, rule.blamed, reads)

        return report

    def _add(
        self,
        subject: tuple[Any, ...],
        inputs: Inputs,
        judge: Callable[[Variables], Any],
        report: Callable[[str, Any, Scope], None],
    ) -> None:
        """The question, unless another play has asked it already of the same values."""
        key = (subject, inputs.key)
        if key not in self._asked:
            self._asked.add(key)
            self._questions.setdefault(inputs.scope.members, []).append(_Question(inputs, judge, report))


def rule_judge(rule: RoleRule) -> Callable[[Variables], Any]:
    """What the rule finds in the variables of a host; nothing where one is missing or cannot be resolved."""

    def judge(variables: Variables) -> Any:
        try:
            values = [variables.value(name) for name in rule.variables]
        except (KeyError, AnsibleError):
            return None  # reported as missing or unresolved
        found = list(rule.check(*values))
        if found and any(variables.is_secret(name) for name in rule.variables):
            return [(f"{rule.blamed} is not right (value withheld: it is a secret)", f"correct {rule.blamed}")]
        return found

    return judge


def roles_of(play: Any) -> Iterator[Any]:
    """The play's roles in order, each behind the roles it depends on."""
    for role in play.roles:
        yield from role.get_all_dependencies()
        yield role
