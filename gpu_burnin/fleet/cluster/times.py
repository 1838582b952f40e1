"""Times for people."""

from __future__ import annotations


def to_the_minute(time: str) -> str:
    """An RFC 3339 time to the minute; "" for none."""
    return time[:16].replace("T", " ")


def ago(seconds: float) -> str:
    """A span in its largest whole unit: 3 s, 12 min, 5 h, 9 d."""
    span = max(0.0, seconds)
    for unit, size_s, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if span < size_s * most:
            return f"{span / size_s:.0f} {unit}"
    return f"{span / 86400:,.0f} d"
