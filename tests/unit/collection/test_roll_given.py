"""What `muster roll` reads of an inventory. The action itself runs in tests/unit/fleet/waves/test_roll_kills.py."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.action import roll_given


def inventory(group: dict[str, Any], host: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(groups={"all": SimpleNamespace(vars=group)}, hosts={"gpu-1": SimpleNamespace(vars=host)})


@pytest.mark.parametrize(
    ("group", "host", "jumps"),
    [
        ({}, {}, False),
        ({"ansible_ssh_common_args": "-o UserKnownHostsFile=/known"}, {}, False),
        ({"ansible_ssh_common_args": "-o ProxyJump=bastion"}, {}, True),
        ({}, {"ansible_ssh_extra_args": "-J bastion"}, True),
        ({}, {"ansible_ssh_common_args": '-o ProxyCommand="ssh -W %h:%p bastion"'}, True),
    ],
)
def test_a_jump_host_is_seen(group: dict[str, Any], host: dict[str, Any], jumps: bool) -> None:
    assert roll_given._jumps(inventory(group, host)) is jumps


@pytest.mark.parametrize(
    ("expect", "model"), [({"model": "b200", "gpus": 8}, "b200"), ({"gpus": 8}, ""), (None, ""), ("{{ broken }}", "")]
)
def test_a_node_without_a_model_has_none(expect: object, model: str) -> None:
    assert roll_given._model(expect) == model
