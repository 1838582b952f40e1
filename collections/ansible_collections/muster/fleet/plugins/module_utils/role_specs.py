"""Roles' argument_specs: which variable belongs to which role, what is missing, misspelt or mistyped."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import yaml_load
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.placeholders import Finding, placeholders
from ansible_collections.muster.fleet.plugins.module_utils.variable_names import KnownNames

# Closer than difflib's default: a wrong suggestion is worse than none.
SIMILAR = 0.7
# Ansible's sentence on keys that a dictionary's spec does not have; the keys that it names beside are of one of them.
_UNKNOWN_KEYS = re.compile(r"(?P<keys>[\w.-]+(?:, [\w.-]+)*)\. Supported parameters include: ")
# What Ansible itself gives every host, beside names that begin with ansible_ (its documentation: special variables).
MAGIC = frozenset(
    {
        "group_names",
        "groups",
        "hostvars",
        "inventory_dir",
        "inventory_file",
        "inventory_hostname",
        "inventory_hostname_short",
        "omit",
        "play_hosts",
        "playbook_dir",
        "role_name",
        "role_path",
    }
)


@dataclass(frozen=True)
class RoleSpec:
    """The options of one role by entry point."""

    name: str
    entries: Mapping[str, Mapping[str, Mapping[str, Any]]]

    @property
    def options(self) -> dict[str, Mapping[str, Any]]:
        """Every option of every entry point."""
        return {name: option for entry in self.entries.values() for name, option in entry.items()}


def _read_yaml(path: Path) -> Any:
    try:
        return yaml_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise FleetError(f"{path}: cannot be read as YAML ({str(error).splitlines()[0]}); correct it") from error


def load_role_specs(roots: Iterable[Path]) -> dict[str, RoleSpec]:
    """The specs of all roles under these folders. A role without a spec has no rules. Raises FleetError."""
    specs: dict[str, RoleSpec] = {}
    for root in roots:
        for path in sorted(root.glob("*/meta/argument_specs.y*ml")):
            name = path.parent.parent.name
            data = _read_yaml(path)
            entries = data.get("argument_specs") if isinstance(data, dict) else None
            if not isinstance(entries, dict):
                raise FleetError(f"{path}: has no dictionary argument_specs; add it")
            options = {entry: (value or {}).get("options") or {} for entry, value in entries.items()}
            specs.setdefault(name, RoleSpec(name, options))
    return specs


def owner_of(variable: str, roles: Iterable[str]) -> str | None:
    """The role whose prefix the variable has; the longest name wins (etcd_backup before etcd)."""
    owners = [role for role in roles if variable == role or variable.startswith(f"{role}_")]
    return max(owners, key=len, default=None)


@dataclass(frozen=True)
class UnknownVariable:
    """A name that has a role's prefix and is unknown to that role, or that is a slip of a known name."""

    name: str
    owner: str
    suggestion: str
    is_claimed: bool

    @property
    def message(self) -> str:
        """What is wrong with it."""
        return f"{self.name} is not a variable of {self.owner}"

    @property
    def fix(self) -> str:
        """What to do about it."""
        if not self.suggestion:
            return f"see its variables in {self.owner.replace('role ', 'roles/')}/README.md"
        whose = "Muster" if self.owner.startswith("role ") else self.owner
        own = "" if self.is_claimed else f" If it is your own, rename it: it is too close to one of {whose}'s"
        return f"did you mean {self.suggestion}?{own}"


def known_names(specs: Mapping[str, RoleSpec], others: Iterable[str]) -> KnownNames:
    """Every option of every role, and `others`, which are Ansible's own."""
    return KnownNames({*others, *(name for spec in specs.values() for name in spec.options)})


def unknown_variable(variable: str, specs: Mapping[str, RoleSpec], names: KnownNames) -> UnknownVariable | None:
    """The finding for one name, or None when its role knows it, or nobody claims it and it is like no known name."""
    role = owner_of(variable, specs)
    if role is None:
        meant = names.meant_by(variable)
        owner = owner_of(meant, specs)
        return UnknownVariable(variable, f"role {owner}" if owner else "Ansible", meant, False) if meant else None
    if variable in specs[role].options:
        return None
    # The slip may be in the prefix itself, so the nearest name of any role counts.
    every = [name for spec in specs.values() for name in spec.options]
    near = difflib.get_close_matches(variable, every, n=1, cutoff=SIMILAR)
    return UnknownVariable(variable, f"role {role}", near[0] if near else "", True)


def is_foreign(variable: str, specs: Mapping[str, RoleSpec]) -> bool:
    """Whether the name is the site's own: no role's and not Ansible's."""
    return owner_of(variable, specs) is None and variable not in MAGIC and not variable.startswith("ansible_")


def value_errors(name: str, option: Mapping[str, Any], value: Any) -> list[str]:
    """What is wrong with one value by its option's spec; a secret's value is never repeated."""
    if isinstance(value, str) and option.get("type", "str") == "str" and not option.get("choices"):
        return []  # a text is a text: Ansible's validator would copy the spec for each of thousands of addresses
    validator = ArgumentSpecValidator({name: dict(option)})
    result = validator.validate({name: value}, validate_role_argument_spec=True)
    if not result.error_messages:
        return []
    if option.get("no_log"):
        return [f"{name} does not fit its type {option.get('type', 'str')} (value withheld: it is a secret)"]
    return [_shorten(message, option) for message in result.error_messages]


def option_findings(role: str, name: str, option: Mapping[str, Any], value: Any, *, is_default: bool) -> list[Finding]:
    """What is wrong with one option's value by its spec, and what of it is a placeholder.

    A default is made of other variables, which are looked at themselves.
    """
    errors = [(f"role {role}: {message}", f"correct {name}") for message in value_errors(name, option, value)]
    return errors if is_default else [*errors, *placeholders(name, value)]


def missing_options(options: Mapping[str, Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """The required options that no variable sets."""
    present = set(names)
    return [name for name, option in options.items() if option.get("required") and name not in present]


def has_template(value: Any) -> bool:
    """Whether some text in the value may need templating."""
    if isinstance(value, str):
        return "{{" in value or "{%" in value or "{#" in value
    if isinstance(value, Mapping):
        return any(has_template(item) for pair in value.items() for item in pair)
    if isinstance(value, (list, tuple)):
        return any(has_template(item) for item in value)
    return False


def _shorten(message: str, option: Mapping[str, Any]) -> str:
    """Ansible's sentence without Python's class names; for unknown keys a sentence of ours."""
    if match := _UNKNOWN_KEYS.match(message):
        return "; ".join(_unknown_key(key, option) for key in match["keys"].split(", "))
    return message.replace("<class '", "").replace("'>", "").rstrip(".")


def _unknown_key(path: str, option: Mapping[str, Any]) -> str:
    """What to write in place of a key such as `gpu_burnin_expect.gpu`."""
    _, *parents, key = path.split(".")
    for parent in parents:
        option = (option.get("options") or {}).get(parent) or {}
    known = sorted(option.get("options") or {})
    near = difflib.get_close_matches(key, known, n=1)
    meant = f"did you mean {near[0]}?" if near else f"its keys are {', '.join(known)}"
    return f"{path} is unknown; {meant}"
