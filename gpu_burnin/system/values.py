"""Reading what a check says of its coverage: its own word, in whatever form; what has another form is left out.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number_of(data: Mapping[str, Any], key: str) -> int | float | None:
    """A finite number, None for anything else."""
    value = data.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


def mapping_of(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping, empty for anything else."""
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def names_of(data: Mapping[str, Any], key: str) -> list[str]:
    """A list as texts, empty for anything else."""
    value = data.get(key)
    return [str(item) for item in value] if isinstance(value, list | tuple) else []


def numbers_of(data: Mapping[str, Any], key: str) -> list[float]:
    """The finite numbers of a list, empty for anything else."""
    value = data.get(key)
    found = value if isinstance(value, list | tuple) else ()
    return [float(n) for n in found if isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n)]


def text_of(data: Mapping[str, Any], key: str) -> str:
    """A text, empty for anything else."""
    value = data.get(key)
    return value if isinstance(value, str) else ""


def rows_of(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The mappings of a list, empty for anything else."""
    value = data.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []
