"""The time for which a PASS may speak: seconds of a GPU's work of which every result was verified.

A check counts them as it verifies; a fault at any moment of them would have been seen. Preparing, waiting, comparing on
the host and work that nobody looked at are none. coverage.py computes from them how rare a fault a run would see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict

# Keys of a check's coverage.
TOTAL_KEY, PARTS_KEY = "verified_s", "verified_parts_s"


class Counted(TypedDict):
    """Fields of a check's coverage (types.Coverage)."""

    verified_s: float
    verified_parts_s: Mapping[str, float]


@dataclass
class VerifiedTime:
    """Seconds of verified work, in all and by part.

    A part is what only some of the work exercises: a direction of copies, a precision, a kernel. A fault in one part
    can only show while that part works, so all parts that there are have to be named at the start: one that nothing was
    verified of stays at 0. `total_s` counts seconds in which several parts worked at once only once.
    """

    total_s: float = 0.0
    parts_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Iterable[str]) -> VerifiedTime:
        """No time yet, of these parts."""
        return cls(parts_s=dict.fromkeys(parts, 0.0))

    def add(self, seconds: float, *parts: str, share: float = 1.0) -> None:
        """Count work of `seconds` of which a `share` of the results was verified."""
        self.total_s += seconds * share
        for part in parts:
            self.parts_s[part] = self.parts_s.get(part, 0.0) + seconds * share

    def counted(self) -> Counted:
        """Fields of a check's coverage."""
        parts = {part: round(seconds, 9) for part, seconds in self.parts_s.items()}
        return {"verified_s": round(self.total_s, 9), "verified_parts_s": parts}
