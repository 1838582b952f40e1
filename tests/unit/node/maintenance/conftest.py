"""A stand-in metadata service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.metadata_server import MetadataServer, metadata_server


@pytest.fixture
def cloud() -> Iterator[MetadataServer]:
    with metadata_server() as stand_in:
        yield stand_in
