"""What the ledger says of a node's place and model stands on its Node as labels, whether it takes work or not."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.view import Node, View
from gpu_burnin.api.names import LABEL_PREFIX
from gpu_burnin.api.record import Ask, Hardware, Place
from tests.support.admission_helpers import NOW, make_node
from tests.support.decide_helpers import RULES, SPEC, carried_out, changed, make_view, ready_view, settled

PLACED = replace(SPEC, place=Place("r12", "leaf-7", "a"), hardware=Hardware(model="h100-sxm5-80gb"))
LABELS = {"rack": "r12", "leaf": "leaf-7", "feed": "a", "gpu": "h100-sxm5-80gb"}
HOLD = Ask("ann", "loud fan", "2026-11-22T12:00:00Z")


def place_labels(node: Node | None) -> dict[str, str]:
    """Those labels of the Node that tell place and model."""
    assert node is not None
    labels = node["metadata"].get("labels") or {}
    return {key.removeprefix(LABEL_PREFIX): v for key, v in labels.items() if key.removeprefix(LABEL_PREFIX) in LABELS}


@pytest.mark.parametrize(
    "view",
    [
        make_view(spec=PLACED),
        make_view(None, spec=PLACED),
        make_view(spec=replace(PLACED, hold=HOLD)),
        make_view(spec=PLACED, node=make_node(labels={"zone": "a"})),
    ],
    ids=["ready", "untested", "held", "with a label of others"],
)
def test_every_node_of_the_ledger_carries_what_is_known(view: View) -> None:
    after = settled(view)
    assert place_labels(after.node) == LABELS
    assert decide(after, RULES, NOW).node_patch is None


def test_they_change_with_the_ledger_and_go_with_it() -> None:
    view = ready_view(spec={"place": Place("r12", "leaf-7", "a"), "hardware": Hardware(model="h100-sxm5-80gb")})
    view = settled(view)
    moved = settled(changed(view, spec={"place": Place("r13", feed="a")}))
    assert place_labels(moved.node) == {"rack": "r13", "feed": "a", "gpu": "h100-sxm5-80gb"}
    assert place_labels(settled(changed(moved, spec={"place": Place(), "hardware": Hardware()})).node) == {}


def test_a_node_that_the_ledger_does_not_have_says_nothing() -> None:
    labels = {f"{LABEL_PREFIX}{key}": value for key, value in {**LABELS, "ready": "true"}.items()}
    view = make_view(node=make_node(labels=labels), record=None)
    assert place_labels(carried_out(view, decide(view, RULES, NOW)).node) == {}


@pytest.mark.parametrize("changes", [{"paused": "ann: storm"}, {}])
def test_neither_a_pause_nor_a_brake_keeps_them_back(changes: dict[str, Any]) -> None:
    view = make_view(spec=PLACED, **changes)
    decision = decide(view, RULES, NOW)
    left = decision if view.paused else withheld(decision, "others are before it", NOW + timedelta(seconds=9))
    assert not left.opens
    assert place_labels(carried_out(view, left).node) == LABELS
