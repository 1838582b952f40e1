"""Values of variables on the controller: templated once for equal inputs, compiled once, and traced to their line."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any

# ansible-core is pinned to 2.19: the file and line of a value, and the environment that compiles, have no public name.
from ansible._internal._datatag._tags import Origin
from ansible._internal._templating._jinja_bits import AnsibleEnvironment, _TemplateCompileContext
from ansible.errors import AnsibleError
from ansible.vars.hostvars import HostVars, HostVarsVars
from ansible_collections.muster.fleet.plugins.module_utils.host.template_inputs import Key, inputs
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_specs import has_template
from ansible_collections.muster.fleet.plugins.plugin_utils.secrets import is_secret, opened


class _Environment(AnsibleEnvironment):
    """Compiles each text once; Ansible does it again for every host, which is most of the time of a template."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._compiled: dict[tuple[str, bool], CodeType] = {}

    def compile(self, source: Any, *arguments: Any, **settings: Any) -> Any:
        """As jinja2's."""
        # An overlay has its own syntax, and a parsed tree is no key.
        if self.overlayed or arguments or settings or not isinstance(source, str):
            return super().compile(source, *arguments, **settings)
        context = _TemplateCompileContext.current(optional=True)
        key = (str(source), bool(context and context.escape_backslashes))
        if key not in self._compiled:
            self._compiled[key] = super().compile(source)
        return self._compiled[key]


class Resolver:
    """Templates values, each set of equal inputs once. `templar` is an action's."""

    def __init__(self, templar: Any) -> None:
        self._templar = templar.copy_with_new_env()
        self._templar._engine._environment = _Environment(ansible_basedir=templar.basedir)
        self._done: dict[Key, Any] = {}
        self._hostvars: tuple[Any, Any] | None = None

    def template(self, value: Any, variables: Mapping[str, Any]) -> Any:
        """Any value with its templates resolved. Raises AnsibleError."""
        if "hostvars" in variables:
            if self._hostvars is None or self._hostvars[0] is not variables["hostvars"]:
                self._hostvars = variables["hostvars"], _remembering(variables["hostvars"])
            variables = {**variables, "hostvars": self._hostvars[1]}
        self._templar.available_variables = variables
        return self._templar.template(value)

    def resolve(self, name: str, raw: Mapping[str, Any]) -> Any:
        """The value of one variable among `raw`. Raises AnsibleError."""
        key = inputs(name, raw)
        if key is not None and key in self._done:
            value = self._done[key]
        else:
            try:
                value = self.template(raw[name], raw)
            except AnsibleError as error:
                value = error
            if key is not None:
                self._done[key] = value
        if isinstance(value, AnsibleError):
            raise value
        return value


def _remembering(hostvars: Any) -> Any:
    """Ansible's hostvars, which ask for the variables of each host once: thousands of hosts read those of a few."""
    if not isinstance(hostvars, HostVars):
        return hostvars
    same = copy.copy(hostvars)
    same.raw_get = functools.lru_cache(maxsize=256)(hostvars.raw_get)
    return same


class CompiledOnce(Mapping[str, Any]):
    """Ansible's hostvars for a look at thousands of hosts: a template that many share is compiled once for all."""

    def __init__(self, hostvars: HostVars) -> None:
        self._hostvars = hostvars
        self._environment = _Environment(ansible_basedir=hostvars._loader.get_basedir())

    def __getitem__(self, host: str) -> Any:
        found = self._hostvars[host]
        if isinstance(found, HostVarsVars):
            found._templar._environment = self._environment
        return found

    def __contains__(self, host: object) -> bool:
        return host in self._hostvars

    def __iter__(self) -> Iterator[str]:
        return iter(self._hostvars)

    def __len__(self) -> int:
        return len(self._hostvars)


def compiled_once(hostvars: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same variables, as CompiledOnce when they are Ansible's own."""
    return CompiledOnce(hostvars) if isinstance(hostvars, HostVars) else hostvars


class Variables:
    """One host's variables; values are templated when read, and plain ones are not."""

    def __init__(self, raw: Mapping[str, Any], resolver: Resolver) -> None:
        self.raw = raw
        self._resolver = resolver

    def value(self, name: str) -> Any:
        """The variable's value. Raises KeyError, and AnsibleError when its template cannot be resolved."""
        value = opened(self.raw[name]) if is_secret(self.raw[name]) else self.raw[name]
        return self._resolver.resolve(name, self.raw) if has_template(value) else value

    def reads(self, name: str) -> frozenset[str]:
        """The variables that the value is made of, as far as that is known."""
        return frozenset(read for read, _ in inputs(name, self.raw) or ())

    def is_secret(self, name: str) -> bool:
        """Whether something that the value is made of is encrypted, so that the value must not be shown."""
        return any(is_secret(self.raw.get(read)) for read in {name, *self.reads(name)})

    def origin(self, name: str) -> str:
        """Where the variable is set."""
        key = next((key for key in self.raw if key == name), None)
        return origin_of(self.raw.get(name), key)


def origin_of(*values: Any) -> str:
    """File and line of the first value that knows its own, shown relative to the working folder."""
    for value in values:
        origin = Origin.get_tag(value)
        if origin is None:
            continue
        if origin.path is None:
            return str(origin.description or "").strip("<>")
        return place_of(origin.path, origin.line_num)
    return ""


def place_of(file: str, line: int | None = None) -> str:
    """The file, and its line if one is given, as a problem shows them."""
    return f"{_shown(file)}:{line}" if line else _shown(file)


@functools.cache
def _shown(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
