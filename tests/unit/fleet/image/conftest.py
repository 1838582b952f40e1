"""A fake API server that knows one node, its client, and a machine's host key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_burnin.api.names import Names
from gpu_burnin.api.record import document
from tests.support.admission_helpers import new_host_key
from tests.support.enrolments import entry
from tests.support.fake_api import FakeApi
from tests.unit.admission.conftest import api, kube

__all__ = ["api", "kube"]


@pytest.fixture
def key(tmp_path: Path) -> Path:
    new_host_key(tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def ledger(api: FakeApi) -> FakeApi:
    api.put("nodeadmissions", document(entry("gpu-1"), Names()))
    return api
