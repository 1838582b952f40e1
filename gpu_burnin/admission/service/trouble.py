"""Trouble that lasts is told once, and so is its end."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass
class Trouble:
    """One kind of thing that may go wrong again and again; `tell` gets the sentences."""

    tell: Callable[[str], None]
    _kind: Hashable = None

    def begin(self, kind: Hashable, sentence: str) -> None:
        """It goes wrong; the sentence is told unless it was of the same kind before: words may differ each time."""
        if kind != self._kind:
            self._kind = kind
            self.tell(f"{sentence}; it is tried again until it works, and nothing is lost meanwhile")

    def end(self, sentence: str) -> None:
        """It goes well."""
        if self._kind is not None:
            self._kind = None
            self.tell(sentence)
