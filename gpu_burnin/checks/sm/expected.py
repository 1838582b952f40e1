"""What a row of an SM kernel has to be: exact words, or bounds on the FP32 values in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.exact.operands import U64
from gpu_burnin.types import word_text

Bool = NDArray[np.bool_]
F64 = NDArray[np.float64]


class Expected(Protocol):
    """One row as it has to be, for any block."""

    def wrong(self, row: U64) -> Bool:
        """Which words of a row cannot be right."""
        ...

    def word(self, index: int) -> str:
        """What the word has to be, for a report."""
        ...


@dataclass(frozen=True)
class Exact:
    """Every bit is known."""

    words: U64

    def wrong(self, row: U64) -> Bool:
        different: Bool = row != self.words
        return different

    def word(self, index: int) -> str:
        return word_text(int(self.words[index]))


@dataclass(frozen=True)
class Bounded:
    """Each word holds two FP32 values; low <= value <= high (FP64, shape words x 2). NaN is outside."""

    low: F64
    high: F64

    def wrong(self, row: U64) -> Bool:
        values = row.view(np.float32).reshape(-1, 2)
        inside = (values >= self.low) & (values <= self.high)
        outside: Bool = ~(inside[:, 0] & inside[:, 1])
        return outside

    def word(self, index: int) -> str:
        low, high = self.low[index].tolist(), self.high[index].tolist()
        return f"{low[0]!r} to {high[0]!r} and {low[1]!r} to {high[1]!r}"
