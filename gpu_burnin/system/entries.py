"""Reading evidence, which has any form: what has another one than is asked for is left out.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mapping_of(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping, empty for anything else."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def names_of(data: Mapping[str, Any], key: str) -> list[str]:
    """A list as texts, empty for anything else."""
    value = data.get(key)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def text_of(data: Mapping[str, Any], key: str) -> str:
    """A text, empty for anything else."""
    value = data.get(key)
    return value if isinstance(value, str) else ""
