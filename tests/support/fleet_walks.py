"""Expressions that walk the fleet's hosts: what a variable or task of one host must not do, since every host has it.

A walk goes over the hosts of a group of any size, or asks whether one is among them: `in`, a loop,
an addition or a filter of the whole list. To take a group as it is costs nothing, nor does its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jinja2
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import CONTROL_GROUPS
from jinja2 import nodes

# A few hosts, however large the fleet is.
SMALL = frozenset({*CONTROL_GROUPS, "monitoring"})
# All hosts of a play, of the fleet, or of one batch.
_ALL = frozenset({"ansible_play_hosts", "ansible_play_hosts_all", "ansible_play_batch", "play_hosts"})
# They give the list as it is, or a figure of it, without a look at its items.
_FREE = frozenset({"default", "d", "length", "count", "first", "last"})
_EXPRESSIONS = frozenset({"when", "that", "until", "changed_when", "failed_when", "loop"})


def texts(document: Any, key: str = "") -> Iterator[str]:
    """The templates in a YAML document; keywords that hold a bare expression are templates too."""
    if isinstance(document, Mapping):
        for name, value in document.items():
            yield from texts(value, str(name))
    elif isinstance(document, list):
        for value in document:
            yield from texts(value, key)
    elif isinstance(document, str):
        if "{{" in document or "{%" in document:
            yield document
        elif key in _EXPRESSIONS:
            yield f"{{{{ {document} }}}}"


def walks(text: str, small: frozenset[str] = frozenset()) -> list[str]:
    """What each walk of one template goes over; variables that hold the name of a `small` group count as such."""
    tree = jinja2.Environment(autoescape=False, extensions=["jinja2.ext.do"]).parse(text)
    found: list[str] = []
    for node in tree.find_all((nodes.Compare, nodes.Add, nodes.Filter, nodes.For, nodes.Call)):
        if isinstance(node, nodes.Compare):
            over: list[nodes.Node | None] = [one.expr for one in node.ops if one.op in ("in", "notin")]
            # Among the hosts of a small group it is no walk of all, and `group_names` answers it for less.
            if isinstance(node.expr, nodes.Name) and node.expr.name == "inventory_hostname":
                found += [f"inventory_hostname in {name}" for one in over if (name := _list(one, frozenset()))]
                continue
        elif isinstance(node, nodes.Add):
            over = [node.left, node.right]
        elif isinstance(node, nodes.Filter):
            over = [] if node.name in _FREE else [node.node]
        elif isinstance(node, nodes.For):
            over = [node.iter]
        else:
            # groups['all'].index(x), hostvars.values()
            over = [node.node.node] if isinstance(node.node, nodes.Getattr) else []
        found += [name for one in over if (name := _list(one, SMALL | small))]
    return found


def _list(node: nodes.Node | None, small: frozenset[str]) -> str:
    """The list of hosts that an expression is, as a whole; empty where it is none, or one of a small group."""
    while isinstance(node, nodes.Filter) and node.name in ("default", "d"):
        node = node.node
    if isinstance(node, nodes.CondExpr):
        return _list(node.expr1, small) or _list(node.expr2, small)
    if isinstance(node, nodes.Add):
        return _list(node.left, small) or _list(node.right, small)
    if isinstance(node, nodes.Name):
        return node.name if node.name in _ALL | {"hostvars"} else ""
    if isinstance(node, (nodes.Getitem, nodes.Getattr)) and isinstance(node.node, nodes.Name):
        if node.node.name != "groups":
            return ""
        if isinstance(node, nodes.Getattr):
            name = node.attr
        elif isinstance(node.arg, nodes.Const):
            name = str(node.arg.value)
        else:
            name = node.arg.name if isinstance(node.arg, nodes.Name) else "?"
        return "" if name in small else f"groups[{name}]"
    return ""
