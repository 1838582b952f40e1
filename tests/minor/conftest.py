"""The collection's plugins from the checkout, as ansible_collections.muster.fleet."""

from __future__ import annotations

import sys

from tests.lab.paths import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "collections"))
