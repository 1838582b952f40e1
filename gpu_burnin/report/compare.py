"""What changed between two reports: of one node over time, or of two nodes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpu_burnin.report import curves, peers
from gpu_burnin.report.model import Report
from gpu_burnin.report.units import finite, measured, without_name
from gpu_burnin.system.entries import mapping_of
from gpu_burnin.system.prose import STANDARD_WIDTH, short_uuids, wrap
from gpu_burnin.system.quantities import rate
from gpu_burnin.types import Gpu

SCHEMA = "muster-comparison/v1"
# Differences of a measurement up to this share are noise to a person; --json has them all.
_NOISE = 0.01
# Differences of one kind that a person reads.
_MAX_SHOWN = 24
# Pairs of GPUs that are named in one line.
_MAX_NAMED = 4
# By what was measured and its unit (None: no number): values by place.
_Table = dict[tuple[str, str | None], dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """One difference. `kind` is verdict, reason, warning, hardware, software, measurement, pair, collective, counter or
    coverage.

    `what` names it, `on` is the node, a GPU or a pair of them. `before` and `after` are None where a report does not
    have it, numbers in `unit`. `change` is (after - before) / before for numbers that allow it.
    """

    kind: str
    what: str
    on: str
    before: Any
    after: Any
    change: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two reports by their identity, and all differences."""

    before: Mapping[str, Any]
    after: Mapping[str, Any]
    changes: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"schema": SCHEMA, **asdict(self)}


def compare(before: Report, after: Report) -> Comparison:
    """All differences from `before` to `after`.

    A GPU of the one is a GPU of the other by its UUID, else (replaced, or another node) by its PCI address, else
    by its index.
    """
    names = _paired(before, after)
    changes = (
        *_verdicts(before, after, names),
        *_findings(before, after, names, "reason"),
        *_findings(before, after, names, "warning"),
        *_hardware(before, after, names),
        *_software(before, after),
        *_measurements(before, after, names),
        *_pairs(before, after, names),
        *_collectives(before, after),
        *_counters(before, after, names),
        *_coverage(before, after, names),
    )
    return Comparison(_identity(before), _identity(after), changes)


def render(found: Comparison, width: int = STANDARD_WIDTH) -> str:
    """The comparison for a person: the verdict first, then what appeared and went, then numbers."""
    old, new = found.before, found.after
    lines = [
        f"A  {old['node']}  {old['finished_at']}  level {old['level']}  {old['verdict']}",
        f"B  {new['node']}  {new['finished_at']}  level {new['level']}  {new['verdict']}",
    ]
    if not found.changes:
        return "\n".join([*lines, "", "Nothing differs."]) + "\n"
    for heading, kinds in (
        ("Verdicts", ("verdict",)),
        ("Reasons and warnings", ("reason", "warning")),
        ("Hardware", ("hardware",)),
        ("Software and settings", ("software",)),
        ("Measurements", ("measurement",)),
        ("Between GPUs", ("pair", "collective")),
        ("Counters (change during the run)", ("counter",)),
        ("Coverage", ("coverage",)),
    ):
        lines += _section(heading, [change for change in found.changes if change.kind in kinds], width)
    return "\n".join(lines) + "\n"


def _identity(report: Report) -> dict[str, Any]:
    keys = ("run_id", "node", "level", "started_at", "finished_at", "simulated", "verdict", "action")
    return {key: getattr(report, key) for key in keys}


# --- what a GPU of the one report is in the other ---


@dataclass(frozen=True)
class _Names:
    """Names of the GPUs of both reports by UUID; the same name is the same place. `single` are in one only."""

    old: Mapping[str, str]
    new: Mapping[str, str]
    single: frozenset[str]


def _paired(before: Report, after: Report) -> _Names:
    old, new = {_key(gpu): gpu for gpu in before.gpus}, {_key(gpu): gpu for gpu in after.gpus}
    names_old, names_new = {}, {}
    for uuid, gpu in old.items():
        names_old[uuid] = gpu.short
    for uuid, gpu in new.items():
        # Indices move when a GPU is gone; a card is still the same card.
        same = old.get(uuid)
        if same is None:
            left = [other for key, other in old.items() if key not in new]
            same = next((other for other in left if other.pci_bus_id == gpu.pci_bus_id), None)
            same = same or next((other for other in left if other.index == gpu.index), None)
        names_new[uuid] = (same or gpu).short
    return _Names(names_old, names_new, frozenset({*names_old.values()} ^ {*names_new.values()}))


def _key(gpu: Gpu) -> str:
    """A lost GPU has no UUID; its place on the bus names it."""
    return gpu.uuid or gpu.pci_bus_id


def _place(names: Mapping[str, str], uuid: str | None) -> str:
    return "node" if uuid is None else names.get(uuid, uuid)


def _differing(
    kind: str,
    what: str,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    single: frozenset[str] = frozenset(),
    unit: str | None = None,
) -> Iterator[Change]:
    """Changes of one thing by place: `old` and `new` have a value for each, numbers where a `unit` is given.

    A GPU that only one report has is listed once (hardware), not again by everything it has: `single`.
    """
    for place in dict.fromkeys([*old, *new]):
        a, b = old.get(place), new.get(place)
        if a != b and place not in single:
            both = unit is not None and a is not None and b is not None
            yield Change(kind, what, place, a, b, (b - a) / abs(a) if both and a else None, unit or "")


def _on_node(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Changes of facts of the node, by their names."""
    for name in dict.fromkeys([*old, *new]):
        yield from _differing(kind, name, {"node": old.get(name)}, {"node": new.get(name)})


def _each(kind: str, old: _Table, new: _Table, single: frozenset[str] = frozenset()) -> Iterator[Change]:
    """Changes of everything in two tables."""
    for what, unit in dict.fromkeys([*old, *new]):
        a, b = old.get((what, unit), {}), new.get((what, unit), {})
        yield from _differing(kind, what, a, b, single=single, unit=unit)


def _verdicts(before: Report, after: Report, names: _Names) -> Iterator[Change]:
    def of(report: Report, known: Mapping[str, str]) -> dict[str, Any]:
        return {"node": report.verdict, **{_place(known, _key(gpu)): gpu.verdict for gpu in report.gpus}}

    yield from _differing("verdict", "verdict", of(before, names.old), of(after, names.new), single=names.single)
    old, new = (
        {"action": report.action, "simulated": report.simulated, "interrupted": report.interrupted}
        for report in (before, after)
    )
    yield from _on_node("verdict", old, new)


def _findings(before: Report, after: Report, names: _Names, kind: str) -> Iterator[Change]:
    """Codes that appeared or went, by place; the message is that of the first of its kind."""

    def of(report: Report, known: Mapping[str, str]) -> dict[tuple[str, str], str]:
        found: dict[tuple[str, str], str] = {}
        for item in report.reasons if kind == "reason" else report.warnings:
            found.setdefault((item.code, _place(known, item.gpu)), without_name(report, item))
        return found

    old, new = of(before, names.old), of(after, names.new)
    for code, unit in dict.fromkeys([*old, *new]):
        a, b = old.get((code, unit)), new.get((code, unit))
        if a is None or b is None:
            yield Change(kind, code, unit, a, b)


def _hardware(before: Report, after: Report, names: _Names) -> Iterator[Change]:
    def of(report: Report, known: Mapping[str, str]) -> dict[str, str]:
        return {_place(known, _key(gpu)): f"{gpu.name} {gpu.pci_bus_id} {gpu.uuid}" for gpu in report.gpus}

    old_gpus, new_gpus = of(before, names.old), of(after, names.new)
    for place in sorted(names.single):
        yield Change("hardware", "card", place, old_gpus.get(place), new_gpus.get(place))
    for field in ("uuid", "serial", "pci_bus_id", "name", "sku", "memory_bytes", "vbios"):
        old = {_place(names.old, _key(gpu)): getattr(gpu, field) for gpu in before.gpus}
        new = {_place(names.new, _key(gpu)): getattr(gpu, field) for gpu in after.gpus}
        yield from _differing("hardware", field, old, new, single=names.single)
    old, new = ({"machine_id": one.host.machine_id, "hostname": one.host.hostname} for one in (before, after))
    yield from _on_node("hardware", old, new)
    yield from _on_node("hardware", before.host.dmi, after.host.dmi)
    yield from _on_node("hardware", before.host.bmc, after.host.bmc)


def _software(before: Report, after: Report) -> Iterator[Change]:
    yield from _on_node("software", before.software, after.software)
    old, new = (
        {"kernel": one.host.kernel, "boot_id": one.host.boot_id, "level": one.level, "backend": one.plan.get("backend")}
        for one in (before, after)
    )
    yield from _on_node("software", old, new)
    for group in ("shapes", "options"):
        # Where the grant of the waves is looked for is no setting of the test.
        old, new = (
            {name: value for name, value in mapping_of(one.plan, group).items() if name != "wave_dir"}
            for one in (before, after)
        )
        yield from _on_node("software", old, new)


def _measurements(before: Report, after: Report, names: _Names) -> Iterator[Change]:
    def of(report: Report, known: Mapping[str, str]) -> _Table:
        found: _Table = {}
        for check in report.checks:
            for item in check.measurements:
                gpu, name = measured(report, check, item.name)
                found.setdefault((name, item.unit), {})[_place(known, gpu)] = finite(item.value)
        return found

    yield from _each("measurement", of(before, names.old), of(after, names.new), names.single)


def _pairs(before: Report, after: Report, names: _Names) -> Iterator[Change]:
    """Rates of the copies between two GPUs, and pairs whose data was right in the one report and wrong in the other.

    Pairs with a GPU that only one report has are left out: the GPU is listed once.
    """

    def of(report: Report, known: Mapping[str, str]) -> _Table:
        found: _Table = {}
        matrix = peers.matrix_of(report)
        for transfer in matrix.transfers:
            gpu, peer, direction = transfer
            ends = _place(known, gpu), _place(known, peer)
            if {gpu, peer} <= {*known} and not names.single & {*ends}:
                on = f"{ends[0]} {'to' if direction == 'write' else 'from'} {ends[1]}"
                right = "right" if matrix.verified(transfer) else matrix.pair(transfer).why or "not looked at"
                found.setdefault((f"copy, {direction}", "B/s"), {})[on] = matrix.rate(transfer)
                found.setdefault((f"data, {direction}", None), {})[on] = "wrong" if matrix.wrong(transfer) else right
        return found

    yield from _each("pair", of(before, names.old), of(after, names.new))


def _collectives(before: Report, after: Report) -> Iterator[Change]:
    def of(report: Report) -> _Table:
        return {
            (f"{collective}, {algorithm}, bus bandwidth", "B/s"): {"node": max(points.values())}
            for (collective, algorithm), points in curves.busbw(report).items()
            if points
        }

    yield from _each("collective", of(before), of(after))


def _counters(before: Report, after: Report, names: _Names) -> Iterator[Change]:
    def of(report: Report, known: Mapping[str, str]) -> _Table:
        found: _Table = {}
        for item in report.telemetry.counters:
            found.setdefault((item.name, item.unit), {})[_place(known, item.gpu)] = item.delta
        return found

    yield from _each("counter", of(before, names.old), of(after, names.new), names.single)


def _coverage(before: Report, after: Report, names: _Names) -> Iterator[Change]:
    def time(report: Report, known: Mapping[str, str], what: str, key: str) -> _Table:
        found: _Table = {}
        for unit in report.coverage.units:
            if (value := getattr(unit, key)) is not None:
                found.setdefault((f"{what} {unit.check}", "s"), {})[_place(known, unit.gpu)] = round(value, 1)
        return found

    def missing(report: Report, known: Mapping[str, str]) -> _Table:
        found: _Table = {}
        for gap in report.coverage.not_run:
            found.setdefault((f"not run: {gap.check}", None), {})[_place(known, gap.gpu)] = gap.why
        return found

    for asked in (("time of", "seconds"), ("verified time of", "verified_s")):
        yield from _each("coverage", time(before, names.old, *asked), time(after, names.new, *asked), names.single)
    yield from _each("coverage", missing(before, names.old), missing(after, names.new), names.single)


# --- text ---


def _section(heading: str, changes: list[Change], width: int) -> list[str]:
    if not changes:
        return []
    told, small = [], 0
    for group in _grouped(changes):
        first = group[0]
        if first.change is not None and all(abs(change.change or 0.0) <= _NOISE for change in group):
            small += len(group)
        else:
            told.append(_describe(group))
    hidden = len(told) - _MAX_SHOWN
    lines = [line for text in told[:_MAX_SHOWN] for line in wrap(short_uuids(text), width, "  ", "    ")]
    lines += [f"  ... and {hidden} more: --json"] if hidden > 0 else []
    if small:
        lines.append(f"  {small} more within {_NOISE:.0%}")
    return ["", heading, *lines]


def _grouped(changes: Iterable[Change]) -> list[list[Change]]:
    """Changes that are one thing on several GPUs: numbers of one name, or the very same change."""
    groups: dict[Any, list[Change]] = {}
    for change in changes:
        key = (
            (change.kind, change.what)
            if change.change is not None
            else (change.kind, change.what, repr((change.before, change.after)))
        )
        groups.setdefault(key, []).append(change)
    return list(groups.values())


def _describe(group: list[Change]) -> str:
    """What a person reads of them."""
    first = group[0]
    on = list(dict.fromkeys(change.on for change in group))
    units = ", ".join(on if len(on) <= _MAX_NAMED or first.kind != "pair" else [*on[:_MAX_NAMED], f"{len(on)} in all"])
    where = "" if units == "node" else f" on {units}"
    if first.kind in ("reason", "warning"):
        sign, text = ("-", first.before) if first.after is None else ("+", first.after)
        gone = "gone" if sign == "-" else "new"
        return f"{sign} {gone} {first.kind} {first.what}{where}: {text}"
    if first.change is None:
        return f"{first.what}{where}: {_value(first.before, first.unit)} -> {_value(first.after, first.unit)}"
    changes = [change.change for change in group if change.change is not None]
    worst = max(group, key=lambda change: abs(change.change or 0.0))
    numbers = f"{_value(worst.before, worst.unit)} -> {_value(worst.after, worst.unit)} ({worst.change:+,.1%})"
    if len(group) == 1:
        return f"{first.what}{where}: {numbers}"
    many = "pairs" if first.kind == "pair" else "GPUs"
    return (
        f"{first.what} on {len(group)} {many}: median {statistics.median(changes):+,.1%}; most on {worst.on}, {numbers}"
    )


def _value(value: Any, unit: str) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return rate(float(value), unit) if isinstance(value, int | float) else str(value)
