"""One lab for all tests of this folder, made cold and removed at the end, whatever happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import hosts
from tests.lab.binaries import ensure_binaries

from .fleet import Fleet


@pytest.fixture(scope="session")
def lab() -> Iterator[Fleet]:
    """The lab's hosts, bare: started by this fixture, nothing on them yet."""
    ensure_binaries()
    fleet = Fleet()
    hosts.down(fleet.lab)
    try:
        hosts.up(fleet.lab)
        yield fleet
    finally:
        hosts.down(fleet.lab)


@pytest.fixture(scope="session")
def fleet(lab: Fleet) -> Fleet:
    """The lab after site.yml: begun, killed in the middle, run again to its end."""
    from .first_run import build

    build(lab)
    return lab
