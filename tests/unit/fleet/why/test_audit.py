"""The API servers' audit log: what people did to a node and its pods, whatever else is in the file."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.names import ADMITTER_USER
from gpu_burnin.fleet.why.entry import What
from gpu_burnin.fleet.why.of_files import NotLookedAt, of_audit

SINCE = datetime(2026, 11, 1, tzinfo=UTC)
PODS = frozenset({"train/bert-0"})


def line(verb: str, resource: str, name: str, *, user: str = "ann", part: str = "", **more: Any) -> str:
    about = {"resource": resource, "name": name, **({"subresource": part} if part else {})}
    if resource == "pods":
        about["namespace"] = more.pop("namespace", "train")
    event = {
        "kind": "Event", "stage": "ResponseComplete", "verb": verb, "user": {"username": user}, "objectRef": about,
        "responseStatus": {"code": 200}, "requestReceivedTimestamp": "2026-11-22T10:00:00.123456Z", **more,
    }  # fmt: skip
    return json.dumps(event)


def read(folder: Path, *lines: str) -> list[tuple[str, What]]:
    path = folder / "audit.log"
    path.write_text("\n".join(lines))
    return [(one.sentence, one.what) for one in of_audit(path, "gpu-1", PODS, SINCE)[0]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            line("patch", "nodes", "gpu-1", requestObject={"spec": {"unschedulable": True}}),
            ("cordoned nodes/gpu-1 (by ann)", What.PERSON),
        ),
        (line("create", "pods", "bert-0", part="eviction"), ("evicted train/bert-0 (by ann)", What.PERSON)),
        (line("delete", "pods", "bert-0"), ("deleted train/bert-0 (by ann)", What.PERSON)),
        (
            line("patch", "nodes", "gpu-1", requestObject={"metadata": {"labels": {"a": "b"}}}),
            ("patched nodes/gpu-1 (by ann)", What.TOLD),
        ),
        (
            line("patch", "nodeadmissions", "gpu-1", requestObject=[{"op": "add", "path": "/spec/hold"}]),
            ("patched (/spec/hold) nodeadmissions/gpu-1 (by ann)", What.PERSON),
        ),
        (
            line("create", "pods", "bert-0", part="eviction", user=ADMITTER_USER),
            (f"evicted train/bert-0 (by {ADMITTER_USER})", What.DRAINED),
        ),
        (
            line("delete", "nodes", "gpu-1", impersonatedUser={"username": "bob"}),
            ("deleted nodes/gpu-1 as bob (by ann)", What.PERSON),
        ),
    ],
)
def test_what_people_did_is_told(text: str, told: tuple[str, What], tmp_path: Path) -> None:
    assert read(tmp_path, text) == [told]


@pytest.mark.parametrize(
    "text",
    [
        line("get", "nodes", "gpu-1"),
        line("patch", "nodes", "gpu-10"),
        line("delete", "pods", "bert-0", namespace="other"),
        line("patch", "nodes", "gpu-1", user="system:serviceaccount:kube-system:x"),
        line("patch", "nodes", "gpu-1", user=ADMITTER_USER),
        line("delete", "nodes", "gpu-1", responseStatus={"code": 403}),
        line("delete", "nodes", "gpu-1", stage="RequestReceived"),
        line("delete", "nodes", "gpu-1", requestReceivedTimestamp="2026-10-01T10:00:00Z"),
        line("create", "configmaps", "gpu-1"),
    ],
)
def test_what_is_of_nobody_here_is_left_out(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text) == []


def test_garbage_is_counted_and_hides_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.log.gz"
    bad = [
        b"gpu-1 {",
        b'["gpu-1"]',
        b'{"verb": "patch", "objectRef": "gpu-1"}',
        b"\xff\xfe gpu-1",
        b'{"gpu-1": ' + b"[" * 99999,
    ]
    good = line("delete", "nodes", "gpu-1").encode()
    path.write_bytes(gzip.compress(b"\n".join([*bad, good, b""])))
    entries, told = of_audit(path, "gpu-1", PODS, SINCE)
    assert len(entries) == 1
    assert told == f"{path}: 5 lines are no audit events and were passed over"


def test_a_file_that_ends_in_its_middle_is_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "audit.log.gz"
    path.write_bytes(gzip.compress(b"x" * 9999)[:40])
    with pytest.raises(NotLookedAt, match="audit log cannot be read"):
        of_audit(path, "gpu-1", PODS, SINCE)
