"""Each role that needs no hosts of its own (tools/molecule.py: OWN_HOSTS) does in the fleet what its verify says.

Only here: what such a role brings serves, refuses and is closed to others (on hosts of the scenario: `make soak`).
A verify puts back what it changes: the tests after this one want the fleet as site.yml left it.
"""

from __future__ import annotations

import pytest

from tools.molecule import roles_in_lab

from .fleet import Fleet
from .role_verify import verify

ROLES = roles_in_lab()


@pytest.mark.parametrize("role", ROLES)
def test_verify(fleet: Fleet, role: str) -> None:
    """Ends with what the task that failed has said."""
    verify(fleet, role)
