"""What a round's results change in what is known. Pure: a new state each time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from gpu_burnin.fabric.model import Fabric, Found, Judged, Purpose, Result, Round, Standing, State, Test
from gpu_burnin.fleet.fabric.cost import seconds_of
from gpu_burnin.fleet.fabric.judge import judge_round

_Key = TypeVar("_Key")


def advance(state: State, made: Round, results: Iterable[Result]) -> State:
    """The state after a round."""
    judged, references = judge_round(state.fabric, state.settings, made.tests, results, state.references)
    taken = _Taken(
        state.fabric,
        dict(state.nodes),
        dict(state.groups),
        dict(state.leaves),
        dict(state.paths),
        dict(state.parts),
    )
    for one in judged:
        _TAKE[one.test.purpose](taken, one)
    by_purpose = dict(state.by_purpose)
    for purpose in {test.purpose for test in made.tests}:
        by_purpose[purpose] = by_purpose.get(purpose, 0) + 1
    return replace(
        state,
        rounds=made.number,
        tests=state.tests + len(made.tests),
        node_tests=state.node_tests + sum(len(test.members) for test in made.tests),
        node_s=state.node_s + sum(len(test.members) * seconds_of(test, state.settings) for test in made.tests),
        by_purpose=by_purpose,
        nodes=taken.nodes,
        groups=taken.groups,
        leaves=taken.leaves,
        paths=taken.paths,
        parts=taken.parts,
        references=references,
    )


def path_of(test: Test) -> tuple[str, str]:
    """The two leaves between which a test runs."""
    one, other = sorted(test.units)
    return one, other


@dataclass(frozen=True)
class _Taken:
    """The parts of a state that are being changed."""

    fabric: Fabric
    nodes: dict[str, Standing]
    groups: dict[str, Standing]
    leaves: dict[str, Standing]
    paths: dict[tuple[str, str], Standing]
    parts: dict[tuple[str, ...], tuple[tuple[tuple[str, ...], Found], ...]]


_EMPTY = Standing()


def _screened(standing: Standing, one: Judged) -> Standing:
    """With a test that had no proven partner."""
    if one.found is Found.SPOILED:
        return replace(standing, spoiled=standing.spoiled + 1, why=one.why)
    failed = _first_failure(one)
    if failed is None:
        return replace(standing, passes=standing.passes + 1)
    return replace(
        standing,
        failures=standing.failures + 1,
        causes=_counted(standing.causes, one),
        tests=(*standing.tests, one.test.id),
        why=one.why or standing.why,
    )


def _probed(standing: Standing, one: Judged, partner: str, own: str = "") -> Standing:
    """With a test whose other side is proven. What was spoiled counts for nothing."""
    if one.found is Found.SPOILED:
        return replace(standing, spoiled=standing.spoiled + 1, partners=(*standing.partners, partner), why=one.why)
    probes = dict(standing.probes)
    for scope, found in one.by_scope.items():
        if found is not Found.SPOILED:
            passes, failures = probes.get(scope, (0, 0))
            probes[scope] = (passes + 1, failures) if found is Found.PASS else (passes, failures + 1)
    loopback = dict(standing.loopback)
    loopback |= {rail: True for member, rail in one.loopback_passed if member == own and rail not in loopback}
    loopback |= {rail: False for member, rail in one.loopback_failed if member == own}
    failed = _first_failure(one) is not None
    return replace(
        standing,
        probes=probes,
        partners=(*standing.partners, partner),
        causes=_counted(standing.causes, one) if failed else standing.causes,
        tests=(*standing.tests, one.test.id) if failed else standing.tests,
        why=one.why or standing.why,
        loopback=loopback,
    )


def _lent(standing: Standing, one: Judged) -> Standing:
    """Of a proven partner in the same leaf: how often a suspect passed with it, and failed."""
    passes, failures = standing.as_partner
    if one.found is Found.SPOILED:
        return standing
    both = (passes + 1, failures) if one.found is Found.PASS else (passes, failures + 1)
    return replace(standing, as_partner=both)


def _first_failure(one: Judged) -> Found | None:
    return next((found for found in one.by_scope.values() if found not in (Found.PASS, Found.SPOILED)), None)


def _counted(causes: Mapping[tuple[int, Found], int], one: Judged) -> Mapping[tuple[int, Found], int]:
    counted = dict(causes)
    for scope, found in one.by_scope.items():
        if found not in (Found.PASS, Found.SPOILED):
            counted[scope, found] = counted.get((scope, found), 0) + 1
    return counted


def _put(where: dict[_Key, Standing], key: _Key, change: Callable[[Standing], Standing]) -> None:
    where[key] = change(where.get(key, _EMPTY))


def _partner(one: Judged) -> str:
    return next((unit for unit in one.test.units if unit != one.test.suspect), "")


def _take_pairs(taken: _Taken, one: Judged) -> None:
    for unit in one.test.units:
        _put(taken.nodes, unit, lambda standing: _screened(standing, one))


def _take_catch_up(taken: _Taken, one: Judged) -> None:
    for unit in [one.test.suspect] if one.test.suspect else one.test.units:
        _put(taken.nodes, unit, lambda standing: _screened(standing, one))


def _take_probe(taken: _Taken, one: Judged) -> None:
    suspect, partner = one.test.suspect, _partner(one)
    _put(taken.nodes, suspect, lambda standing: _probed(standing, one, partner, suspect))
    by_name = taken.fabric.by_name
    if by_name[suspect].leaf == by_name[partner].leaf:
        _put(taken.nodes, partner, lambda standing: _lent(standing, one))


def _take_control(taken: _Taken, one: Judged) -> None:
    """Only its rates count: both are proven."""


def _among(where: dict[str, Standing], one: Judged) -> None:
    if one.found is Found.SPOILED:
        for unit in one.test.units:
            _put(where, unit, lambda standing: replace(standing, spoiled=standing.spoiled + 1, why=one.why))
        return
    passed = _first_failure(one) is None
    for unit in one.test.units:
        other = next(name for name in one.test.units if name != unit)
        standing = where.get(unit, _EMPTY)
        passes, failures = standing.among.get(other, (0, 0))
        both = (passes + 1, failures) if passed else (passes, failures + 1)
        where[unit] = replace(standing, among={**standing.among, other: both})


def _take_among(taken: _Taken, one: Judged) -> None:
    _among(taken.nodes, one)


def _take_leaf(taken: _Taken, one: Judged) -> None:
    _put(taken.groups, one.test.units[0], lambda standing: _probed(standing, one, ""))


def _take_halves(taken: _Taken, one: Judged) -> None:
    _add_part(taken, (one.test.units[0],), one)
    if one.found not in (Found.PASS, Found.SPOILED):
        # They were proven: what made them so has missed something in one of them.
        for member in one.test.members:
            before = taken.nodes.get(member, _EMPTY)
            earlier = before.earlier + before.failures + sum(both[1] for both in before.probes.values())
            taken.nodes[member] = replace(_screened(_EMPTY, one), earlier=earlier)


def _take_xor(taken: _Taken, one: Judged) -> None:
    for unit in one.test.units:
        _put(taken.leaves, unit, lambda standing: _screened(standing, one))
    _put(taken.paths, path_of(one.test), lambda standing: _screened(standing, one))


def _take_leaf_probe(taken: _Taken, one: Judged) -> None:
    _put(taken.leaves, one.test.suspect, lambda standing: _probed(standing, one, _partner(one)))


def _take_leaf_among(taken: _Taken, one: Judged) -> None:
    _among(taken.leaves, one)


def _take_path(taken: _Taken, one: Judged) -> None:
    _put(taken.paths, path_of(one.test), lambda standing: _probed(standing, one, ""))


def _take_quarters(taken: _Taken, one: Judged) -> None:
    _add_part(taken, path_of(one.test), one)


def _add_part(taken: _Taken, key: tuple[str, ...], one: Judged) -> None:
    found = next((found for found in one.by_scope.values() if found is not Found.PASS), Found.PASS)
    taken.parts[key] = (*taken.parts.get(key, ()), (one.test.members, found))


_TAKE: Mapping[Purpose, Callable[[_Taken, Judged], None]] = {
    Purpose.PAIRS: _take_pairs,
    Purpose.CATCH_UP: _take_catch_up,
    Purpose.PROBE: _take_probe,
    Purpose.CONTROL: _take_control,
    Purpose.AMONG: _take_among,
    Purpose.LEAF: _take_leaf,
    Purpose.HALVES: _take_halves,
    Purpose.XOR: _take_xor,
    Purpose.LEAF_PROBE: _take_leaf_probe,
    Purpose.LEAF_AMONG: _take_leaf_among,
    Purpose.PATH: _take_path,
    Purpose.QUARTERS: _take_quarters,
}
