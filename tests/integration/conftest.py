"""One lab for all tests of this folder, made cold and removed at the end, whatever happened.

With MUSTER_KEEP_LAB=1 a running lab is used as it is and left running: for work on the tests themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab import hosts
from tests.lab.binaries import ensure_binaries

from . import first_run
from .fleet import Fleet

KEEP = os.environ.get("MUSTER_KEEP_LAB") == "1"


@pytest.fixture(scope="session")
def lab() -> Iterator[Fleet]:
    """The lab's hosts: bare, unless a running lab is kept."""
    ensure_binaries()
    fleet = Fleet()
    if not KEEP:
        hosts.down(fleet.lab)
    try:
        hosts.up(fleet.lab)
        yield fleet
    finally:
        if not KEEP:
            hosts.down(fleet.lab)


@pytest.fixture(scope="session")
def fleet(lab: Fleet) -> Fleet:
    """The lab after site.yml: begun, killed in the middle, run again to its end."""
    if not KEEP:
        first_run.kill_in_the_middle(lab)
    first_run.results["first"] = lab.playbook("site.yml", log="first")
    return lab
