"""A roll that a test has begun, told from those that its lab has kept."""

from __future__ import annotations

from gpu_burnin.fleet.waves.book import Book


def roll_id(book: Book) -> str:
    """Of the roll that is there, "" for none."""
    found = book.roll()
    return found.id if found is not None else ""


def is_done(book: Book, step: str, before: str) -> bool:
    """Whether a step of a roll that came after `before` has its result. A new roll removes those of the one before."""
    return roll_id(book) not in ("", before) and (book.folder / "steps" / step / "result.json").exists()
