"""What the members' views of a test come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpu_burnin.fabric.model import ALL, Fabric, Found, Judged, Kind, Purpose, Result, Settings, Test
from gpu_burnin.fabric.verdict import verdict_of
from gpu_burnin.fleet.baseline.spread import spread_of

# So many robust sigmas under the median nothing healthy is slow; what spreads that wide is not told from it.
_SIGMAS = 6.0
# Tests of nodes or leaves that no failure has chosen: their rates are what others are held against.
_REFERENCES = frozenset({Purpose.PAIRS, Purpose.CONTROL, Purpose.LEAF, Purpose.XOR})
_LEVELS: Mapping[Kind, str] = {Kind.PAIR: "pair", Kind.RAIL: "pair", Kind.GROUP: "group"}


def judge_round(
    fabric: Fabric,
    settings: Settings,
    tests: Sequence[Test],
    results: Iterable[Result],
    known: Mapping[str, tuple[float, ...]],
) -> tuple[list[Judged], dict[str, tuple[float, ...]]]:
    """All tests of a round, and the rates of all rounds so far by what is alike in them. `known`: those before it."""
    of_test = {result.test: result for result in results}
    raw = [verdict_of(test, of_test.get(test.id)) for test in tests]
    fresh: dict[str, list[float]] = {}
    for judged, rates in raw:
        if judged.test.purpose in _REFERENCES and judged.found is not Found.SPOILED:
            for scope, rate in rates.items():
                fresh.setdefault(_alike(fabric, judged.test, scope), []).append(rate)
    references = {**known, **{key: (*known.get(key, ()), *values) for key, values in fresh.items()}}
    limits: dict[str, float | None] = {}
    return [_with_slow(fabric, settings, judged, rates, references, limits) for judged, rates in raw], references


def slow_limit(rates: Sequence[float], settings: Settings) -> float | None:
    """The rate under which a test is slow; None where too few were measured to say.

    Slow is a share of the median that matters to a job; the spread only keeps it from naming what is usual here.
    """
    if len(rates) < settings.least_peers:
        return None
    spread = spread_of(np.asarray(rates))
    return spread.median - max(settings.slow_share * spread.median, _SIGMAS * spread.robust_sigma)


def usual_limit(key: str, settings: Settings) -> float | None:
    """The rate under which a test is slow by what an earlier run had; None where that is not known."""
    usual = settings.usual.get(key)
    return None if usual is None else usual * (1 - settings.slow_share)


def key_of(level: str, scope: int, models: Iterable[str], *, across: bool) -> str:
    """What rates are held against each other: a kind of test, in a leaf or across, all rails or one, same models."""
    span, rails = "across leaves" if across else "in a leaf", "all rails" if scope == ALL else "one rail"
    return ", ".join([level, span, rails, *models])


def _alike(fabric: Fabric, test: Test, scope: int) -> str:
    nodes = [fabric.by_name[name] for name in test.members]
    level = _LEVELS.get(test.kind, "leaves")
    size = f" of {len(nodes)}" if level == "pair" else ""
    models = sorted({node.model for node in nodes if node.model})
    return key_of(level + size, scope, models, across=len({node.leaf for node in nodes}) > 1)


def _with_slow(
    fabric: Fabric,
    settings: Settings,
    judged: Judged,
    rates: Mapping[int, float],
    references: Mapping[str, Sequence[float]],
    limits: dict[str, float | None],
) -> Judged:
    slow = {}
    for scope, rate in rates.items():
        if judged.by_scope[scope] is not Found.PASS:
            continue
        key = _alike(fabric, judged.test, scope)
        if key not in limits:
            limits[key] = slow_limit(references.get(key, ()), settings)
        limit = max((one for one in (limits[key], usual_limit(key, settings)) if one is not None), default=None)
        if limit is not None and rate < limit:
            slow[scope] = Found.SLOW
    if not slow:
        return judged
    return Judged(
        judged.test,
        {**judged.by_scope, **slow},
        judged.bytes_per_s,
        judged.why,
        judged.loopback_failed,
        judged.loopback_passed,
    )
