"""A fleet behind the fake API server."""

from __future__ import annotations

import pytest

from tests.support.admission_helpers import Signer
from tests.support.admitter_helpers import Fleet
from tests.support.fake_api import FakeApi


@pytest.fixture
def fleet(api: FakeApi, signer: Signer) -> Fleet:
    return Fleet(api, signer)
