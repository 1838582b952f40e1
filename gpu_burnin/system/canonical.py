"""JSON in the one form that is hashed and signed. Standard library only."""

from __future__ import annotations

import json


def canonical_json(value: object) -> bytes:
    """Sorted keys, no spaces, ASCII, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")


def check_utf8(document: object) -> None:
    """Raise ValueError where a text in it has half a character, for which JSON has an escape.

    Who reads one cannot write, sign or tell it, and the API server keeps another text in its place.
    """
    json.dumps(document, ensure_ascii=False).encode()
