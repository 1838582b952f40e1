"""What `fleet_traffic` and its limits may say: each mistake is one sentence that names the class and the range."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import Inventory
from ansible_collections.muster.fleet.plugins.module_utils.preflight.traffic_rules import traffic

CLASSES = {"cluster": ["10.0.0.0/8", "fd00::/8"], "storage": ["11.0.0.0/8"], "internet": "rest"}


def lines(classes: Any, limits: Any = None) -> list[str]:
    """The problems of these values."""
    inventory = Inventory({}, fleet={"fleet_traffic": classes, "fleet_traffic_limits": limits or {}})
    return [problem.line() for problem in traffic(inventory)]


@pytest.mark.parametrize(
    ("classes", "limits"),
    [
        ({}, {}),
        (None, {"a": 1}),
        (CLASSES, {}),
        (CLASSES, {"internet": "10e9", "cluster": 4e11}),
        ({"a-1": "rest"}, {}),
    ],
)
def test_what_is_accepted(classes: Any, limits: Any) -> None:
    assert lines(classes, limits) == []


@pytest.mark.parametrize(
    ("classes", "line"),
    [
        (["10.0.0.0/8"], "fleet_traffic is ['10.0.0.0/8'], not a dictionary of classes; write one, such as {cluster: "),
        (
            {"cluster": ["10.0.0.0/8"], "storage": ["fd00::/8", "10.9.0.0/16"], "internet": "rest"},
            "fleet_traffic: 10.0.0.0/8 of cluster and 10.9.0.0/16 of storage share addresses; a packet has one class: ",
        ),
        (
            {"a": ["2001:db8::/32"], "b": ["2001:DB8:1::/48"], "c": "rest"},
            "fleet_traffic: 2001:db8::/32 of a and 2001:db8:1::/48 of b share addresses; a packet has one class: ",
        ),
        (
            {"a": ["10.0.0.0/8", "10.0.0.0/8"], "b": "rest"},
            "fleet_traffic: 10.0.0.0/8 of a and 10.0.0.0/8 of a share addresses; a packet has one class: ",
        ),
        (
            {"a": ["10.1.2.3/16"], "b": "rest"},
            "fleet_traffic.a: 10.1.2.3/16 has bits behind its prefix; write 10.1.0.0/16, or the prefix that was meant",
        ),
        (
            {"a": ["appletalk/8"], "b": "rest"},
            "fleet_traffic.a: 'appletalk/8' is a range of neither IPv4 nor IPv6; write one like 10.20.0.0/16 or ",
        ),
        (
            {"a": ["10.1.2.3"], "b": "rest"},
            "fleet_traffic.a: '10.1.2.3' is no range of addresses; write it with its prefix, like 10.20.0.0/16 or ",
        ),
        ({"a": [10], "b": "rest"}, "fleet_traffic.a: 10 is no range of addresses; write it with its prefix, like "),
        ({"a": ["::/0"], "b": "rest"}, "fleet_traffic.a: ::/0 is every address; give the class the word rest instead"),
        ({"a": ["10.0.0.0/8"]}, "fleet_traffic has no class for all other addresses; give exactly one class the word "),
        (
            {"a": "rest", "b": "rest"},
            "fleet_traffic has the classes a and b for all other addresses; give exactly one class the word rest, ",
        ),
        (
            {"a": "10.0.0.0/8", "b": "rest"},
            "fleet_traffic.a is '10.0.0.0/8', neither ranges of addresses nor rest; give it a list, such as ",
        ),
        (
            {"a": [], "b": "rest"},
            "fleet_traffic.a is [], neither ranges of addresses nor rest; give it a list, such as ",
        ),
        *(
            (
                {name: "rest"},
                f"fleet_traffic has a class {name!r}, which cannot be a label and the end of a chain's name; use at "
                "most 12 lower-case letters, digits and -, with a letter first and no - last",
            )
            for name in ("The Net", "a" * 13, "a-", "1st", "a_b", "", 7)
        ),
    ],
)
def test_a_mistake_of_the_classes_is_one_sentence(classes: Any, line: str) -> None:
    [found] = lines(classes)
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        (10, "fleet_traffic_limits is 10, not a dictionary of bits per second by class; write one, such as "),
        (
            {"world": 10},
            "fleet_traffic_limits has 'world', which is no class of fleet_traffic; it has cluster, storage, internet: "
            "correct the name, or take the limit away",
        ),
        *(
            (
                {"internet": limit},
                f"fleet_traffic_limits.internet is {limit!r}, no number of bits per second above 0; write one, such ",
            )
            for limit in ("10 Gbit", 0, -1, True, [1], float("inf"), float("nan"))
        ),
    ],
)
def test_a_mistake_of_the_limits_is_one_sentence(limits: Any, line: str) -> None:
    [found] = lines(CLASSES, limits)
    assert found.startswith(line)


def test_a_limit_without_classes_is_a_mistake() -> None:
    [found] = lines({}, {"internet": 10})
    assert found == (
        "fleet_traffic_limits has 'internet', which is no class of fleet_traffic; it is empty: correct the name, or "
        "take the limit away"
    )


def test_all_mistakes_are_told_at_once() -> None:
    assert len(lines({"A": ["10.0.0.0/8", "10.1.0.0/16", "10.0.0.1/9"]}, {"b": 0})) == 6
