"""The rooms of the collection's plugins: who may import whom, among themselves and of gpu_burnin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.rooms import circular_modules, imports_of, pairs_of, refused, taken_from

PACKAGE = "ansible_collections.muster.fleet.plugins"
ROOT = Path(__file__).resolve().parents[3] / "collections" / Path(*PACKAGE.split("."))
UTILS = "module_utils"
# What every module and plugin shares: its error, and the entry point that ends the task.
HALL = "module_utils.fleet_module"


def _may(*rooms: str) -> frozenset[str]:
    return frozenset(rooms) | {HALL}


# From the top. A pair of rooms that are there may go, and none may come; a new room brings its row, with its reason.
ALLOWED: Mapping[str, frozenset[str]] = {
    "callback": _may("filter", "plugin_utils", "preflight"),
    # kube: an upgrade is judged where its plays run, as drivers and repairs are.
    "action": _may("kube", "modules", "plugin_utils", "preflight"),
    "filter": _may("host", "jobs", "plugin_utils", "preflight"),
    "inventory": _may("plugin_utils", "preflight"),
    "modules": _may("doc_fragments", "etcd", "host", "jobs", "kube", "nvidia", "pki", "preflight", "tuning"),
    # On the controller, beside ansible-core.
    "plugin_utils": _may("host", "jobs", "pki", "preflight"),
    "kube": _may("host", "nvidia", "pki", "preflight"),
    "preflight": _may("host", "jobs", "nvidia"),
    # Teams: the inventory check, the module that writes them and the admitter's settings read them alike.
    "jobs": _may("host"),
    "tuning": _may("nvidia"),
    "etcd": _may("host"),
    "pki": _may("host"),
    "nvidia": _may("host"),
    "host": _may(),
    "doc_fragments": frozenset(),
    HALL: frozenset(),
}
# Of gpu_burnin. What runs on a host of the fleet has none of it there: modules and `preflight` import it where they run
# on the controller.
OF_GPU_BURNIN: Mapping[str, frozenset[str]] = {
    # fleet: what changes a running fleet is decided there, phase by phase (plugin_utils/roll.py).
    "action": frozenset({"admission", "errors", "fleet", "power", "system"}),
    "callback": frozenset({"errors", "fleet", "report", "system"}),
    # scaler: what its numbers are where nobody gives them.
    "filter": frozenset({"admission", "fleet", "hardware", "scaler"}),
    "modules": frozenset({"admission", "api", "errors", "fleet", "power", "system"}),
    # What the ledger has of a node; ledger_nodes.py, on the controller.
    "kube": frozenset({"admission", "api", "system"}),
    # The levels and models that there are, the names that are in use, and the one client of the API.
    "jobs": frozenset({"admission", "api", "hardware"}),
    "plugin_utils": frozenset({"checks", "errors", "fleet", "settings", "system"}),
    "preflight": frozenset({"admission", "api", "fleet", "system"}),
}


def room_of(module: str) -> str:
    kind, _, rest = module.partition(".")
    return (module if "." not in rest and module == HALL else rest.partition(".")[0]) if kind == UTILS else kind


def modules() -> dict[str, frozenset[str]]:
    return imports_of(ROOT, PACKAGE)


def test_module_utils_has_rooms_and_one_module_for_all() -> None:
    assert [path.stem for path in (ROOT / UTILS).glob("*.py")] == [HALL.partition(".")[2]]


def test_every_room_has_its_row() -> None:
    assert {room_of(module) for module in modules()} == set(ALLOWED)


def test_a_room_imports_what_its_row_allows_and_no_row_allows_more() -> None:
    there = pairs_of(modules(), room_of)
    assert refused(there, ALLOWED) == []
    unused = {(room, target) for room, targets in ALLOWED.items() for target in targets if (room, target) not in there}
    assert {pair for pair in unused if pair[1] not in (HALL, "doc_fragments")} == set()


def test_rows_go_from_the_top_down_and_no_module_imports_itself_by_way_of_others() -> None:
    order = list(ALLOWED)
    up = [(a, b) for a, targets in ALLOWED.items() for b in targets if order.index(b) <= order.index(a)]
    assert up == [] == circular_modules(modules())


def test_what_is_taken_of_gpu_burnin_is_in_the_table() -> None:
    found: dict[str, set[str]] = {}
    for module, rooms in taken_from(ROOT, "gpu_burnin").items():
        if rooms:
            found.setdefault(room_of(module), set()).update(rooms)
    assert found == {room: set(rooms) for room, rooms in OF_GPU_BURNIN.items()}
