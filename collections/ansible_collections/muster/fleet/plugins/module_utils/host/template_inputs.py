"""Which variables a template reads, so that hosts with equal inputs are templated once.

Ansible compiles a template anew for every host (about a millisecond); a fleet's hosts share most values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes

# The same for every host of one run.
SHARED = frozenset({"hostvars", "groups"})
LOOKUPS = frozenset({"lookup", "query", "q"})
# Lookups that read only their arguments; others (`vars`, `template`) may read any variable.
PLAIN_LOOKUPS = frozenset({"env", "file", "ansible.builtin.env", "ansible.builtin.file"})

Key = tuple[tuple[str, str], ...]


@functools.lru_cache(maxsize=4096)
def names_in(text: str) -> frozenset[str] | None:
    """The variables that one template text reads; None when it cannot be known from the text."""
    try:
        tree = jinja2.Environment(autoescape=False).parse(text)
    except jinja2.TemplateSyntaxError:
        return None
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in LOOKUPS:
            first = call.args[0] if call.args else None
            if not isinstance(first, nodes.Const) or first.value not in PLAIN_LOOKUPS:
                return None
    # A superset: names that the template itself sets are in it, which costs a key and no more.
    names = frozenset(name.name for name in tree.find_all(nodes.Name) if name.ctx == "load")
    return None if "vars" in names else names - LOOKUPS


def names_of(value: Any) -> frozenset[str] | None:
    """The variables that a value of any type reads."""
    if isinstance(value, str):
        return names_in(str(value)) if "{" in value else frozenset()
    items: list[Any] = []
    if isinstance(value, Mapping):
        items = [part for pair in value.items() for part in pair]
    elif isinstance(value, (list, tuple)):
        items = list(value)
    found: set[str] = set()
    for item in items:
        names = names_of(item)
        if names is None:
            return None
        found |= names
    return frozenset(found)


def inputs(name: str, variables: Mapping[str, Any]) -> Key | None:
    """A key of all that the variable's value depends on, itself included; None when it cannot be known."""
    found: dict[str, str] = {}
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in found or current in SHARED:
            continue
        if current not in variables:
            found[current] = "(undefined)"
            continue
        found[current] = repr(variables[current])
        names = names_of(variables[current])
        if names is None:
            return None
        waiting.extend(names)
    return tuple(sorted(found.items()))


def closure(
    names: Iterable[str], variables: Mapping[str, Any], further: Mapping[str, frozenset[str] | None]
) -> frozenset[str] | None:
    """All variables that the named ones are made of, themselves included; None when it cannot be known.

    `further` says for some variables what other values of theirs, on other hosts, read.
    """
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        current = waiting.pop()
        if current in found or current in SHARED:
            continue
        found.add(current)
        for read in (names_of(variables.get(current)), further.get(current, frozenset())):
            if read is None:
                return None
            waiting.extend(read)
    return frozenset(found)
