"""What a plan will do, before it is done: as JSON values with units, and as a table for a person. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.hbm.result import LEAST_PATTERNS
from gpu_burnin.checks.hbm.result import LEAST_SHARE as MEMORY_LEAST_SHARE
from gpu_burnin.checks.nccl.operations import COLLECTIVES
from gpu_burnin.checks.pcie.port import MOST_COPY_BYTES, WAYS
from gpu_burnin.checks.power.wave import waves_for
from gpu_burnin.checks.sm.kernels import KERNELS
from gpu_burnin.checks.sm.result import LEAST_SHARE as SMS_LEAST_SHARE
from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.plan import Expected, Plan, schedule
from gpu_burnin.exact.operands import PRECISIONS
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.judge.coverage import RULE_OF_THREE
from gpu_burnin.report.formatting import duration, size
from gpu_burnin.settings.config import GRANTED, NEVER
from gpu_burnin.settings.expectations import expectations_of
from gpu_burnin.telemetry.node_links import node_links_of
from gpu_burnin.types import JSON

SCHEMA = "muster-plan/v1"
WIDTH = 100
_ON: Mapping[Scope, str] = {
    Scope.NODE: "node",
    Scope.EACH: "each GPU",
    Scope.TOGETHER: "all together",
    Scope.AFTER: "node, last",
}


@dataclass(frozen=True)
class Covers:
    """What a check is meant to cover: numbers with units in their names, and the same in words."""

    facts: Mapping[str, JSON]
    text: str


def document(plan: Plan, skus: SkuTable, why_simulated: str = "", no_pass: Sequence[str] = ()) -> dict[str, Any]:
    """The plan as JSON values. Times in seconds, sizes in bytes, rates in faults per second.

    `why_simulated` says why no real GPU would be tested, "" where one would; `no_pass` why such a run could not pass.
    """
    steps = schedule(plan)
    return {
        "schema": SCHEMA,
        "level": plan.level,
        "backend": plan.backend,
        "simulated": bool(why_simulated),
        "why_simulated": why_simulated or None,
        "no_pass": [*no_pass],
        "total_s": plan.total_s,
        "after_total_s": sum(step.budget_s for step in steps if step.check.scope is Scope.AFTER),
        "gpus": [{"index": g.index, "uuid": g.uuid, "serial": g.serial, "sku": g.sku} for g in plan.gpus],
        "shapes": dict(plan.shapes),
        "power_waves": plan.options.get("power_waves"),
        "checks": [_check_json(plan, step, skus) for step in steps],
        "missed_fault_rate_upper95_at_best_per_s": _rate(sum(_active_s(plan, step) for step in steps)),
    }


def _check_json(plan: Plan, step: Expected, skus: SkuTable) -> dict[str, Any]:
    row, covers = CHECKS[step.check.name], _covers(plan, step, skus)
    return {
        "name": step.check.name,
        "scope": str(step.check.scope),
        "optional": row.optional,
        "selftested": row.selftested,
        "begins_s": round(step.begins_s, 3),
        "seconds_on_each_gpu": round(step.budget_s, 3) if step.check.per_gpu else None,
        "seconds": round(step.budget_s, 3),
        "seconds_are": "a share of the time" if step.check.weight else "a limit",
        "covers": dict(covers.facts),
        "covers_in_words": covers.text,
        "missed_fault_rate_upper95_at_best_per_s": _rate(_least_s(plan, step, skus)),
    }


def _active_s(plan: Plan, step: Expected) -> float:
    """Seconds in which each GPU can be at work that is verified: 0 for a look at the node.

    Where GPUs take turns, each waits for the turns of the others.
    """
    if not step.check.per_gpu:
        return 0.0
    return step.budget_s * (1 - CHECKS[step.check.name].in_turns * (1 - 1 / max(1, len(plan.gpus))))


def _least_s(plan: Plan, step: Expected, skus: SkuTable) -> float:
    """The same for the part of a check that gets least: a fault of one direction, precision or kernel shows only while
    that is at work."""
    gpus, in_turns = len(plan.gpus), CHECKS[step.check.name].in_turns
    if step.check.name == "nvlink" and gpus > 1:
        # In turns one other GPU and direction after the other, then all other GPUs at once.
        return step.budget_s * (in_turns / gpus / (2 * (gpus - 1)) + (1 - in_turns) / 2)
    parts = {"gemm": len(_precisions(plan, skus)), "sm": len(KERNELS), "pcie": len(WAYS["duplex"])}
    return _active_s(plan, step) / max(1, parts.get(step.check.name, 1))


def _rate(seconds: float) -> float | None:
    return RULE_OF_THREE / seconds if seconds > 0 else None


def render(plan: Plan, skus: SkuTable, why_simulated: str = "", no_pass: Sequence[str] = ()) -> str:
    """The plan as lines of at most WIDTH characters; arguments as for document()."""
    steps = schedule(plan)
    gpus = len(plan.gpus)
    models = ", ".join(dict.fromkeys(gpu.sku or gpu.name or "unknown model" for gpu in plan.gpus)) or "none found"
    lines = [f"Level {plan.level} on {gpus} GPU{'s' * (gpus != 1)} ({models}), backend {plan.backend}: "
             f"{duration(plan.total_s)} in all"]  # fmt: skip
    if why_simulated:
        lines += textwrap.wrap(f"Simulated: {why_simulated}. A run like this says nothing about a real GPU.", WIDTH)
    for why in no_pass:
        lines += textwrap.wrap(f"Such a run could not pass: {why}.", WIDTH)
    rows = [("check", "on", "time", "missed faults", "covers")]
    rows += [_row(plan, step, skus) for step in steps]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines.append("")
    for row in rows:
        left = "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=False))
        indent = " " * (len(left) + 2)
        wrapped = textwrap.wrap(row[4], WIDTH - len(indent)) or [""]
        lines += [f"{left}  {wrapped[0]}".rstrip(), *(f"{indent}{line}" for line in wrapped[1:])]
    lines.append("")
    lines += _footer(plan, steps)
    return "\n".join(lines)


def _row(plan: Plan, step: Expected, skus: SkuTable) -> tuple[str, str, str, str, str]:
    limit = "" if step.check.weight or not step.budget_s else "up to "
    least_s = _least_s(plan, step, skus)
    bound = f"every {duration(least_s / RULE_OF_THREE)}" if least_s else "-"
    text = _covers(plan, step, skus).text + ("; optional" if CHECKS[step.check.name].optional else "")
    return step.check.name, _ON[step.check.scope], limit + duration(step.budget_s), bound, text


def _footer(plan: Plan, steps: tuple[Expected, ...]) -> list[str]:
    texts = []
    on_gpus_s = sum(_active_s(plan, step) for step in steps)
    if on_gpus_s:
        texts.append(
            "Missed faults: at best, if all of its time went into verified work, one that comes at least this often "
            "in any part of a check would show (95 %). The report counts the time that was verified. "
            f"Over all checks of a GPU: every {duration(on_gpus_s / RULE_OF_THREE)}."
        )
    if plan.backend == "cpu":
        texts.append("The CPU does every check once at the least, however long that takes.")
    texts.append(
        "Start and self-tests take a little of these times; what a check does not use goes to those that follow."
    )
    if after_s := sum(step.budget_s for step in steps if step.check.scope is Scope.AFTER):
        texts.append(f"What runs last is not part of the {duration(plan.total_s)}: up to {duration(after_s)} more.")
    names = {step.check.name for step in steps}
    waits = plan.options.get("power_waves") == GRANTED and waves_for(plan.level, plan.total_s)
    if "power" in names and waits:
        wait_s = float(str(plan.options["wave_wait_s"]))
        texts.append(f"The power waves wait up to {duration(wait_s)} for a grant, which comes on top.")
    return [line for text in texts for line in textwrap.wrap(text, WIDTH)]


def _covers(plan: Plan, step: Expected, skus: SkuTable) -> Covers:
    say = _COVERS.get(step.check.name)
    return say(plan, skus) if say else Covers({}, "")


def _state(plan: Plan, skus: SkuTable) -> Covers:
    expected, links = expectations_of(plan.options), node_links_of(plan.options)
    told = f"settings, counters and links of {len(plan.gpus)} GPU{'s' * (len(plan.gpus) != 1)} against their data"
    facts: dict[str, JSON] = {"gpus": len(plan.gpus), "expect": expected.to_json(), "node_links": links.why or None}
    return Covers(facts, "; ".join(part for part in (told, expected.summary(), links.why) if part))


def _sm(plan: Plan, skus: SkuTable) -> Covers:
    share = SMS_LEAST_SHARE
    return Covers({"sms_least_share": share}, "every SM" if share == 1 else f"{share * 100:.0f} % of the SMs")


def _gemm(plan: Plan, skus: SkuTable) -> Covers:
    names = _precisions(plan, skus)
    sides = [plan.shapes[key] for key in ("gemm_m", "gemm_n", "gemm_k")]
    text = f"exact products of {' x '.join(map(str, sides))} in {', '.join(names)}"
    return Covers({"precisions": names, "gemm_m": sides[0], "gemm_n": sides[1], "gemm_k": sides[2]}, text)


def _precisions(plan: Plan, skus: SkuTable) -> list[str]:
    """Those that all models here have; the CPU backend does them all."""
    found = [skus.skus[gpu.sku].precisions for gpu in plan.gpus if gpu.sku in skus.skus]
    return [name for name in PRECISIONS if plan.backend == "cpu" or all(name in has for has in found)]


def _hbm(plan: Plan, skus: SkuTable) -> Covers:
    asked, least = plan.shapes["hbm_bytes"], MEMORY_LEAST_SHARE
    if plan.backend == "cpu":
        return Covers({"host_memory_bytes": asked}, f"{size(asked)} of host memory, no GPU memory")
    if asked:
        return Covers({"memory_bytes": asked}, f"{size(asked)} of memory, by the configuration")
    memory = [gpu.memory_bytes for gpu in plan.gpus]
    smallest = min(memory, default=0)
    of = f" of {size(smallest)}" if smallest else ""
    reached: list[JSON] = [int(least * whole) for whole in memory]
    facts: dict[str, JSON] = {"memory_bytes": reached, "least_share": least, "least_patterns": LEAST_PATTERNS}
    retention = ", retention" if plan.level == "extended" else ""
    return Covers(facts, f"at least {least * 100:.0f} %{of}: address, inversions, walking bits, modulo 20{retention}")


def _pcie(plan: Plan, skus: SkuTable) -> Covers:
    copy = min(plan.shapes["transfer_bytes"], MOST_COPY_BYTES)
    text = f"host to GPU, back, both at once, in peace and all GPUs together; copies of {size(copy)}, each compared"
    return Covers({"directions": ["h2d", "d2h", "duplex"], "transfer_bytes": copy}, text)


def _nvlink(plan: Plan, skus: SkuTable) -> Covers:
    gpus, copy = len(plan.gpus), plan.shapes["transfer_bytes"]
    pairs = gpus * (gpus - 1)
    facts: dict[str, JSON] = {"pairs": pairs, "transfer_bytes": copy}
    if not pairs:
        return Covers(facts, "nothing: a pair takes two GPUs")
    return Covers(
        facts,
        f"{pairs // 2} pair{'s' * (pairs > 2)} in each direction, then all at once; each copy compared ({size(copy)})",
    )


def _nccl(plan: Plan, skus: SkuTable) -> Covers:
    names, largest = [*COLLECTIVES], plan.shapes["collective_bytes"]
    ranks = len(plan.gpus)
    text = f"{', '.join(names)} over {ranks} rank{'s' * (ranks != 1)}, up to {size(largest)}, each result exact"
    return Covers({"ranks": ranks, "collectives": names, "collective_bytes": largest}, text)


def _power(plan: Plan, skus: SkuTable) -> Covers:
    mixed = "products, copies and links under load together"
    waves = str(plan.options.get("power_waves", NEVER))
    made = waves_for(plan.level, plan.total_s, plan.backend == "cpu") if waves != NEVER else ()
    hz = [wave.frequency_hz for wave in made]
    facts: dict[str, JSON] = {"power_waves": waves, "frequencies_hz": hz}
    if not hz:
        return Covers(facts, f"{mixed}; no power waves {'at this level' if waves != NEVER else '(never)'}")
    when = ", once they are granted" if waves == GRANTED else ""
    span = f"power waves on all GPUs at once, {min(hz):g} to {max(hz):g} Hz{when}"
    return Covers(facts, f"{span}; {mixed}")


def _dcgm(plan: Plan, skus: SkuTable) -> Covers:
    return Covers({}, "NVIDIA's own diagnostics (dcgmi diag), as one more opinion")


_COVERS: Mapping[str, Callable[[Plan, SkuTable], Covers]] = {
    "state": _state, "sm": _sm, "gemm": _gemm, "hbm": _hbm, "pcie": _pcie, "nvlink": _nvlink, "nccl": _nccl,
    "power": _power, "dcgm": _dcgm,
}  # fmt: skip
