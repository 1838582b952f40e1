"""Nodes in MIG mode: kubelet has to offer the instances that were tested, under the names of the plugin's strategy."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide
from gpu_burnin.admission.decide.offered import offers
from gpu_burnin.admission.view import Evidence, View
from gpu_burnin.api.record import Hardware
from gpu_burnin.system.codec import from_json, to_json
from tests.support.admission_helpers import NOW
from tests.support.decide_helpers import HARDWARE, PASSED, RULES, changed, make_view, settled

SEVEN, TWO = {"1g.10gb": 7}, {"3g.40gb": 1, "4g.40gb": 1}
ALIKE = {"GPU-a": SEVEN, "GPU-b": SEVEN}
SINGLE, MIXED = Hardware(2, offered=True, mig_strategy="single"), Hardware(2, offered=True, mig_strategy="mixed")
GPU, SMALL = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb"


def node_with(hardware: Hardware, layouts: dict[str, dict[str, int]], **offered: Any) -> View:
    """A node whose passing evidence is of these instances, and whose kubelet offers this."""
    amounts = {name: str(number) for name, number in offered.pop("offered", {}).items()}
    made = make_view(**offered)
    view = changed(made, statement=PASSED, hardware={**HARDWARE, "mig": layouts}, spec={"hardware": hardware})
    assert view.node is not None
    status = {**view.node["status"], "capacity": amounts, "allocatable": amounts}
    return replace(view, node={**view.node, "status": status})


@pytest.mark.parametrize(
    ("hardware", "layouts", "offered"),
    [
        (SINGLE, ALIKE, {GPU: 14}),
        (MIXED, ALIKE, {SMALL: 14}),
        (MIXED, ALIKE, {SMALL: 14, GPU: 0}),
        (MIXED, {"GPU-a": TWO, "GPU-b": TWO}, {"nvidia.com/mig-3g.40gb": 2, "nvidia.com/mig-4g.40gb": 2}),
        (MIXED, {"GPU-a": {"1g.10gb+me": 1}, "GPU-b": {"1g.10gb+me": 1}}, {"nvidia.com/mig-1g.10gb.me": 2}),
        (Hardware(2), ALIKE, {GPU: 14}),
        (Hardware(2), ALIKE, {SMALL: 3}),
        (Hardware(2), ALIKE, {}),
    ],
)
def test_a_node_is_let_in_when_kubelet_offers_the_instances_that_were_tested(
    hardware: Hardware, layouts: dict[str, dict[str, int]], offered: dict[str, int]
) -> None:
    found = settled(node_with(hardware, layouts, offered=offered))
    assert found.record and (found.record.status.state.value, found.record.status.code) == ("ready", "PASS")


@pytest.mark.parametrize(
    ("hardware", "layouts", "offered", "said"),
    [
        (SINGLE, ALIKE, {GPU: 2}, "kubelet offers 2 of 14 nvidia.com/gpu"),
        (SINGLE, ALIKE, {GPU: 13}, "kubelet offers 13 of 14 nvidia.com/gpu"),
        (SINGLE, ALIKE, {GPU: 15}, "kubelet offers 15 of 14 nvidia.com/gpu"),
        (SINGLE, ALIKE, {}, "kubelet does not offer nvidia.com/gpu: its device plugin has not registered"),
        (SINGLE, ALIKE, {GPU: 14, SMALL: 14}, "it also offers nvidia.com/mig-1g.10gb, which nobody tested as such"),
        (MIXED, ALIKE, {GPU: 14}, "offer nvidia.com/mig-1g.10gb: its device plugin has not registered; it also"),
        (MIXED, ALIKE, {SMALL: 13}, "kubelet offers 13 of 14 nvidia.com/mig-1g.10gb"),
        (MIXED, ALIKE, {SMALL: 14, GPU: 1}, "it also offers nvidia.com/gpu"),
        (MIXED, {"GPU-a": TWO, "GPU-b": TWO}, {"nvidia.com/mig-3g.40gb": 2}, "does not offer nvidia.com/mig-4g.40gb"),
        (MIXED, {"GPU-a": SEVEN, "GPU-b": TWO}, {SMALL: 7},
         "have different MIG instances: 7 x 1g.10gb on GPU-a; 1 x 3g.40gb + 1 x 4g.40gb on GPU-b; give all of them"),
        (MIXED, {"GPU-a": SEVEN}, {SMALL: 7, GPU: 1}, "7 x 1g.10gb on GPU-a; MIG off on GPU-b"),
        (MIXED, {"GPU-a": SEVEN, "GPU-b": {}}, {SMALL: 7}, "7 x 1g.10gb on GPU-a; none on GPU-b"),
        (MIXED, {"GPU-a": {}, "GPU-b": {}}, {}, "in MIG mode without instances"),
        (SINGLE, {"GPU-a": TWO, "GPU-b": TWO}, {GPU: 4}, "instances of 3g.40gb and 4g.40gb, and a device plugin with"),
        (Hardware(2, offered=True), ALIKE, {GPU: 2}, "has no MIG_STRATEGY: set single or mixed"),
    ],
)  # fmt: skip
def test_a_node_stays_out_when_kubelet_offers_anything_else(
    hardware: Hardware, layouts: dict[str, dict[str, int]], offered: dict[str, int], said: str
) -> None:
    found = decide(node_with(hardware, layouts, offered=offered), RULES, NOW).status
    assert (found.code, found.state.value) == ("GPUS_MISSING", "testing")
    assert said in found.message


def test_without_mig_the_strategy_changes_nothing() -> None:
    for hardware in (SINGLE, MIXED):
        assert offers(hardware, {}) == {GPU: 2}
        view = changed(make_view(), spec={"hardware": hardware}, capacity="2", allocatable="2")
        assert decide(view, RULES, NOW).status.code == "PASS"


@pytest.mark.parametrize(
    ("layouts", "asked"), [(ALIKE, True), ({"GPU-a": SEVEN, "GPU-b": TWO}, False)], ids=["a GPU fails", "never offered"]
)
def test_a_test_is_asked_for_where_it_may_find_the_instance_that_is_missing(
    layouts: dict[str, dict[str, int]], asked: bool
) -> None:
    view = node_with(MIXED, layouts, offered={SMALL: 13, "nvidia.com/mig-3g.40gb": 1, "nvidia.com/mig-4g.40gb": 1})
    for second in range(0, 600, 20):
        view = settled(view, NOW + timedelta(seconds=second))
    assert view.record and (view.record.status.request is not None) == asked


def test_while_its_evidence_is_withdrawn_for_a_test_the_node_is_asked_for_what_it_was_let_in_with() -> None:
    view = settled(node_with(SINGLE, ALIKE, offered={GPU: 14}))
    gone = replace(view, evidence=Evidence())
    assert "offers" not in decide(gone, RULES, NOW).status.message


def test_the_record_has_the_strategy_only_where_there_is_one() -> None:
    assert "migStrategy" not in to_json(Hardware(2))
    written = to_json(SINGLE)
    assert from_json(Hardware, written) == SINGLE
