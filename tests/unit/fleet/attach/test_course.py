"""What attaching and detaching refuse before anything is written."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.admission.client import ApiError, NotFound
from gpu_burnin.admission.objects import path_of
from gpu_burnin.api.attached import GpuNodes, Mode
from gpu_burnin.fleet.attach import course, render
from gpu_burnin.fleet.attach.ability import Refused
from gpu_burnin.fleet.attach.discover import Capabilities, Found
from gpu_burnin.fleet.attach.policies import ADMISSION
from gpu_burnin.fleet.attach.settings import Settings

NOW = datetime(2026, 11, 28, tzinfo=UTC)
SETTINGS = Settings("registry.example.com/muster:1", GpuNodes("example.com/gpu", "yes"), Mode.ENFORCING)
WEBHOOK = Capabilities("v1.35.0", True, False, False, ())


class Cluster:
    """Has these objects, and says of each right whether the user has it; keeps what is written."""

    server = "https://cluster"

    def __init__(self, *there: dict[str, Any], may: Any = lambda of: True) -> None:
        self.there = {path_of(one): copy.deepcopy(one) for one in there}
        self.may, self.writes, self.reads = may, list[str](), list[str]()

    def get(self, path: str, _: str = "") -> dict[str, Any]:
        assert path == "/version"
        return {"gitVersion": "v1.35.0"}

    def find(self, path: str, _: str = "") -> dict[str, Any] | None:
        self.reads.append(path)
        if path == f"/apis/{ADMISSION}":
            return {"resources": [{"kind": "ValidatingAdmissionPolicy"}]}
        return self.there.get(path)

    def items(self, *_: object, **__: object) -> list[dict[str, Any]]:
        return []

    def create(self, path: str, body: dict[str, Any], _: str = "") -> dict[str, Any]:
        if path.endswith("selfsubjectreviews"):
            return {"status": {"userInfo": {"username": "ann"}}}
        assert path.endswith("selfsubjectaccessreviews")
        return {"status": {"allowed": self.may(body["spec"]["resourceAttributes"])}}

    def delete(self, path: str, _: str = "") -> None:
        self.writes.append(path)
        if self.there.pop(path, None) is None:
            raise NotFound(path)

    def apply(self, path: str, *_: object) -> dict[str, Any]:
        self.writes.append(path)
        raise AssertionError(path)


def ours(kind: str) -> dict[str, Any]:
    return next(dict(one) for one in course.variants(SETTINGS, WEBHOOK) if one["kind"] == kind)


def others(kind: str) -> dict[str, Any]:
    found = copy.deepcopy(ours(kind))
    found["metadata"]["labels"] = {"app": "another"}
    return found


@pytest.mark.parametrize(
    "kind", ["PriorityClass", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration", "Namespace"]
)
def test_what_is_somebody_elses_by_name_is_neither_written_nor_removed(kind: str) -> None:
    cluster = Cluster(others(kind))
    name = others(kind)["metadata"]["name"]
    with pytest.raises(Refused, match=f"{kind}/{name} is there and was not made by attach"):
        course.attach(cluster, SETTINGS, NOW)  # type: ignore[arg-type]
    with pytest.raises(Refused, match=f"{kind}/{name} is there and was not made by attach"):
        course.detach(cluster, SETTINGS)  # type: ignore[arg-type]
    assert cluster.writes == []


def test_what_is_ours_is_removed() -> None:
    cluster = Cluster(ours("PriorityClass"), ours("Namespace"))
    assert course.detach(cluster, SETTINGS) == (  # type: ignore[arg-type]
        "PriorityClass/muster",
        "Namespace/muster-system",
    )
    assert cluster.there == {}


def only_reads(of: dict[str, str]) -> bool:
    """A role of a reader: no Secrets."""
    return of["verb"] in ("get", "list") and of["resource"] != "secrets"


def test_who_may_only_look_may_look_and_learns_what_more_it_takes() -> None:
    secret = ours("Secret")
    cluster = Cluster(ours("PriorityClass"), secret, may=only_reads)
    done = course.attach(cluster, SETTINGS, NOW, apply=False)  # type: ignore[arg-type]
    assert "create/patch daemonsets.apps in muster-system" in done.lacking and "get" in done.lacking
    assert "escalate/bind clusterroles.rbac.authorization.k8s.io" in done.lacking
    assert f"lacking: you may not {done.lacking}" in render.text(done, dry_run=True)
    said: list[str] = []
    removed = course.detach(cluster, SETTINGS, apply=False, say=said.append)  # type: ignore[arg-type]
    assert removed == ("PriorityClass/muster",) and "delete priorityclasses.scheduling.k8s.io" in said[0]
    assert path_of(secret) not in cluster.reads and cluster.writes == []
    for run in (lambda: course.attach(cluster, SETTINGS, NOW), lambda: course.detach(cluster, SETTINGS)):  # type: ignore[arg-type]
        with pytest.raises(Refused, match="you \\(ann\\) may not"):
            run()
    blind = Cluster(may=lambda of: only_reads(of) and of["resource"] != "pods")
    with pytest.raises(Refused, match="may not list pods, so nothing was written"):
        course.attach(blind, SETTINGS, NOW, apply=False)  # type: ignore[arg-type]


def test_an_admin_lacks_nothing() -> None:
    assert course.attach(Cluster(), SETTINGS, NOW, apply=False).lacking == ""  # type: ignore[arg-type]


def test_a_webhook_that_does_not_answer_yet_is_no_error() -> None:
    class Asked(Cluster):
        def __init__(self, error: ApiError | None) -> None:
            super().__init__()
            self.error = error

        def apply(self, _: str, body: dict[str, Any], __: str) -> dict[str, Any]:  # type: ignore[override]
            if self.error is not None:
                raise self.error
            return {**body, "spec": {"taints": [{"key": "muster.dev/preflight"}]}}

    def answer(error: ApiError | None, settings: Settings = SETTINGS) -> bool | None:
        return course.webhook_taints(Asked(error), settings)  # type: ignore[arg-type]

    assert answer(None) is True
    assert answer(ApiError("muster-node-gate.attached refuses it", 403)) is False
    assert answer(ApiError("another policy refuses it", 403)) is None
    assert answer(None, replace(SETTINGS, mode=Mode.OBSERVING)) is None
    done = course.Written(WEBHOOK, Found((), (), (), ()), SETTINGS, (), (), tainted=False)
    assert "the webhook adds no taint yet" in render.text(done, dry_run=False)
