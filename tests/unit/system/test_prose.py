"""Text of a given width: nothing is cut, nothing is wider than it needs to be."""

from __future__ import annotations

import pytest

from gpu_burnin.system.prose import line_up, printable, short_uuids, table, table_with_text, wrap

COLUMNS = [[f"c{number}", "PASS", "FAIL"] for number in range(6)]


def test_a_line_wraps_below_its_beginning_and_a_path_stays_whole() -> None:
    path = "/var/lib/gpu-burnin/runs/20260102T030405Z-000007/report.json"
    assert wrap(f"look at {path} first", 30, "- ", "  ") == ["- look at", f"  {path}", "  first"]


def test_a_command_stays_on_one_line() -> None:
    assert wrap("Power it off and on, then `gpu-burnin run`", 34) == ["Power it off and on, then", "`gpu-burnin run`"]


def test_parts_stand_side_by_side_and_none_is_broken() -> None:
    assert line_up(["driver 580", "kernel 6.1", "node gpu-1"], 24) == ["driver 580   kernel 6.1", "node gpu-1"]


@pytest.mark.parametrize(("width", "blocks"), [(80, 1), (24, 2), (14, 6), (1, 6)])
def test_a_table_folds_into_blocks_that_each_begin_with_the_key(width: int, blocks: int) -> None:
    lines = table(["GPU", "0", "1"], [COLUMNS], width)
    assert len(lines) == 3 * blocks
    assert [line.split()[0] for line in lines] == ["GPU", "0", "1"] * blocks
    assert sum(line.split().count("FAIL") for line in lines) == len(COLUMNS)


def test_a_group_stays_together_where_a_line_can_hold_it() -> None:
    lines = table(["GPU", "0", "1"], [COLUMNS[:2], COLUMNS[2:]], 30)
    assert [line.split() for line in lines if "GPU" in line] == [["GPU", "c0", "c1"], ["GPU", "c2", "c3", "c4", "c5"]]


def test_the_text_of_a_row_wraps_in_its_column_or_below_the_row() -> None:
    rows = [("check", "told"), ("gemm", "word " * 12 + "end")]
    beside = table_with_text(rows, 50)
    assert [line[9:13] for line in beside] == ["told", "word", "word"]
    assert all(line[2:9].strip() in ("check", "gemm", "") for line in beside)
    below = table_with_text(rows, 26)
    assert [line.split()[0] for line in below][:3] == ["check", "told", "gemm"]
    for lines, width in ((beside, 50), (below, 26)):
        assert all(len(line) <= width for line in lines)
        assert " ".join(lines).split().count("word") == 12


def test_uuids_are_as_long_as_a_person_needs() -> None:
    uuid = "GPU-1a2b3c4d-0000-4000-8000-00000000002b"
    assert short_uuids(f"GPU 1 (0000:43:00.0 {uuid}): lost") == "GPU 1 (0000:43:00.0 GPU-1a2b3c4d): lost"
    assert short_uuids("GPU-1 and GPU-1a2b3c4d") == "GPU-1 and GPU-1a2b3c4d"


def test_what_a_terminal_would_obey_is_shown_as_a_question_mark() -> None:
    assert printable("a\x1b[2J\nb\ud800 \x7fä") == "a?[2J?b? ?ä"
