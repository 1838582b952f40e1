"""How many nodes may swing at a feed, as inventories say it."""

from __future__ import annotations

import re

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import Limits, limit_mistakes, read_limits


def test_what_has_no_limit_of_its_own_shares_one() -> None:
    limits = read_limits({"a": 2, 7: "3"}, "1")
    assert limits == Limits(1, {"a": 2, "7": 3})
    assert [limits.of(feed) for feed in ("a", "7", "b", "")] == [2, 3, 1, 1]
    assert [limits.counted_as(feed) for feed in ("a", "7", "b", "")] == ["a", "7", "", ""]
    assert limits.together(["a", "7", "b", "", "c"]) == 6
    assert [limits.together(feeds) for feeds in (["a", "a"], ["b", "c"], ["a", "b"], [])] == [2, 1, 3, 0]


@pytest.mark.parametrize("limit", [0, -1, "0", "-2", 1.5, True, None, "many", "²", [1]])
def test_a_limit_is_a_number_of_nodes(limit: object) -> None:
    with pytest.raises(GpuBurninError) as refused:
        read_limits({"a": limit}, 1)
    said = f"fleet_feed_limits has {limit!r} for the feed a; give how many nodes may swing there, 1 or more"
    assert str(refused.value) == said
    with pytest.raises(GpuBurninError, match=re.escape(f"gpu_burnin_wave_max_nodes is {limit!r}; give how many")):
        read_limits({}, limit)


def test_limits_are_a_dictionary_and_each_feed_is_there_once() -> None:
    assert [message for message, _ in limit_mistakes(["a"])] == [
        "fleet_feed_limits is ['a'], not a dictionary of nodes by feed"
    ]
    assert [message for message, _ in limit_mistakes({1: 2, "1": 3})] == [
        "fleet_feed_limits has the feed 1 twice, as a number and as a text"
    ]
