"""The webhook: what it adds, and how its certificates are made and renewed."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.webhook import server
from gpu_burnin.admission.webhook.certificate import (
    AUTHORITY_LASTS,
    SERVER_LASTS,
    Pair,
    make_authority,
    make_server,
    usable,
)
from gpu_burnin.admission.webhook.review import ReviewError, answer, taint_patch
from gpu_burnin.admission.webhook.server import Webhook
from gpu_burnin.api.attached import Attached, GpuNodes, Mode
from gpu_burnin.api.names import Names
from gpu_burnin.errors import GpuBurninError
from tests.support.clocks import PATIENCE_S, wait_until
from tests.support.fake_api import apply_patch

NOW = datetime(2026, 11, 28, tzinfo=UTC)
NODES = GpuNodes("example.com/gpu", "yes", ("gpu-x",))
TAINT = {"key": "muster.dev/preflight", "effect": "NoSchedule"}
OTHER = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def request(node: dict[str, Any], operation: str = "CREATE") -> dict[str, Any]:
    return {"uid": "1", "operation": operation, "kind": {"group": "", "kind": "Node"}, "object": node}


@pytest.mark.parametrize(
    ("metadata", "spec", "taints"),
    [
        ({"name": "a", "labels": {"example.com/gpu": "yes"}}, None, [TAINT]),
        ({"name": "gpu-x"}, {}, [TAINT]),
        ({"name": "gpu-x"}, {"taints": []}, [TAINT]),
        ({"name": "gpu-x"}, {"taints": [OTHER]}, [OTHER, TAINT]),
        ({"name": "gpu-x"}, {"taints": [TAINT]}, [TAINT]),
        ({"name": "a", "labels": {"example.com/gpu": "no"}}, {"taints": [OTHER]}, [OTHER]),
    ],
)
def test_a_new_gpu_node_has_the_taint_once(
    metadata: dict[str, Any], spec: dict[str, Any] | None, taints: list[dict[str, str]]
) -> None:
    node = {"metadata": metadata, **({} if spec is None else {"spec": spec})}
    patch = taint_patch(request(node), NODES, Names())
    assert apply_patch(node, patch)["spec"]["taints"] == taints


def test_it_never_refuses_and_leaves_updates_alone() -> None:
    assert taint_patch(request({"metadata": {"name": "gpu-x"}}, "UPDATE"), NODES, Names()) == []
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request({"metadata": {}})}
    assert answer(review, NODES, Names())["response"] == {"uid": "1", "allowed": True}
    with pytest.raises(ReviewError):
        answer({"kind": "Pod"}, NODES, Names())


def test_a_certificate_ends_no_later_than_its_authority() -> None:
    authority = make_authority(NOW, "test")
    assert make_server(authority, "a.b.svc", NOW).ends == NOW + SERVER_LASTS
    late = NOW + AUTHORITY_LASTS - timedelta(days=3)
    assert make_server(authority, "a.b.svc", late).ends == NOW + AUTHORITY_LASTS
    assert usable(authority, NOW) and not usable(authority, late)
    with pytest.raises(GpuBurninError, match="has ended"):
        make_server(authority, "a.b.svc", NOW + AUTHORITY_LASTS)
    with pytest.raises(GpuBurninError, match="are no pair"):
        make_server(Pair(authority.certificate, make_authority(NOW, "x").key), "a.b.svc", NOW)
    with pytest.raises(GpuBurninError, match="cannot be read"):
        make_server(Pair("", ""), "a.b.svc", NOW)
    assert not usable(Pair("", ""), NOW)


def test_the_server_makes_its_certificate_anew_before_it_ends(tmp_path: Path) -> None:
    now = [datetime.now(UTC)]
    authority = make_authority(now[0], "test")
    (tmp_path / "ca.crt").write_text(authority.certificate)
    attached = Attached(Mode.ENFORCING, NODES, "1")
    hook = Webhook(("127.0.0.1", 0), lambda: authority, attached, Names(), lambda: now[0])
    thread = threading.Thread(target=hook.run)
    thread.start()
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        context.check_hostname = False
        review: dict[str, Any] = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        review |= {"request": request({"metadata": {"name": "gpu-x"}})}
        asked = urllib.request.Request(f"https://127.0.0.1:{hook.port}/taint", json.dumps(review).encode())
        with urllib.request.urlopen(asked, context=context, timeout=PATIENCE_S) as reply:
            response = json.load(reply)["response"]
        assert json.loads(base64.b64decode(response["patch"]))[0]["value"] == {"taints": [TAINT]}
        first = hook.ends
        assert not hook.renew_if_due()
        now[0] += SERVER_LASTS - timedelta(days=5)
        assert hook.renew_if_due() and hook.ends > first
    finally:
        hook.close()
        thread.join()


def test_an_error_of_today_does_not_end_the_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a server whose certificate has ended says that it is not well: nobody would believe it."""
    monkeypatch.setattr(server, "LOOK_S", 0.01)
    now, there, said = [datetime.now(UTC)], [True], list[str]()
    authority = make_authority(now[0], "test")

    def read() -> Pair:
        if not there[0]:
            raise GpuBurninError("the Secret is not there")
        return authority

    hook = Webhook(("127.0.0.1", 0), read, Attached(Mode.ENFORCING, NODES, "1"), Names(), lambda: now[0], said.append)
    thread = threading.Thread(target=hook.run)
    thread.start()
    try:
        assert health(hook.port) == 200
        there[0] = False
        now[0] += SERVER_LASTS + timedelta(seconds=1)
        wait_until(lambda: len(said) > 1)
        assert "the Secret is not there" in said[0] and health(hook.port) == 503
        there[0] = True
        wait_until(lambda: hook.ends > now[0])
        assert health(hook.port) == 200
    finally:
        hook.close()
        thread.join()


def health(port: int) -> int:
    """As kubelet looks, which believes any certificate."""
    try:
        with urllib.request.urlopen(
            f"https://127.0.0.1:{port}/healthz", context=ssl._create_unverified_context(), timeout=PATIENCE_S
        ) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
