"""Who is tested with whom: nobody is left out, nobody twice at once, and no pair comes again too soon."""

from __future__ import annotations

import itertools

import pytest

from gpu_burnin.fleet.fabric.pairing import everyone_with_everyone, groups_of_two, xor_keys, xor_pairs


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 31, 32, 33])
def test_each_turn_has_everyone_once(count: int) -> None:
    for turn in range(4):
        members = [member for group in groups_of_two(range(count), turn) for member in group]
        assert sorted(members) == list(range(count))


def test_one_alone_has_no_partner() -> None:
    assert list(groups_of_two(["gpu-1"], 0)) == []


@pytest.mark.parametrize("count", [4, 6, 8, 32])
def test_two_turns_share_no_pair(count: int) -> None:
    first, second = ({frozenset(pair) for pair in groups_of_two(range(count), turn)} for turn in (0, 1))
    assert not first & second


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_each_meets_each(count: int) -> None:
    met: set[frozenset[int]] = set()
    for turn in range(count):
        pairs = list(everyone_with_everyone(range(count), turn))
        members = [member for pair in pairs for member in pair]
        assert len(members) == len(set(members))
        met |= {frozenset(pair) for pair in pairs}
    assert met == {frozenset(pair) for pair in itertools.combinations(range(count), 2)}


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 9, 235])
def test_each_leaf_is_tested_with_another_one_twice(count: int) -> None:
    met = [index for key in xor_keys(count, 2) for pair in xor_pairs(range(count), key) for index in pair]
    assert min(met.count(index) for index in range(count)) >= 2
    # As many rounds as there are dimensions, and few more where the number is no power of two.
    assert len(xor_keys(count, 2)) <= (count - 1).bit_length() + 2


def test_every_pair_of_leaves_is_twice_where_that_is_wanted() -> None:
    met = [pair for key in xor_keys(11, 2, every_pair=True) for pair in xor_pairs(range(11), key)]
    assert {pair: met.count(pair) for pair in met} == dict.fromkeys(itertools.combinations(range(11), 2), 2)
