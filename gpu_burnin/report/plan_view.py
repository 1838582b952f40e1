"""What a plan will do, before it is done: as JSON values with units, and as a table for a person. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.planned import covers
from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.plan import Expected, Plan, schedule
from gpu_burnin.hardware.skus import Sku, SkuTable
from gpu_burnin.judge.coverage import RULE_OF_THREE
from gpu_burnin.system.prose import STANDARD_WIDTH, table_with_text, wrap
from gpu_burnin.system.quantities import duration, size

SCHEMA = "muster-plan/v1"
_ON: Mapping[Scope, str] = {
    Scope.NODE: "node",
    Scope.EACH: "each GPU",
    Scope.TOGETHER: "all together",
    Scope.AFTER: "node, last",
}


def document(
    plan: Plan, skus: SkuTable, why_simulated: str = "", no_pass: Sequence[str] = (), model: Sku | None = None
) -> dict[str, Any]:
    """The plan as JSON values. Times in seconds, sizes in bytes, rates in faults per second.

    `why_simulated` says why no real GPU would be tested, "" where one would; `no_pass` why such a run could not pass;
    `model` is the one from whose data it was planned, None for a plan of this node's own GPUs.
    """
    steps = schedule(plan)
    return {
        "schema": SCHEMA,
        "level": plan.level,
        "backend": plan.backend,
        "planned_from_model": model.key if model else None,
        "simulated": bool(why_simulated),
        "why_simulated": why_simulated or None,
        "no_pass": [*no_pass],
        "total_s": plan.total_s,
        "after_total_s": sum(step.budget_s for step in steps if step.check.scope is Scope.AFTER),
        "gpus": [
            {"index": g.index, "uuid": g.uuid or None, "serial": g.serial or None, "sku": g.sku} for g in plan.gpus
        ],
        "shapes": dict(plan.shapes),
        "power_waves": plan.options.get("power_waves"),
        "checks": [_check_json(plan, step, skus) for step in steps],
        "missed_fault_rate_upper95_at_best_per_s": _rate(sum(_active_s(plan, step) for step in steps)),
    }


def _check_json(plan: Plan, step: Expected, skus: SkuTable) -> dict[str, Any]:
    row, planned = CHECKS[step.check.name], covers(step.check.name, plan, skus)
    return {
        "name": step.check.name,
        "scope": str(step.check.scope),
        "optional": row.optional,
        "selftested": row.selftested,
        "begins_s": round(step.begins_s, 3),
        "seconds_on_each_gpu": round(step.budget_s, 3) if step.check.per_gpu else None,
        "seconds": round(step.budget_s, 3),
        "seconds_are": "a share of the time" if step.check.weight else "a limit",
        "covers": dict(planned.facts),
        "covers_in_words": planned.text,
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
    planned = covers(step.check.name, plan, skus)
    if planned.least_share is not None:
        return step.budget_s * planned.least_share
    return _active_s(plan, step) / max(1, planned.parts)


def _rate(seconds: float) -> float | None:
    return RULE_OF_THREE / seconds if seconds > 0 else None


def render(
    plan: Plan,
    skus: SkuTable,
    why_simulated: str = "",
    no_pass: Sequence[str] = (),
    model: Sku | None = None,
    width: int = STANDARD_WIDTH,
) -> str:
    """The plan as lines of at most `width` characters; the other arguments as for document()."""
    steps = schedule(plan)
    gpus = len(plan.gpus)
    models = ", ".join(dict.fromkeys(gpu.sku or gpu.name or "unknown model" for gpu in plan.gpus)) or "none found"
    many = f"{gpus} GPU{'s' * (gpus != 1)} ({models})"
    lines = wrap(f"Level {plan.level} on {many}, backend {plan.backend}: {duration(plan.total_s)} in all", width)
    if model:
        lines += wrap(f"Planned from the data of {model.key} ({model.name}); nothing was looked at here.", width)
    if why_simulated:
        lines += wrap(f"Simulated: {why_simulated}. A run like this says nothing about a real GPU.", width)
    for why in no_pass:
        lines += wrap(f"Such a run could not pass: {why}.", width)
    rows = [("check", "on", "time", "would see a fault", "covers")]
    rows += [_row(plan, step, skus) for step in steps]
    lines += ["", *table_with_text(rows, width, indent=""), ""]
    lines += _footer(plan, steps, skus, width)
    return "\n".join(lines)


def models_json(skus: SkuTable) -> list[dict[str, Any]]:
    """The models that a plan can be made for."""
    return [{"key": one.key, "name": one.name, "memory_bytes": one.memory_bytes} for one in skus.skus.values()]


def models_text(skus: SkuTable) -> str:
    """The same as lines: key, name, memory."""
    width = max(map(len, skus.skus))
    return "\n".join(f"{one.key:{width}}  {one.name}, {size(one.memory_bytes)}" for one in skus.skus.values())


def _row(plan: Plan, step: Expected, skus: SkuTable) -> tuple[str, str, str, str, str]:
    limit = "" if step.check.weight or not step.budget_s else "up to "
    least_s = _least_s(plan, step, skus)
    bound = f"coming every {duration(least_s / RULE_OF_THREE)}" if least_s else "-"
    text = covers(step.check.name, plan, skus).text + ("; optional" if CHECKS[step.check.name].optional else "")
    return step.check.name, _ON[step.check.scope], limit + duration(step.budget_s), bound, text


def _footer(plan: Plan, steps: tuple[Expected, ...], skus: SkuTable, width: int) -> list[str]:
    texts = []
    on_gpus_s = sum(_active_s(plan, step) for step in steps)
    if on_gpus_s:
        texts.append(
            "Would see a fault: at best, if all of its time went into verified work, a fault of any part of a check "
            "that comes this often or more often would be seen (95 %). The report counts the time that was verified. "
            f"All checks of a GPU together would see a fault coming every {duration(on_gpus_s / RULE_OF_THREE)}."
        )
    if plan.backend == "cpu":
        texts.append("The CPU does every check once at the least, however long that takes.")
    texts.append(
        "Start and self-tests take a little of these times; what a check does not use goes to those that follow."
    )
    if after_s := sum(step.budget_s for step in steps if step.check.scope is Scope.AFTER):
        texts.append(f"What runs last is not part of the {duration(plan.total_s)}: up to {duration(after_s)} more.")
    texts += filter(None, (covers(step.check.name, plan, skus).on_top for step in steps))
    return [line for text in texts for line in wrap(text, width)]
