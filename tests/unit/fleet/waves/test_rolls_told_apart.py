"""Which roll a result is of, on a lab that was kept."""

from __future__ import annotations

from pathlib import Path

from gpu_burnin.fleet.waves.book import Book, keep_result
from gpu_burnin.fleet.waves.model import Order, Part, Roll, Step, StepResult
from tests.support.rolls import is_done, roll_id

STEP = Step("shard-0001", Part.NODES, 1, ("gpu-1",))


def begin(book: Book, name: str) -> None:
    book.begin(Roll(name, "", Order("site.yml", ("hosts.yml",)), "", (), {}), b"{}")


def keep(book: Book) -> None:
    keep_result(book.step(STEP), StepResult(STEP.name, 0, 0.0, 0.0, 0, {}))


def test_a_result_of_an_earlier_roll_is_none(tmp_path: Path) -> None:
    book = Book(tmp_path / "roll")
    assert (roll_id(book), is_done(book, STEP.name, "")) == ("", False)
    begin(book, "1")
    keep(book)
    assert is_done(book, STEP.name, "")
    before = roll_id(book)
    assert before == "1" and not is_done(book, STEP.name, before), "the lab has kept it"
    begin(book, "2")
    assert not is_done(book, STEP.name, before), "it has begun"
    keep(book)
    assert is_done(book, STEP.name, before)
