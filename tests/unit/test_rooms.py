"""The rooms of gpu_burnin: what stands in the hall, who may import whom, and no circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import gpu_burnin
from tests.support.rooms import circles, circular_modules, imported, imports_of, pairs_of, refused

ROOT = Path(gpu_burnin.__file__).parent
# What anybody may know; `run` is one burn-in, above everything but those who ask for it; jobs copy `job`.
HALL = {"__init__", "__main__", "types", "errors", "job", "run"}
_GROUND = frozenset({"types", "errors"})
MOST_LINES = 400


# The lower rooms of a machine: what it is, what it says, and what is written of it.
_LOW = ("api", "hardware", "settings", "system", "telemetry")


def _may(*rooms: str) -> frozenset[str]:
    return frozenset(rooms) | _GROUND


# Who may import whom, from the top: each room only rooms below it. A pair of rooms that are there may go, and none may
# come; a new room brings its row, with its reason, in the commit that makes it.
ALLOWED: Mapping[str, frozenset[str]] = {
    "__main__": _may("cli", "system"),
    "cli": _may(
        *("run", "fleet", "launch", "scaler", "admission", "node", "report", "judge", "engine", "checks", "fabric"),
        *_LOW,
    ),
    # The public names, each imported when it is asked for.
    "__init__": _may("engine", "judge", "report", "run", "settings"),
    "fleet": _may("admission", "api", "checks", "engine", "fabric", "hardware", "judge", "node", "report", "system"),
    # It keeps the ledger's rules by the admitter's own parts, and is another service with another credential.
    "scaler": _may("admission", "api", "power", "system"),
    # A researcher's machine has the API and nothing of the fleet: no SSH, no reports, nothing that computes.
    "launch": _may("admission", "api", "system"),
    # The admitter's host has neither numpy nor NVML: nothing that computes or looks at a GPU.
    "admission": _may("api", "fabric", "system"),
    "run": _may("checks", "engine", "hardware", "judge", "node", "report", "settings", "system", "telemetry"),
    "node": _may("job", "judge", "report", "engine", "checks", *_LOW),
    "report": _may("checks", "engine", "hardware", "judge", "settings", "system", "telemetry"),
    "judge": _may("checks", "engine", "hardware", "settings", "system", "telemetry"),
    "engine": _may("api", "checks", "device", "exact", "hardware", "system", "telemetry"),
    "checks": _may("device", "exact", "hardware", "settings", "system", "telemetry"),
    "telemetry": _may("hardware", "settings", "system"),
    "exact": _may("device", "system"),
    "device": _may("system"),
    "hardware": _may("system"),
    "settings": _may("api", "system"),
    # Redfish and programs: the repair ladder on the controller and the scaler on the API servers' hosts switch by it.
    "power": _GROUND,
    # By what the controller's and the admitter's tests between nodes are judged.
    "fabric": _may("api", "system"),
    # What crosses a border between node, cluster and controller stands where all three can read it.
    "api": _may("system"),
    "system": _may(),
    "types": frozenset(),
    "errors": frozenset(),
    "job": frozenset(),
}
ORDER = list(ALLOWED)
# What the folder of a check takes from those of others: ports alone. Power copies as they do, and copies are copies.
# Fabric is the same collectives between hosts: their payload, what is right of it, and sums of its types.
CHECKS_ON_CHECKS: Mapping[str, frozenset[str]] = {
    "fabric": frozenset({"nccl.cpu", "nccl.operations"}),
    "nvlink": frozenset({"pcie.port"}),
    "power": frozenset({"nvlink.port", "pcie.port"}),
}


def modules() -> dict[str, frozenset[str]]:
    return imports_of(ROOT, "gpu_burnin")


def room_of(module: str) -> str:
    return module.partition(".")[0]


def check_of(module: str) -> str | None:
    """The check whose folder a module stands in."""
    parts = module.split(".")
    return parts[1] if parts[0] == "checks" and len(parts) > 2 else None


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
    assert imported(ast.parse(lines), "gpu_burnin", known) == set(known)


def test_the_hall_is_empty_but_for_what_everybody_shares() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == HALL
    assert {path.name for path in ROOT.iterdir() if path.is_file() and path.suffix != ".py"} == {"py.typed"}


def test_every_room_has_its_row() -> None:
    assert {room_of(module) for module in modules()} == set(ALLOWED)


def test_a_room_imports_what_its_row_allows() -> None:
    assert refused(pairs_of(modules(), room_of), ALLOWED) == []


def test_the_table_allows_no_more_than_there_is() -> None:
    """A pair that has gone does not come back unseen."""
    there = pairs_of(modules(), room_of)
    unused = {(room, target) for room, targets in ALLOWED.items() for target in targets if (room, target) not in there}
    assert {pair for pair in unused if pair[1] not in _GROUND} == set()


def test_the_table_goes_from_the_top_down() -> None:
    up = [(a, b) for a, targets in ALLOWED.items() for b in targets if ORDER.index(b) <= ORDER.index(a)]
    assert up == [] == circles(ALLOWED)


def test_a_refused_import_says_where_the_thing_belongs() -> None:
    (said,) = refused({("admission", "node"): ["admission.view"]}, ALLOWED)
    assert said == (
        "admission.view may not import from node: what both need belongs in one of api, errors, system, types"
    )


def test_a_check_builds_on_another_only_where_that_is_said() -> None:
    found: dict[str, set[str]] = {}
    for module, targets in modules().items():
        for target in targets:
            own, other = check_of(module), check_of(target)
            if own and other and own != other:
                found.setdefault(own, set()).add(target.removeprefix("checks."))
    assert found == {own: set(others) for own, others in CHECKS_ON_CHECKS.items()}


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circular_modules(modules()) == []


def test_keys_of_the_domain_are_spelt_in_one_place() -> None:
    spelt = [path for path in ROOT.rglob("*.py") if "domain}/" in path.read_text()]
    assert spelt == [ROOT / "api" / "names.py"]


def test_no_module_is_longer_than_can_be_seen_as_a_whole() -> None:
    """Of all that is no test: the collection's modules, the services of roles, and the tools."""
    places = (ROOT.parent / place for place in ("gpu_burnin", "collections", "roles", "playbooks", "tools"))
    lines = {path: len(path.read_text().splitlines()) for place in places for path in place.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_the_overview_lists_the_rooms_from_the_top() -> None:
    page = (ROOT.parent / "docs/overview.md").read_text()
    table = page.partition("## The rooms of")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert set(listed) == {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert listed == sorted(listed, key=ORDER.index)
