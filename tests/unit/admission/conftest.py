"""A fake API server, its client, and a host that signs evidence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.system.known_hosts import HostKey, load, record
from tests.support.admission_helpers import Signer, new_host_key
from tests.support.fake_api import FakeApi


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    key, known_hosts = tmp_path / "host_key", tmp_path / "known_hosts"
    kind, blob, *_ = new_host_key(key).split()
    record(load(known_hosts), [("10.0.0.1", 22, HostKey(kind, blob))])
    return Signer(key, known_hosts)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def kube(api: FakeApi, tmp_path: Path) -> KubeApi:
    return KubeApi(api.kubeconfig(tmp_path / "kubeconfig"))
