"""A fake API server, and machines behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admission_helpers import Signer, new_host_key
from tests.support.admitter_helpers import Fleet
from tests.support.fake_api import FakeApi
from tests.support.scaler_service import Cloud, Ground


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    yield server
    server.close()


@pytest.fixture
def ground(api: FakeApi, tmp_path: Path) -> Ground:
    key = tmp_path / "host_key"
    new_host_key(key)
    fleet = Fleet(api, Signer(key, tmp_path / "known_hosts"))
    return Ground(fleet, Cloud(fleet))
