"""Which module imports which, and which room each stands in, of a package of this repository."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path


@cache
def imports_of(root: Path, package: str) -> dict[str, frozenset[str]]:
    """All modules below `root`, named from there ("judge.verdict"; "judge" and "__init__" for packages).

    Each with those of `package` that it imports anywhere: at its top, in its functions, and for types alone.
    """
    trees = {name_of(root, path): ast.parse(path.read_bytes()) for path in sorted(root.rglob("*.py"))}
    return {name: frozenset(imported(tree, package, trees) - {name}) for name, tree in trees.items()}


@cache
def taken_from(root: Path, package: str) -> dict[str, frozenset[str]]:
    """All modules below `root`, each with the rooms of another package, such as gpu_burnin, that it imports from."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        names = (name for node in _statements(ast.parse(path.read_bytes())) for name in _imported_names(node))
        inside = (name.split(".") for name in names if name.startswith(f"{package}."))
        found[name_of(root, path)] = frozenset(parts[1] for parts in inside)
    return found


def name_of(root: Path, path: Path) -> str:
    """Its name below the root."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imported(tree: ast.AST, package: str, known: Mapping[str, object]) -> set[str]:
    """The modules of `package`, of those known, that the statements of a module import."""
    return {name for node in _statements(tree) for name in _named(node, package, known)}


def pairs_of(modules: Mapping[str, frozenset[str]], room_of: Callable[[str], str]) -> dict[tuple[str, str], list[str]]:
    """Who imports whom: pairs of rooms, each with the modules of the first that import the second."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, targets in modules.items():
        for room in {room_of(target) for target in targets} - {room_of(module)}:
            found.setdefault((room_of(module), room), []).append(module)
    return found


def refused(pairs: Mapping[tuple[str, str], list[str]], allowed: Mapping[str, frozenset[str]]) -> list[str]:
    """A sentence for each import that the table does not allow, with the rooms that could hold what both need."""
    return [
        f"{', '.join(modules)} may not import from {target}: what both need belongs in one of "
        f"{', '.join(sorted(allowed[room] & (allowed[target] | {target}))) or 'no room that is there'}"
        for (room, target), modules in sorted(pairs.items())
        if target not in allowed[room]
    ]


def circles(allowed: Mapping[str, frozenset[str]]) -> list[str]:
    """Rooms that reach themselves by way of others."""
    return [room for room in allowed if room in _reached(room, allowed)]


def circular_modules(modules: Mapping[str, frozenset[str]]) -> list[str]:
    """Modules that import themselves by way of others."""
    return [module for module in modules if module in _reached(module, modules)]


def _reached(start: str, arrows: Mapping[str, frozenset[str]]) -> set[str]:
    found: set[str] = set()
    left = [start]
    while left:
        new = arrows.get(left.pop(), frozenset()) - found
        found |= new
        left += new
    return found


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements of a module, the inner ones too: an import is one, and most of a tree is expressions."""
    left = [tree]
    while left:
        node = left.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, block, ())
        yield node


def _named(node: ast.AST, package: str, known: Mapping[str, object]) -> Iterator[str]:
    """The modules of the package in one import; of `from package import module` the module."""
    for name in _imported_names(node):
        if f"{name}.".startswith(f"{package}."):
            rest = name[len(package) + 1 :]
            yield next((part for part in (rest, rest.rpartition(".")[0]) if part in known), "__init__")


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    assert node.level == 0, "imports are absolute"
    # The version belongs to no room: the package is there before any of its modules.
    return [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"]
