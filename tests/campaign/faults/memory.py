"""Faulty memory that the hbm check must see, as data: the model of the cells, and where it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpu_burnin.checks.hbm.cpu import CpuHbm
from gpu_burnin.checks.hbm.patterns import WORD_BYTES
from gpu_burnin.exact.operands import U64
from tests.campaign.faults.cells import FAULTY_CELLS, AddressLine, Cells, Fading, RowBurst
from tests.support.devices import DeviceWith

WORDS = 1 << 13


@dataclass(frozen=True)
class MemoryFault:
    """One kind of faulty cells. `level` is the least level of a run that has to see it.

    `place` says of a word that was found wrong whether the fault is there: what the report names must be the faulty
    place and no other. `shape` is how the report's line about it begins, with {bit} and {next} for the faulty bit and
    the one after it.
    """

    name: str
    make: Callable[[int, int], Cells]
    place: Callable[[Cells, int], bool]
    shape: str = ""
    level: str = "quick"


def _everywhere(cells: Cells, word: int) -> bool:
    return 0 <= word < cells.words


def _at_word(cells: Cells, word: int) -> bool:
    return word == cells.word


def _behind(cells: Cells, word: int) -> bool:
    return word == cells.word + 1


def _in_lane(cells: Cells, word: int) -> bool:
    return word % 64 == cells.word % 64


def _in_row(cells: Cells, word: int) -> bool:
    assert isinstance(cells, RowBurst | Fading)
    return cells.row <= word < cells.row + 8


def _aliased(cells: Cells, word: int) -> bool:
    """Both the words without the line and those with it hold what the other should."""
    assert isinstance(cells, AddressLine)
    return word ^ cells.line < cells.words


_PLACES: dict[str, Callable[[Cells, int], bool]] = {
    "address line stuck": _aliased,
    "data lines joined": _everywhere,
    "data lane stuck": _in_lane,
    "burst of 64 bytes": _in_row,
    "neighbour disturbed": _behind,
    "row fades": _in_row,
}
_SHAPES: dict[str, str] = {
    "address line stuck": "",
    "data lines joined": "bit lane {next} ",
    "data lane stuck": "bit lane {bit} ",
    "burst of 64 bytes": "burst of 64 bytes",
    "row fades": "burst of 64 bytes",
}
_LEVELS = {"row fades": "extended"}
MEMORY_FAULTS: dict[str, MemoryFault] = {
    name: MemoryFault(
        name,
        make,
        _PLACES.get(name, _at_word),
        _SHAPES.get(name, "single bit {bit} in one word"),
        _LEVELS.get(name, "quick"),
    )
    for name, make in FAULTY_CELLS.items()
}


class _FaultyTester(CpuHbm):
    """Host memory of which every store and every load goes through a model of cells."""

    def __init__(self, cells: Cells) -> None:
        super().__init__()
        self._cells = cells

    def _store(self, start_word: int, words: U64) -> None:
        super()._store(start_word, words)
        self._cells.stored(self._words, start_word, words.size)

    def _load(self, start_word: int, count: int) -> U64:
        self._cells.loading(self._words, start_word, count)
        return super()._load(start_word, count)


class FaultyHbmDevice(DeviceWith):
    """A device whose memory is of these cells."""

    def __init__(self, cells: Cells) -> None:
        super().__init__(hbm=lambda: _FaultyTester(cells))


def wrong_words(errors: tuple[object, ...]) -> list[int]:
    """The words that a result of the check names."""
    return [int(str(dict(error)["offset_bytes"])) // WORD_BYTES for error in errors]  # type: ignore[call-overload]
