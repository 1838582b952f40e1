"""What counts as a change by somebody else."""

from __future__ import annotations

from typing import Any

from gpu_burnin.admission.service.marks import Marks
from gpu_burnin.api.names import READY_LABEL
from tests.support.admitter_helpers import NAMES

QUARANTINE = {"key": NAMES.quarantine, "effect": "NoSchedule", "value": "XID_FATAL"}


def node(*taints: dict[str, str], uid: str = "1", **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "gpu-1", "uid": uid, "labels": labels}, "spec": {"taints": list(taints)}}


def foreign_change(before: dict[str, Any], after: dict[str, Any]) -> str:
    marks = Marks(NAMES)
    marks.left(before)
    return marks.changed(after)


def test_taints_and_labels_of_the_fleet_count() -> None:
    ready = {READY_LABEL: "true"}
    assert foreign_change(node(QUARANTINE), node()) == "took away taint muster.dev/quarantine:NoSchedule"
    assert foreign_change(node(), node(QUARANTINE)) == "added taint muster.dev/quarantine:NoSchedule"
    assert foreign_change(node(QUARANTINE), node(**ready)) == (
        f"took away taint muster.dev/quarantine:NoSchedule and added label {READY_LABEL}=true"
    )
    assert foreign_change(node(QUARANTINE, **ready), node(QUARANTINE, **ready)) == ""


def test_others_do_not() -> None:
    assert (
        foreign_change(node(), node({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, team="red")) == ""
    )


def test_of_another_node_or_after_a_write_without_answer_nothing_is_known() -> None:
    assert foreign_change(node(QUARANTINE), node(uid="2")) == ""
    marks = Marks(NAMES)
    assert marks.changed(node()) == ""
    marks.left(node(QUARANTINE))
    marks.forget("gpu-1")
    assert marks.changed(node()) == ""


def test_a_patch_of_ours_is_no_change_of_others() -> None:
    """Taints as a whole; labels as a whole where there are none, else one by one, with the pointer's escapes."""
    marks = Marks(NAMES)
    escaped = READY_LABEL.replace("/", "~1")
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": "1"}
    add = {"op": "add", "path": f"/metadata/labels/{escaped}", "value": "true"}
    marks.written(node(QUARANTINE), [version, {"op": "add", "path": "/spec/taints", "value": []}, add])
    assert marks.changed(node(**{READY_LABEL: "true"})) == ""
    assert marks.changed(node(QUARANTINE)) != ""
    marks.written(node(**{READY_LABEL: "true"}), [version, {"op": "remove", "path": f"/metadata/labels/{escaped}"}])
    assert marks.changed(node()) == ""
    marks.written(node(), [version, {"op": "add", "path": "/metadata/labels", "value": {READY_LABEL: "true"}}])
    assert marks.changed(node(**{READY_LABEL: "true"})) == ""
