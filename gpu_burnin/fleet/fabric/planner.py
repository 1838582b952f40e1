"""The next round of tests, from what the earlier ones have shown. Pure.

Two pairings in each leaf; then each suspect with proven partners, until it is named or cleared; then whole leaves, and
leaves with leaves by exclusive or. Where both halves of what fails pass, it is tested in parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_burnin.fabric.model import End, Kind, Purpose, Round, Settings, Standing, State, Test, Through
from gpu_burnin.fabric.standing import (
    PROVEN_PASSES,
    cleared,
    decided,
    given_up,
    has_probe_failure,
    named,
    proven,
    suspect,
    untested,
    whole_leaf,
)
from gpu_burnin.fleet.fabric.cost import LEAST_GROUP
from gpu_burnin.fleet.fabric.pairing import everyone_with_everyone, groups_of_two, xor_keys, xor_pairs

_LEAST_HALVES = 4
# Tests among suspects of which none is proven, and in a leaf where others could be their partners. Two that are sound
# find each other sooner.
_MOST_AMONG, _FEW_AMONG = 12, 6
# Halves of one leaf by halves of the other.
_QUARTERS = 4
_NEW = Standing()


def next_round(state: State) -> Round | End:
    """The next round; End where nothing is left to test."""
    if len(state.fabric.nodes) < 2:
        return End("one node has no partner")
    if state.rounds >= state.settings.most_rounds:
        return End(f"{state.settings.most_rounds} rounds are the most that the settings allow")
    for made in _steps(state.settings.through):
        if tests := made(state):
            numbered = tuple(replace(test, id=state.tests + index) for index, test in enumerate(tests, 1))
            return Round(state.rounds + 1, numbered)
    return End()


def sound(state: State, leaf: str) -> tuple[str, ...]:
    """The nodes of a leaf that larger tests can be made of: those that are proven, or one that is alone there."""
    names = state.fabric.leaves[leaf]
    return names if len(names) == 1 else tuple(name for name in names if _is_proven(state, name))


def crossing(state: State) -> tuple[str, ...]:
    """The leaves that are tested with each other: those with sound nodes that carry their own load."""
    leaves = (leaf for leaf in filter(None, state.fabric.leaves) if sound(state, leaf) and not whole_leaf(state, leaf))
    return tuple(leaf for leaf in leaves if not named(state.groups.get(leaf, _NEW), state.settings))


_Step = Callable[[State], list[Test]]


def _steps(through: Through) -> Sequence[_Step]:
    steps: list[_Step] = [_pairs, _suspects]
    if through is not Through.NODES:
        steps += [_leaves, _halves]
    if through is Through.SPINES:
        steps += [_across, _leaf_suspects, _paths, _quarters]
    return steps


def _test(
    kind: Kind,
    purpose: Purpose,
    members: Sequence[str],
    units: Sequence[str] = (),
    suspect: str = "",
    rails: tuple[int, ...] = (),
) -> Test:
    return Test(0, kind, purpose, tuple(members), tuple(units or members), suspect, rails)


def _rails(state: State, members: Iterable[str]) -> tuple[int, ...]:
    """The rails that all members have, to be tested one by one; none where there is only one: that is the whole."""
    common: set[int] | None = None
    for name in members:
        own = set(state.fabric.by_name[name].rails)
        common = own if common is None else common & own
    return tuple(sorted(common)) if common and len(common) > 1 else ()


def _is_proven(state: State, name: str) -> bool:
    return proven(state.nodes.get(name, _NEW), state.settings)


# --- nodes ---


def _pairs(state: State) -> list[Test]:
    turn = state.by_purpose.get(Purpose.PAIRS, 0)
    if turn >= state.settings.pairings:
        return []
    # One that is alone in its leaf has no partner there: it is tested with other leaves, as a leaf of its own.
    leaves = state.fabric.leaves.values()
    return [_test(Kind.PAIR, Purpose.PAIRS, pair) for names in leaves for pair in groups_of_two(names, turn)]


def _suspects(state: State) -> list[Test]:
    """Suspects with proven partners, and beside them whoever has too few tests."""
    settings = state.settings
    names = [name for of in state.fabric.leaves.values() if len(of) > 1 for name in of]
    standings = [state.nodes.get(name, _NEW) for name in names]
    suspects = [name for name, one in zip(names, standings, strict=True) if suspect(one, settings)]
    waiting = [
        name
        for name, one in zip(names, standings, strict=True)
        if untested(one, settings) and one.passes + one.spoiled < PROVEN_PASSES + settings.most_retries
    ]
    suspects = [name for name in suspects if not given_up(state.nodes[name], settings)]
    if not suspects and not waiting:
        return []
    known = [name for name, one in zip(names, standings, strict=True) if proven(one, settings)]
    partners = _Partners(state, known)
    among = list(_among_in_leaves(state, suspects, known))
    tests = [_test(Kind.PAIR, Purpose.AMONG, pair) for pair in among]
    meeting = {name for pair in among for name in pair}
    probes = []
    for name in suspects:
        if name not in meeting and (partner := partners.take(name)):
            both = (name, partner)
            probes.append(_test(Kind.RAIL, Purpose.PROBE, both, suspect=name, rails=_rails(state, both)))
    tests += [*probes, *_controls(state, partners, probes)]
    for name in waiting:
        if partner := partners.take(name):
            tests.append(_test(Kind.PAIR, Purpose.CATCH_UP, (name, partner), suspect=name))
    if tests:
        return tests
    if waiting:
        # Nobody is proven: those that wait meet each other, all of them equally new.
        turn = state.by_purpose.get(Purpose.CATCH_UP, 0)
        if pairs := [_test(Kind.PAIR, Purpose.CATCH_UP, pair) for pair in groups_of_two(waiting, turn)]:
            return pairs
    if known:
        return []
    return [_test(Kind.PAIR, Purpose.AMONG, pair) for pair in _among(suspects, state.nodes, settings, _MOST_AMONG)]


def _among_in_leaves(state: State, suspects: Sequence[str], known: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Suspects of leaves that have no proven node: with each other, before partners outside it are taken for them."""
    by_name = state.fabric.by_name
    proven_leaves = {by_name[name].leaf for name in known}
    leaves: dict[str, list[str]] = {}
    for name in suspects:
        if by_name[name].leaf not in proven_leaves and not state.nodes[name].probes:
            leaves.setdefault(by_name[name].leaf, []).append(name)
    for names in leaves.values():
        yield from _among(names, state.nodes, state.settings, _FEW_AMONG if known else _MOST_AMONG)


def _controls(state: State, partners: _Partners, probes: Sequence[Test]) -> list[Test]:
    """Proven nodes with each other, tested as suspects are, so that their rates have something to be held against."""
    if state.by_purpose.get(Purpose.CONTROL, 0) > 1:
        return []
    leaf_of = {node.name: node.leaf for node in state.fabric.nodes}
    found = []
    for across in sorted({leaf_of[probe.members[0]] != leaf_of[probe.members[1]] for probe in probes}):
        for both in itertools.islice(partners.pairs(across=across), state.settings.controls):
            rails = _rails(state, both)
            if across or rails:
                found.append(_test(Kind.RAIL, Purpose.CONTROL, both, rails=rails))
    return found


@dataclass
class _Partners:
    """Proven nodes that no test of this round has yet. In a suspect's own leaf, where there are any."""

    state: State
    known: Sequence[str]

    def __post_init__(self) -> None:
        leaves: dict[str, list[str]] = {}
        for name in self.known:
            leaves.setdefault(self.state.fabric.by_name[name].leaf, []).append(name)
        self._leaves = leaves
        self._free = {leaf: dict.fromkeys(names) for leaf, names in leaves.items()}

    def take(self, name: str) -> str:
        """A partner for a node; "" where none is free. One that it has had only where there is no other."""
        leaf = self.state.fabric.by_name[name].leaf
        had = self.state.nodes.get(name, _NEW).partners
        if leaf in self._leaves:
            return self._take_of(leaf, had, again=set(self._leaves[leaf]) <= set(had))
        others = self._outside(leaf, had)
        return next((found for other in others if (found := self._take_of(other, had, again=True))), "")

    def pairs(self, *, across: bool) -> Iterator[tuple[str, str]]:
        """Two that are free, in one leaf or in two."""
        while True:
            large = [leaf for leaf, free in self._free.items() if len(free) > (0 if across else 1)]
            if len(large) < (2 if across else 1):
                return
            one, other = (large[0], large[1]) if across else (large[0], large[0])
            pair = (next(iter(self._free[one])), next(reversed(self._free[other])))
            for leaf, name in zip((one, other), pair, strict=True):
                del self._free[leaf][name]
            if across:
                self._free[one], self._free[other] = self._free.pop(one), self._free.pop(other)
            yield pair

    def _take_of(self, leaf: str, had: Sequence[str], *, again: bool) -> str:
        free = self._free[leaf]
        found = next((name for name in free if name not in had), "") or (next(iter(free), "") if again else "")
        free.pop(found, None)
        return found

    def _outside(self, leaf: str, had: Sequence[str]) -> list[str]:
        """Other leaves: of the same spine first, and such as it has not had a partner in."""
        spine_of, by_name = self.state.fabric.spine_of, self.state.fabric.by_name
        before = {by_name[name].leaf for name in had}
        own = spine_of[leaf]
        return sorted(
            self._leaves, key=lambda other: (other in before, spine_of[other] != own, -len(self._free[other]))
        )


def _among(
    suspects: Sequence[str], standings: Mapping[str, Standing], settings: Settings, most: int
) -> list[tuple[str, str]]:
    """Suspects with each other: a pair that passed is tested again, and the others meet whom they have not met.

    None where each failed with each, or one had `most` such tests.
    """
    turn = max((sum(map(sum, standings[name].among.values())) for name in suspects), default=0)
    if len(suspects) < 2 or turn >= min(most, 2 * len(suspects) + 1):
        return []
    if all(_failed_with_all(standings[name], suspects, name, settings) for name in suspects):
        return []
    found: list[tuple[str, str]] = []
    used: set[str] = set()
    chosen = set(suspects)
    for name in suspects:
        for other, (passes, failures) in standings[name].among.items():
            if passes and not failures and other in chosen and not {name, other} & used:
                found.append((name, other))
                used |= {name, other}
    found += everyone_with_everyone([one for one in suspects if one not in used], turn)
    return found


def _failed_with_all(standing: Standing, suspects: Sequence[str], name: str, settings: Settings) -> bool:
    most = settings.enough if len(suspects) == 2 else 1
    return all(standing.among.get(other, (0, 0))[1] >= most for other in suspects if other != name)


# --- leaves by themselves ---


def _leaves(state: State) -> list[Test]:
    """All sound nodes of each leaf at once; what fails comes again until that is named or cleared."""
    tests = []
    for leaf in filter(None, state.fabric.leaves):
        standing = state.groups.get(leaf, _NEW)
        if standing.probes and (not has_probe_failure(standing) or decided(standing, state.settings)):
            continue
        if standing.spoiled > state.settings.most_retries:
            continue
        members = sound(state, leaf)
        if len(members) >= LEAST_GROUP:
            rails = _rails(state, members)
            tests.append(_test(Kind.GROUP, Purpose.LEAF, members, (leaf,), leaf, rails))
    return tests


def _halves(state: State) -> list[Test]:
    tests = []
    for leaf, standing in state.groups.items():
        members = sound(state, leaf)
        if named(standing, state.settings) and (leaf,) not in state.parts and len(members) >= _LEAST_HALVES:
            for half in _halved(members):
                tests.append(_test(Kind.GROUP, Purpose.HALVES, half, (leaf,), rails=_rails(state, half)))
    return tests


def _halved(members: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    middle = len(members) // 2
    return tuple(members[:middle]), tuple(members[middle:])


# --- leaves with each other ---


def _across(state: State) -> list[Test]:
    leaves = crossing(state)
    keys = xor_keys(len(leaves), PROVEN_PASSES, every_pair=state.settings.every_pair_of_leaves)
    turn = state.by_purpose.get(Purpose.XOR, 0)
    if turn >= len(keys):
        return []
    return [_of_leaves(state, Kind.XOR, Purpose.XOR, pair) for pair in xor_pairs(leaves, keys[turn])]


def _of_leaves(state: State, kind: Kind, purpose: Purpose, pair: Sequence[str], suspect: str = "") -> Test:
    members = [name for leaf in pair for name in sound(state, leaf)]
    return _test(kind, purpose, members, pair, suspect, _rails(state, members))


def _leaf_suspects(state: State) -> list[Test]:
    settings, spine_of = state.settings, state.fabric.spine_of
    leaves = crossing(state)
    known = {leaf: state.leaves.get(leaf, _NEW) for leaf in leaves}
    suspects = [leaf for leaf, one in known.items() if suspect(one, settings) and not given_up(one, settings)]
    if not suspects:
        return []
    clean = [leaf for leaf, one in known.items() if proven(one, settings)]
    free = list(clean)
    if not free:
        among = _among(suspects, state.leaves, settings, _MOST_AMONG)
        return [_of_leaves(state, Kind.XOR, Purpose.LEAF_AMONG, pair) for pair in among]
    tests = []
    for leaf in suspects:
        had = state.leaves[leaf].partners
        # What failed with it before is not tried again: the path between the two may be what is wrong. Where it was
        # named with several, and cleared with none, they are its partners after all.
        ways = {other: _path(state, leaf, other) for other in clean}
        failed = {other for other, way in ways.items() if way.failures and not cleared(way, settings)}
        if len(failed) == len(ways) > 1 and all(named(way, settings) for way in ways.values()):
            failed = set()
        other_ways = [other for other in free if other not in failed]
        usable = [other for other in other_ways if spine_of[other] == spine_of[leaf]] or other_ways
        if usable:
            partner = min(usable, key=had.count)
            free.remove(partner)
            tests.append(_of_leaves(state, Kind.XOR, Purpose.LEAF_PROBE, (leaf, partner), leaf))
    return tests


def _path(state: State, one: str, other: str) -> Standing:
    return state.paths.get((min(one, other), max(one, other)), _NEW)


def failing_paths(state: State) -> list[tuple[str, str]]:
    """Pairs of leaves that failed together, and of which neither is named for it."""
    settings = state.settings
    return [
        pair
        for pair, standing in state.paths.items()
        if standing.failures and not any(named(state.leaves.get(leaf, _NEW), settings) for leaf in pair)
    ]


def _paths(state: State) -> list[Test]:
    used: set[str] = set()
    tests = []
    for pair in failing_paths(state):
        standing = state.paths[pair]
        if decided(standing, state.settings) or used & set(pair) or given_up(standing, state.settings):
            continue
        used |= set(pair)
        tests.append(_of_leaves(state, Kind.XOR, Purpose.PATH, pair))
    return tests


def _quarters(state: State) -> list[Test]:
    """A path that is named, by halves of its leaves: first each with its like, then crosswise."""
    used: set[str] = set()
    tests = []
    for pair in failing_paths(state):
        done = len(state.parts.get(pair, ()))
        halves = [_halved(sound(state, leaf)) for leaf in pair]
        small = any(not half for both in halves for half in both)
        if not named(state.paths[pair], state.settings) or done >= _QUARTERS or small or used & set(pair):
            continue
        used |= set(pair)
        (one, two), (three, four) = halves
        for members in ((one + three, two + four), (one + four, two + three))[1 if done else 0]:
            tests.append(_test(Kind.MIXED, Purpose.QUARTERS, members, pair, rails=_rails(state, members)))
    return tests
