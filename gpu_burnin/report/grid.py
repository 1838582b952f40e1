"""A matrix of GPUs as inline SVG: a number in each cell, its colour by size, marks in words and shape.

Colour is never alone: what is wrong has a word in its cell and a mark in its corner. Classes are for the page's
style sheet; every text is escaped here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from markupsafe import Markup, escape

from gpu_burnin.report.svg import drawing

# Steps of colour, from nothing to the highest number.
STEPS = 8
# Sizes of a cell (width, height): with many GPUs the numbers stand closer, never smaller than they can be read.
_WIDE, _CLOSE = (58, 34), (47, 32)
_CLOSE_FROM = 10
_HEAD_WIDTH, _HEAD_HEIGHT = 50, 22
# In the corner of a cell, as paths from there: triangle down, cross, filled square.
_CORNERS: Mapping[str, str] = MappingProxyType(
    {"slow": "m3 3h7l-3.5 6z", "wrong": "m3.5 3.5l6 6m0-6l-6 6", "dead": "m3 3h7v7h-7z"}
)


@dataclass(frozen=True)
class Cell:
    """A number with its colour step (None: no colour), a word below it and what the tooltip says.

    `mark` is slow, wrong, dead, unseen (not verified), none (not possible) or missing (no result); empty: all well.
    """

    text: str
    step: int | None
    word: str
    detail: str
    mark: str = ""


@dataclass(frozen=True)
class Outline:
    """A frame around cells: rows and columns as (first, last); `css` is FAIL or WARNING."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    css: str
    label: str


def grid(
    title: str,
    names: Sequence[str],
    cells: Mapping[tuple[int, int], Cell],
    outlines: Sequence[Outline] = (),
) -> Markup:
    """A square matrix with `names` at its rows and columns; `cells` by (row, column), the diagonal stays empty."""
    width, height = _CLOSE if len(names) >= _CLOSE_FROM else _WIDE
    parts = []
    for index, name in enumerate(names):
        x, y = _HEAD_WIDTH + (index + 0.5) * width, _HEAD_HEIGHT + (index + 0.5) * height + 4
        parts.append(f'<text class="head" x="{x:g}" y="{_HEAD_HEIGHT - 8}" text-anchor="middle">{escape(name)}</text>')
        parts.append(f'<text class="head" x="{_HEAD_WIDTH - 8}" y="{y:g}" text-anchor="end">{escape(name)}</text>')
    for row in range(len(names)):
        for column in range(len(names)):
            at = (_HEAD_WIDTH + column * width, _HEAD_HEIGHT + row * height)
            cell = cells.get((row, column))
            parts.append(_empty(at, (width, height)) if cell is None else _cell(cell, at, (width, height)))
    parts += [_outline(outline, width, height) for outline in outlines]
    size = (_HEAD_WIDTH + len(names) * width + 3, _HEAD_HEIGHT + len(names) * height + 3)
    return drawing(*size, title, parts, css="fixed grid-of-gpus")


def _empty(at: tuple[int, int], size: tuple[int, int]) -> str:
    return f'<rect class="self" x="{at[0] + 1}" y="{at[1] + 1}" width="{size[0] - 2}" height="{size[1] - 2}"/>'


def _cell(cell: Cell, at: tuple[int, int], size: tuple[int, int]) -> str:
    (x, y), (width, height) = at, size
    css = f"heat{cell.step}" if cell.step is not None else f"no-number {escape(cell.mark)}"
    middle = x + width / 2
    parts = [
        f'<g class="cell {css}"><title>{escape(cell.detail)}</title>',
        f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}"/>',
    ]
    lift = 5 if cell.word and cell.text else 0
    if cell.text:
        parts.append(
            f'<text x="{middle:g}" y="{y + height / 2 + 4 - lift:g}" text-anchor="middle">{escape(cell.text)}</text>'
        )
    if cell.word:
        below = y + height / 2 + (13 - 4 if cell.text else 3)
        parts.append(f'<text class="word" x="{middle:g}" y="{below:g}" text-anchor="middle">{escape(cell.word)}</text>')
    if cell.mark in _CORNERS:
        parts.append(f'<rect class="corner-back" x="{x + 1}" y="{y + 1}" width="12" height="12"/>')
        parts.append(f'<path class="corner {cell.mark}" d="M{x} {y}{_CORNERS[cell.mark]}"/>')
    return "".join([*parts, "</g>"])


def _outline(outline: Outline, width: int, height: int) -> str:
    (first, last), (left, right) = outline.rows, outline.columns
    return (
        f'<rect class="outline {escape(outline.css)}" x="{_HEAD_WIDTH + left * width}" '
        f'y="{_HEAD_HEIGHT + first * height}" width="{(right - left + 1) * width}" '
        f'height="{(last - first + 1) * height}" rx="3"><title>{escape(outline.label)}</title></rect>'
    )
