"""The rooms of gpu_burnin: what stands in the hall, that lower rooms know nothing of upper ones, and no circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import gpu_burnin

ROOT = Path(gpu_burnin.__file__).parent
# What anybody may know; `run` is one burn-in, above everything but those who ask for it; jobs copy `job`.
HALL = {"__init__", "__main__", "types", "errors", "job", "run"}
# From the top. Rooms of one floor do not know each other.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"__main__"}),
    frozenset({"cli"}),
    frozenset({"__init__"}),  # the public names, each imported when it is asked for
    frozenset({"fleet"}),
    frozenset({"admission"}),
    frozenset({"run"}),
    frozenset({"node"}),
    frozenset({"report"}),
    frozenset({"judge"}),
    frozenset({"engine"}),
    frozenset({"checks"}),
    frozenset({"telemetry"}),
    frozenset({"exact"}),
    frozenset({"device"}),
    frozenset({"hardware"}),
    frozenset({"settings"}),
    frozenset({"system"}),
    frozenset({"types", "errors", "job"}),
)
FLOOR_OF: Mapping[str, int] = {room: number for number, floor in enumerate(FLOORS) for room in floor}
# What the folder of a check takes from those of others: ports alone. Power copies as they do, and copies are copies.
CHECKS_ON_CHECKS: Mapping[str, frozenset[str]] = {
    "nvlink": frozenset({"pcie.port"}),
    "power": frozenset({"nvlink.port", "pcie.port"}),
}


def name_of(path: Path) -> str:
    """Its name below gpu_burnin: "judge.verdict"; "judge" and "__init__" for packages."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@cache
def modules() -> dict[str, frozenset[str]]:
    """All modules, each with those it imports anywhere: at its top, in its functions, and for types alone."""
    trees = {name_of(path): ast.parse(path.read_bytes()) for path in sorted(ROOT.rglob("*.py"))}
    return {name: frozenset(imported(tree, trees) - {name}) for name, tree in trees.items()}


def imported(tree: ast.AST, known: Mapping[str, object]) -> set[str]:
    return {name for node in statements(tree) for name in named(node, known)}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements of a module, the inner ones too: an import is one, and most of a tree is expressions."""
    left = [tree]
    while left:
        node = left.pop()
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, block, ())
        yield node


def named(node: ast.AST, known: Mapping[str, object]) -> Iterator[str]:
    """The modules of gpu_burnin in one import; of `from package import module` the module."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        # The version belongs to no room: the package is there before any of its modules.
        names = [f"{node.module}.{alias.name}" for alias in node.names if alias.name != "__version__"]
    else:
        return
    for name in names:
        package, _, rest = name.partition(".")
        if package == "gpu_burnin":
            yield next((part for part in (rest, rest.rpartition(".")[0]) if part in known), "__init__")


def room_of(module: str) -> str:
    return module.partition(".")[0]


def check_of(module: str) -> str | None:
    """The check whose folder a module stands in."""
    parts = module.split(".")
    return parts[1] if parts[0] == "checks" and len(parts) > 2 else None


def arrows() -> Iterator[tuple[str, str]]:
    for module, targets in modules().items():
        for target in sorted(targets):
            yield module, target


def test_imports_are_found_wherever_they_stand() -> None:
    lines = """
import gpu_burnin.a
def f():
    for _ in []:
        import gpu_burnin.b
    else:
        import gpu_burnin.c
class C:
    try:
        import gpu_burnin.d
    except* ValueError:
        with x: import gpu_burnin.e
    finally:
        async def g(): from gpu_burnin import f
match 1:
    case 1:
        if x: pass
        elif y: from gpu_burnin.g import h
        else:
            while x: from gpu_burnin.i.j import k
"""
    known = dict.fromkeys(("a", "b", "c", "d", "e", "f", "g", "i.j.k"))
    assert imported(ast.parse(lines), known) == set(known)


def test_the_hall_is_empty_but_for_what_everybody_shares() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == HALL
    assert {path.name for path in ROOT.iterdir() if path.is_file() and path.suffix != ".py"} == {"py.typed"}


def test_every_room_has_its_floor() -> None:
    assert {room_of(module) for module in modules()} == set(FLOOR_OF)


def test_lower_rooms_know_nothing_of_upper_ones() -> None:
    up = {
        (module, room_of(target))
        for module, target in arrows()
        if room_of(module) != room_of(target) and FLOOR_OF[room_of(module)] >= FLOOR_OF[room_of(target)]
    }
    assert up == set()


def test_a_check_builds_on_another_only_where_that_is_said() -> None:
    found: dict[str, set[str]] = {}
    for module, target in arrows():
        own, other = check_of(module), check_of(target)
        if own and other and own != other:
            found.setdefault(own, set()).add(target.removeprefix("checks."))
    assert found == {own: set(others) for own, others in CHECKS_ON_CHECKS.items()}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert [module for module in modules() if module in reached(module)] == []


def reached(module: str) -> set[str]:
    """All modules that it imports, itself or by way of others."""
    found: set[str] = set()
    left = [module]
    while left:
        new = modules()[left.pop()] - found
        found |= new
        left += new
    return found


def test_keys_of_the_domain_are_spelt_in_one_place() -> None:
    spelt = [path for path in ROOT.rglob("*.py") if "domain}/" in path.read_text()]
    assert spelt == [ROOT / "settings" / "names.py"]


def test_the_overview_lists_the_rooms_from_the_top() -> None:
    page = (ROOT.parent / "docs/overview.md").read_text()
    table = page.partition("## The rooms of")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(listed) == {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert listed == sorted(listed, key=FLOOR_OF.__getitem__)
