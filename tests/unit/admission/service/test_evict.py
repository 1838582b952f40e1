"""Evictions: by the eviction API, of exactly this pod, again after a refusal, told once."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.service.evict import AGAIN_S, Evictor
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.view import Pod
from tests.support.fake_api import FakeApi, refusing

POD = Pod("ml", "train", "uid-1", gpus=8)
PATH = "/api/v1/namespaces/ml/pods/train/eviction"


class Clock:
    now = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def evictor(api: FakeApi, tmp_path: Path, out: io.StringIO, clock: Clock) -> Evictor:
    kube = KubeApi(api.kubeconfig(tmp_path / "kubeconfig"), retries=0)
    api.put("pods", {"metadata": {"namespace": "ml", "name": "train", "uid": "uid-1"}})
    metrics = Metrics()
    return Evictor(kube, Journal(out), EventRecorder(kube, metrics), metrics, clock)


def test_a_pod_is_asked_by_its_uid(api: FakeApi, evictor: Evictor) -> None:
    evictor.ask("gpu-1", [POD], "a fault")
    assert api.objects["pods"] == {}
    path, body = api.bodies[-1]
    assert (path, body["deleteOptions"]) == (PATH, {"preconditions": {"uid": "uid-1"}})
    assert evictor.metrics.value("evictions", result="granted") == 1


@pytest.mark.slow
def test_a_budget_that_refuses_is_asked_again_and_told_once(
    api: FakeApi, evictor: Evictor, clock: Clock, out: io.StringIO
) -> None:
    api.before_write = refusing(429, "it would violate the pod's disruption budget", {"Retry-After": "0"})
    again = evictor.ask("gpu-1", [POD], "a fault")
    assert again == clock.now + timedelta(seconds=AGAIN_S)
    asked = len(api.writes())
    assert evictor.ask("gpu-1", [POD], "a fault") == again and len(api.writes()) == asked
    clock.now += timedelta(seconds=AGAIN_S)
    evictor.ask("gpu-1", [POD], "a fault")
    assert len(api.writes()) > asked and evictor.metrics.value("evictions", result="refused") == 2
    assert out.getvalue().count("disruption budget") == 1


def test_a_pod_that_is_gone_is_done(api: FakeApi, evictor: Evictor) -> None:
    api.remove("pods", "ml/train")
    assert evictor.ask("gpu-1", [POD], "a fault") is None


def test_other_trouble_is_the_nodes(api: FakeApi, evictor: Evictor) -> None:
    api.before_write = refusing(403, "pods is forbidden")
    with pytest.raises(ApiError, match="evict pod ml/train: pods is forbidden"):
        evictor.ask("gpu-1", [POD], "a fault")


def test_a_pod_that_cannot_be_asked_is_no_reason_for_the_others_to_stay(api: FakeApi, evictor: Evictor) -> None:
    api.put("pods", {"metadata": {"namespace": "ml", "name": "other", "uid": "uid-2"}})
    api.before_write = refusing(403, "a policy of others", of="/train/")
    with pytest.raises(ApiError, match="evict pod ml/train: a policy of others"):
        evictor.ask("gpu-1", [POD, Pod("ml", "other", "uid-2", gpus=8)], "a fault")
    assert list(api.objects["pods"]) == ["ml/train"]


def test_what_is_gone_is_forgotten(evictor: Evictor) -> None:
    evictor.ask("gpu-1", [POD], "a fault")
    evictor.prune(lambda: {"uid-1"})
    assert evictor._asked
    evictor.prune(set)
    assert not evictor._asked
