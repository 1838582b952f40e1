"""The page of numbers for node_exporter's textfile collector."""

from __future__ import annotations

import math

from gpu_burnin.system.exposition import Family, page


def test_values_are_whole_or_as_they_are_and_labels_are_escaped() -> None:
    samples = [({}, 3.0), ({"path": 'C:\\a "b"\n'}, 0.25), ({"of": "time"}, 1764240000.125), ({"of": "flag"}, True)]
    assert page("", [Family("x_total", "counter", "Things.", samples)]) == (
        "# HELP x_total Things.\n"
        "# TYPE x_total counter\n"
        "x_total 3\n"
        'x_total{path="C:\\\\a \\"b\\"\\n"} 0.25\n'
        'x_total{of="time"} 1764240000.125\n'
        'x_total{of="flag"} 1\n'
    )


def test_what_is_not_known_or_no_number_has_no_sample() -> None:
    unknown = Family("a", "gauge", "A.", [({}, None), ({"gpu": "0"}, math.nan), ({"gpu": "1"}, math.inf)])
    assert page("", [unknown, Family("b", "gauge", "B.", [])]) == ""


def test_of_two_samples_with_one_name_the_last_holds() -> None:
    assert page("p_", [Family("a", "gauge", "A.", [({"gpu": "0"}, 1), ({"gpu": "0"}, 2)])]).splitlines()[2:] == [
        'p_a{gpu="0"} 2'
    ]
