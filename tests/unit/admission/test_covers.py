"""What the API server's answer has to say of an object that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.admission.objects import covers


@pytest.mark.parametrize(
    ("found", "wanted", "said"),
    [
        # The API server leaves out what is empty.
        ({"roleRef": {"name": "a"}}, {"roleRef": {"name": "a"}, "subjects": []}, True),
        ({"subjects": None}, {"subjects": []}, True),
        ({"subjects": [{"name": "ann"}]}, {"subjects": []}, False),
        ({"subjects": []}, {"subjects": [{"name": "ann"}]}, False),
        ({}, {"subjects": [{"name": "ann"}]}, False),
        ({"subjects": [{"name": "ann", "apiGroup": "rbac"}]}, {"subjects": [{"name": "ann"}]}, True),
        ({"subjects": [{"name": "ann"}, {"name": "bob"}]}, {"subjects": [{"name": "ann"}]}, False),
        ({"spec": {"a": 1, "b": 2}}, {"spec": {"a": 1}}, True),
    ],
)
def test_an_answer_covers_what_was_asked_for(found: Any, wanted: Any, said: bool) -> None:
    assert covers(found, wanted) is said
