"""Text of a given width: lines that wrap, tables whose columns fold. Nothing is cut. Standard library only."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

# For files, pipes and whatever has no width of its own.
STANDARD_WIDTH = 80
# Longer lines of sentences are hard to read, however wide the terminal is.
_LONGEST_LINE = 120
# Columns that the wrapped column of a table needs; with less it goes below its row.
_LEAST_COLUMN = 20
_GAP = "  "
_MOST_NAMES = 3
# A command between backticks, and what stands for its spaces while a line is wrapped.
_CODE = re.compile(r"`[^`]+`")
_HELD = "\N{NO-BREAK SPACE}"
_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-fA-F]{8})-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b")


def printable(text: str) -> str:
    """What somebody else wrote, with "?" for each character that a terminal would take for a command."""
    return "".join(char if char.isprintable() else "?" for char in text)


def wrap(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """`text` as lines of at most `width` characters; a longer word, such as a path, stays whole, and so does `code`.

    `first` stands before the first line, `rest` before the others.
    """
    return _wrapped(text, max(min(width, _LONGEST_LINE), len(rest) + _LEAST_COLUMN), first, rest)


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    lines = textwrap.wrap(
        _CODE.sub(lambda code: code[0].replace(" ", _HELD), text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_HELD, " ") for line in lines]


def listed(names: Sequence[str], most: int = _MOST_NAMES, gap: str = ", ") -> str:
    """The first `most` names, and how many more there are."""
    more = len(names) - most
    return gap.join(names[:most]) + (f" and {more} more" if more > 0 else "")


def line_up(parts: Sequence[str], width: int, gap: str = "   ", rest: str = "") -> list[str]:
    """`parts` side by side on as many lines as they need; none is broken. `rest` stands before the later lines."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(gap) + len(part) <= min(width, _LONGEST_LINE):
            lines[-1] += gap + part
        else:
            lines.append(rest + part if lines else part)
    return lines


def table(key: Sequence[str], groups: Sequence[Sequence[Sequence[str]]], width: int, indent: str = "  ") -> list[str]:
    """A table of columns, each its heading and its cells. Columns that do not fit follow below, beside `key` again.

    The columns of a group stay together where one line can hold them.
    """
    blocks: list[list[Sequence[str]]] = []
    room = 0
    start = len(indent) + _wide(key)
    for group in groups:
        needed = [_wide(column) + len(_GAP) for column in group]
        whole = sum(needed) <= width - start
        for index, (column, columns) in enumerate(zip(group, needed, strict=True)):
            if not blocks or columns > room or (whole and index == 0 and sum(needed) > room):
                blocks.append([key])
                room = width - start
            blocks[-1].append(column)
            room -= columns
    return [line for block in blocks or [[key]] for line in _rows(block, indent)]


def table_with_text(
    rows: Sequence[Sequence[str]], width: int, indent: str = "  ", least: int = _LEAST_COLUMN
) -> list[str]:
    """A table whose last column is text that wraps: beside the others with `least` characters of room, else below."""
    *columns, texts = zip(*rows, strict=True)
    left = _rows(columns, indent)
    start = len(indent) + sum(_wide(column) + len(_GAP) for column in columns)
    beside = width - start >= min(least, _wide(texts))
    if beside:
        padded = [line.ljust(start) for line in left]
        return [line for before, text in zip(padded, texts, strict=True) for line in _beside(before, text, width)]
    below = f"{indent}    "
    return [line for row, text in zip(left, texts, strict=True) for line in (row, *(wrap(text, width, below, below)))]


def _beside(before: str, text: str, width: int) -> list[str]:
    rest = " " * len(before)
    return _wrapped(text, width, before, rest) or [before.rstrip()]


def _wide(column: Sequence[str]) -> int:
    return max(map(len, column))


def _rows(columns: Sequence[Sequence[str]], indent: str) -> list[str]:
    widths = [_wide(column) for column in columns]
    return [
        indent + _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]


def short_uuids(text: str) -> str:
    """`text` with the UUIDs of GPUs as far as a person needs them: GPU-1a2b3c4d."""
    return _UUID.sub(r"\1", text)
