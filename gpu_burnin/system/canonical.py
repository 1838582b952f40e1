"""JSON in the one form that is hashed and signed. Standard library only."""

from __future__ import annotations

import json


def canonical_json(value: object) -> bytes:
    """Sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")
