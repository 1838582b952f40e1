"""What the members' views of a test come to. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gpu_burnin.fleet.baseline.spread import spread_of
from gpu_burnin.fleet.fabric.model import (
    ALL,
    Fabric,
    Found,
    Judged,
    Kind,
    Outcome,
    Purpose,
    Result,
    Settings,
    Test,
    View,
)

# So many robust sigmas under the median nothing healthy is slow; what spreads that wide is not told from it.
_SIGMAS = 6.0
_FOUND: Mapping[Outcome, Found] = {
    Outcome.OK: Found.PASS,
    Outcome.WRONG: Found.WRONG,
    Outcome.UNREACHABLE: Found.UNREACHABLE,
    Outcome.MTU: Found.MTU,
    Outcome.STALLED: Found.STALLED,
}
_GRAVITY = list(Found)
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
    raw = [_judge(test, of_test.get(test.id)) for test in tests]
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


def _judge(test: Test, result: Result | None) -> tuple[Judged, dict[int, float]]:
    views = {signed.view.member: signed.view for signed in result.views} if result else {}
    if why := _spoiled(test, result, views):
        return Judged(test, dict.fromkeys((ALL, *test.rails), Found.SPOILED), why=why), {}
    silent = [member for member in test.members if member not in views]
    if silent:
        return _of_silence(test, silent), {}
    by_scope = {ALL: _gravest(view.outcome for view in views.values())}
    rates = {ALL: [view.bytes_per_s for view in views.values()]}
    loops: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
    if test.rails:
        for view in views.values():
            for rail in view.rails:
                if rail.loopback is not None:
                    loops[rail.loopback].append((view.member, rail.rail))
        for number in test.rails:
            of_rail = [rail for view in views.values() for rail in view.rails if rail.rail == number]
            whole = len(of_rail) == len(test.members)
            by_scope[number] = _gravest(rail.outcome for rail in of_rail) if whole else Found.SPOILED
            rates[number] = [rail.bytes_per_s for rail in of_rail]
    lowest = {scope: min(rate for rate in all_ if rate is not None) for scope, all_ in rates.items() if any(all_)}
    judged = Judged(
        test,
        by_scope,
        lowest.get(ALL),
        loopback_failed=tuple(loops[False]),
        loopback_passed=tuple(loops[True]),
    )
    return judged, lowest


def _spoiled(test: Test, result: Result | None, views: Mapping[str, View]) -> str:
    if result is not None and result.absent:
        return "; ".join(f"{member} took no part: {why}" for member, why in result.absent.items())
    if result is None or (not views and not result.rebooted):
        return "no member has answered"
    if result.rebooted:
        return f"{', '.join(result.rebooted)} rebooted in the middle of it"
    versions: dict[str, list[str]] = {}
    for view in views.values():
        versions.setdefault(view.version, []).append(view.member)
    if len(versions) > 1:
        told = (f"{version} on {', '.join(sorted(of))}" for version, of in sorted(versions.items()))
        return f"its members run other versions: {'; '.join(told)}"
    return ""


def _of_silence(test: Test, silent: Sequence[str]) -> Judged:
    """Members whose view did not come. Where that is the suspect's partner alone, the test says nothing of it."""
    of_suspect = {test.suspect} if test.purpose in (Purpose.PROBE, Purpose.CATCH_UP) else set(test.members)
    found = Found.SILENT if of_suspect & set(silent) else Found.SPOILED
    return Judged(test, dict.fromkeys((ALL, *test.rails), found), why=f"{', '.join(silent)} did not answer")


def _gravest(outcomes: Iterable[Outcome]) -> Found:
    return min((_FOUND[outcome] for outcome in set(outcomes)), key=_GRAVITY.index)


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
