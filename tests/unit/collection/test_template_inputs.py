"""Equal keys only for equal inputs: a wrong one would give a host another host's value."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.template_inputs import inputs, names_in


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{{ a ~ b.c }}", {"a", "b"}),
        ("{% for i in c %}{{ i }}{% endfor %}", {"c", "i"}),
        ("{{ d | muster.fleet.addresses(hostvars) }}", {"d", "hostvars"}),
        ("{{ lookup('ansible.builtin.env', e) }}", {"e"}),
        ("{{ lookup('vars', e) }}", None),
        ("{{ lookup(e) }}", None),
        ("{{ query('template', 'x') }}", None),
        ("{{ vars['a'] }}", None),
        ("{{ broken", None),
    ],
)
def test_names(text: str, names: set[str] | None) -> None:
    found = names_in(text)
    assert (None if found is None else set(found)) == names


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"unrelated": 2}, True),
        ({"deep": "other"}, False),
        ({"top": "{{ middle }}!"}, False),
        ({"middle": ["{{ other }}"]}, False),
        ({"hostvars": "any"}, True),
    ],
)
def test_the_key_follows_every_input(change: dict[str, Any], same: bool) -> None:
    base = {"top": "{{ middle }}{{ hostvars }}{{ never_set }}", "middle": ["{{ deep }}"], "deep": "x", "unrelated": 1}
    assert (inputs("top", base) == inputs("top", {**base, **change})) is same


def test_what_cannot_be_told_has_no_key() -> None:
    assert inputs("a", {"a": "{{ b }}", "b": {"k": "{{ lookup('vars', 'c') }}"}}) is None


def test_a_circle_ends() -> None:
    assert inputs("a", {"a": "{{ b }}", "b": "{{ a }}"}) is not None
