"""Times, sizes, rates and counts as people read them. Standard library only."""

from __future__ import annotations

GB = 1e9
# Times below are given in microseconds.
SHORT_S = 0.01
_SHORTER_S = ((0.1, 1e3, "ms"), (9.95e-4, 1e6, "µs"))
_STEPS_S = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def duration(seconds: float) -> str:
    """A time as people say it: 92 µs, 2.1 ms, 0.12 s, 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    fits = [(factor, unit) for below, factor, unit in _SHORTER_S if 0 < seconds < below]
    if fits:
        factor, unit = fits[-1]
        return f"{float(f'{seconds * factor:.2g}'):g} {unit}"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    left = round(seconds)
    for index, (step, unit) in enumerate(_STEPS_S):
        if left >= step:
            smaller, name = _STEPS_S[index + 1] if index + 1 < len(_STEPS_S) else (1.0, "s")
            rest = int(left % step // smaller)
            return f"{int(left // step)} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{left} s"


def size(size_bytes: float) -> str:
    """A size in binary units."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def number(value: float | None) -> str:
    """Four digits that count, whole numbers in groups of three: 0.02341, 12.3, 812.4, 1,482."""
    if value is None:
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def rate(value: float | None, unit: str) -> str:
    """A number with its unit; bytes per second and short times in the units people use."""
    if unit == "B/s" and value is not None:
        return f"{number(value / 1e9)} GB/s"
    if unit == "s" and value is not None and 0 < abs(value) < SHORT_S:
        return f"{number(float(f'{value * 1e6:.4g}'))} µs"
    return f"{number(value)} {unit}" if unit not in ("", "1") else number(value)


def count(value: object, one: str, many: str | None = None) -> str:
    """A number of things: 1 copy, 1,482 copies."""
    return f"{value:,} {one if value == 1 else many or one + 's'}"
