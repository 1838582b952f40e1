"""What the technician gets: which part, where it is, what was seen, what was tried. One order, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpu_burnin.api.record import PowerCycle
from gpu_burnin.fleet.repair.ladder import Fault, Rung, Step
from gpu_burnin.report.check_findings import units_of
from gpu_burnin.report.model import Report
from gpu_burnin.report.order import order_of
from gpu_burnin.report.units import without_name
from gpu_burnin.system.prose import STANDARD_WIDTH, wrap
from gpu_burnin.types import Action, Gpu, Verdict

SCHEMA = "muster-technician/v1"
_UNKNOWN = "not known"
# The node as units_of calls it.
_NODE = "node"


@dataclass(frozen=True)
class Seen:
    """One reason of the report, and the evidence behind it."""

    code: str
    severity: str
    message: str
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A GPU, or the node itself (`name` "node", the rest ""), with what was seen of it.

    `slot` is the name in the chassis, "" where firmware does not tell it.
    """

    name: str
    seen: tuple[Seen, ...]
    slot: str = ""
    serial: str = ""
    pci_bus_id: str = ""
    uuid: str = ""
    model: str = ""


@dataclass(frozen=True)
class Machine:
    """Which machine it is, by what is printed on it."""

    vendor: str = ""
    product: str = ""
    serial: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class Order:
    """The whole. `why` is how the ladder came to it; `order` what the report asks for; `report` where it is.

    `confirm`: the admitter lets the node in when somebody has said that the power was off since the fault.
    """

    node: str
    at: str
    why: str
    order: str
    machine: Machine
    parts: tuple[Part, ...]
    tried: tuple[Step, ...]
    report: str
    schema: str = SCHEMA
    confirm: bool = False


def make_order(
    node: str,
    at: str,
    why: str,
    report: Report | None,
    look: Mapping[str, Any] | None,
    tried: Sequence[Step],
    path: str,
    owed: PowerCycle | None = None,
) -> Order:
    """`report` and `look` are None where the node left none, or does not answer; for `owed` the ledger waits."""
    dmi: Mapping[str, str] = (look["dmi"] if look else None) or (report.host.dmi if report else {})
    slots: Mapping[str, str] = look["slots"] if look else {}
    return Order(
        node=node,
        at=at,
        why=why,
        order=_to_do(report, look, tried, owed),
        machine=Machine(
            dmi.get("sys_vendor", ""),
            dmi.get("product_name", ""),
            dmi.get("product_serial", ""),
            dmi.get("product_uuid", ""),
        ),
        parts=_parts(report, slots) if report else (),
        tried=tuple(step for step in tried if step.rung is not Rung.HOLD),
        report=path if report else "",
        confirm=owed is not None,
    )


def summary(order: Order) -> str:
    """In one line, for the hold in the cluster."""
    gpus = [
        f"{part.name}{f' slot {part.slot}' if part.slot else ''} serial {part.serial or _UNKNOWN}"
        for part in order.parts
        if part.uuid
    ]
    return f"technician: {order.order}" + (f" ({', '.join(gpus)})" if gpus else "")


def render(order: Order, width: int = STANDARD_WIDTH) -> str:
    """For people: a page to print and take along."""
    machine = order.machine
    rows = [
        ("node", order.node),
        ("machine", " ".join(part for part in (machine.vendor, machine.product) if part) or _UNKNOWN),
        ("serial", machine.serial or _UNKNOWN),
        ("to do", order.order),
        ("why", order.why),
    ]
    for part in order.parts:
        rows += [("", ""), *_part_rows(part)]
    tried = [f"{step.began_at} {step.rung}: {_outcome(step)}" for step in order.tried] or ["nothing"]
    rows += [("", ""), *(("" if number else "tried", text) for number, text in enumerate(tried))]
    rows += [
        ("", ""),
        ("report", order.report or "none"),
        ("after it", f"ansible-playbook playbooks/burnin.yml -l {order.node} -e gpu_burnin_retest_level=extended"),
        *([("", f"muster node retest {order.node} --power-cycled --reason REASON")] if order.confirm else []),
        ("", f"muster node release {order.node} --reason REASON"),
    ]
    lines = (wrap(text, width, f"{name + ':' if name else '':9} ", " " * 10) or [""] for name, text in rows)
    return "".join(f"{line}\n" for found in lines for line in found)


def _to_do(
    report: Report | None, look: Mapping[str, Any] | None, tried: Sequence[Step], owed: PowerCycle | None
) -> str:
    """What the report asks for; where that is a power cycle, and there was one, the part is to be replaced.

    A report that passes asks for nothing: what an older one asked for is owed still.
    """
    if owed is not None and (report.verdict is Verdict.PASS if report else look is not None):
        return f"{owed.to_do[0].upper()}{owed.to_do[1:]}"
    if report is None:
        return "Look at the machine's console and power"
    faults = {Fault(reason.code, reason.gpu or "") for reason in report.reasons}
    done = any(step.rung is Rung.POWER_CYCLE and {*step.faults} & faults for step in tried)
    if not done or report.action.rank > Action.POWER_CYCLE.rank:
        return order_of(report).sentence
    reasons = tuple(replace(reason, action=Action.REPAIR) for reason in report.reasons)
    return order_of(replace(report, action=Action.REPAIR, reasons=reasons)).sentence


def _parts(report: Report, slots: Mapping[str, str]) -> tuple[Part, ...]:
    """The node and each GPU with a reason, in the report's order."""
    found: dict[str, list[Seen]] = {}
    for reason in report.reasons:
        seen = Seen(reason.code, reason.severity, without_name(report, reason), reason.details)
        for unit in units_of(report, reason):
            found.setdefault(unit, []).append(seen)
    gpus = {report.name(gpu.uuid): gpu for gpu in report.gpus}
    # A GPU that is lost may be no more than an address or a UUID by now.
    return tuple(_part(unit, gpus.get(unit), seen, slots) for unit, seen in sorted(found.items(), key=_place(gpus)))


def _place(gpus: Iterable[str]) -> Any:
    order = [*gpus]
    return lambda item: order.index(item[0]) if item[0] in order else -1 if item[0] == _NODE else len(order)


def _part(unit: str, gpu: Gpu | None, seen: Sequence[Seen], slots: Mapping[str, str]) -> Part:
    if gpu is None:
        return Part(unit, tuple(seen))
    address = gpu.pci_bus_id.lower()
    return Part(
        name=unit,
        seen=tuple(seen),
        slot=slots.get(address.rpartition(".")[0], ""),
        serial=gpu.serial,
        pci_bus_id=gpu.pci_bus_id,
        uuid=gpu.uuid,
        model=gpu.name,
    )


def _part_rows(part: Part) -> list[tuple[str, str]]:
    rows = [("part", f"{part.name} {part.model}".strip())]
    if part.name != _NODE:
        rows += [
            ("slot", part.slot or f"{_UNKNOWN}; PCI address {part.pci_bus_id or _UNKNOWN}"),
            ("serial", part.serial or _UNKNOWN),
            ("PCI", part.pci_bus_id or _UNKNOWN),
            ("UUID", part.uuid or _UNKNOWN),
        ]
    return [*rows, *(("seen", f"{seen.severity} {seen.code}: {seen.message}") for seen in part.seen)]


def _outcome(step: Step) -> str:
    if step.message:
        return f"{step.state}, {step.message}"
    return f"{step.state}, then {step.verdict}" if step.verdict else str(step.state)
