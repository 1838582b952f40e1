"""An API server that does not answer is told in our words, by real connections."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
import urllib3

from gpu_burnin.admission import client
from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.silence import words
from tests.support.fake_api import FakeApi
from tests.support.server_helpers import write_kubeconfig

RAW = ("urllib3", "object at 0x", "Max retries", "ConnectionPool", "Errno", "Caused by")


def message_of(kube: KubeApi) -> str:
    with pytest.raises(ApiError) as caught:
        kube.nodes()
    text = str(caught.value)
    assert not [raw for raw in RAW if raw in text], text
    return text


def test_a_refused_connection(api: FakeApi, tmp_path: Path) -> None:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    api.close()
    assert "cannot list the nodes: Connection refused; check" in message_of(KubeApi(kubeconfig, retries=0))


@pytest.mark.slow
def test_a_server_that_hangs_up_and_one_that_says_nothing(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", (1.0, 0.3))
    with socket.create_server(("127.0.0.1", 0)) as server:
        text = api.kubeconfig(tmp_path / "kubeconfig").read_text()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        silent = tmp_path / "silent"
        silent.write_text(text.replace(text.partition("http://")[2].split()[0].strip("'\""), address))
        assert "it does not answer in time" in message_of(KubeApi(silent, retries=0))

        def hang_up() -> None:
            for _ in range(2):
                server.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        text = message_of(KubeApi(silent, retries=0))
        assert any(why in text for why in ("it has closed the connection", "Connection reset by peer")), text


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(urllib3.exceptions.HTTPError) as caught:
        urllib3.PoolManager(retries=False).request("GET", "http://no-such-host.invalid/", timeout=5)
    assert "cannot be resolved" in words(caught.value) and "object at" not in words(caught.value)


def test_a_kubeconfig_whose_authority_is_no_certificate(tmp_path: Path) -> None:
    """Nothing is asked of the server, so it is not the one to look at."""
    authority = str(tmp_path / "ca.crt")
    Path(authority).write_text("nonsense")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        text = message_of(
            KubeApi(
                write_kubeconfig(tmp_path / "kubeconfig", address, None, **{"certificate-authority": authority}),
                retries=0,
            )
        )
    assert "certificate authority and keys it names" in text and "balancer" not in text
