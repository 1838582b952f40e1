"""Times as a person writes them: 90s, 30m, 2h, 1d. Standard library only."""

from __future__ import annotations

import re

FORM = "a duration such as 90s, 30m, 2h or 1d"
_DURATION = re.compile(r"(\d+)\s*([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Seconds of a time like 30m or 2h. Raises ValueError for any other text."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a duration; write it as 90s, 30m, 2h or 1d")
    return float(int(match[1]) * _UNIT_S[match[2]])


def write_duration(seconds: float) -> str:
    """The shortest text that parse_duration reads back as these whole seconds: 7200 is 2h."""
    whole = round(seconds)
    unit = next(unit for unit, size_s in reversed(_UNIT_S.items()) if whole % size_s == 0)
    return f"{whole // _UNIT_S[unit]}{unit}"
