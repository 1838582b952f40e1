"""The matrix of GPUs on the page: numbers and marks in the right cells, what is to blame framed and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from gpu_burnin.report import html
from gpu_burnin.report.grid import Cell, Outline, grid
from gpu_burnin.report.model import Report
from gpu_burnin.report.peers import Peers, matrix_of, peers
from gpu_burnin.system.entries import mapping_of, names_of
from gpu_burnin.types import Gpu
from tests.support import coverages
from tests.support.made_reports import without_check
from tests.support.sample_nodes import (
    dead_and_wrong_links,
    healthy_2,
    healthy_16,
    links,
    no_p2p_4,
    one_link_a_little_slow,
    one_slow_gpu,
    one_slow_link,
    slow_link_16,
)
from tests.support.sample_parts import Pairs, dead_link
from tests.support.sample_reports import Sample, healthy_1, healthy_8

_WHO = re.compile(r"GPU (\d+) (?:writes to|reads from) GPU (\d+)")


def section(report: Report) -> Peers:
    """The section of a report that has one."""
    found = peers(report)
    assert found is not None
    return found


def drawn(svg: str) -> dict[tuple[int, int], tuple[list[str], list[str]]]:
    """Texts and mark of each cell that has a copy, by (GPU, peer)."""
    cells = {}
    for group in ET.fromstring(svg).iter("g"):
        match = _WHO.match(group.findtext("title") or "")
        if match:
            texts = [text.text or "" for text in group.findall("text")]
            marks = [str(path.get("class")).removeprefix("corner ") for path in group.findall("path")]
            cells[int(match[1]), int(match[2])] = (texts, marks)
    return cells


def framed(svg: str) -> list[tuple[str, str]]:
    """Style and words of each frame."""
    frames = [rect for rect in ET.fromstring(svg).iter("rect") if "outline" in str(rect.get("class"))]
    return [(str(frame.get("class")).removeprefix("outline "), frame.findtext("title") or "") for frame in frames]


@pytest.mark.parametrize(("made", "count"), [(healthy_2, 2), (healthy_8, 8), (healthy_16, 16)])
def test_healthy_gpus_have_a_number_in_every_cell_and_no_mark(made: Callable[[], Sample], count: int) -> None:
    found = section(made()[0])
    assert [map.title for map in found.maps] == ["Write", "Read"]
    for map in found.maps:
        cells = drawn(map.svg)
        assert len(cells) == count * (count - 1)
        assert all(
            re.fullmatch(r"3[89]\d", texts[0]) and not texts[1:] and not marks for texts, marks in cells.values()
        )
        assert framed(map.svg) == []
    assert found.summary[0].startswith(f"All {count * (count - 1)} directions between {count} GPUs")
    assert re.search(r"Over NVLink and NVSwitch: median 39\d\.?\d* GB/s, lowest 38\d", found.summary[1])
    assert (found.blames, found.marks) == ((), ())


def test_one_gpu_has_no_pair_and_the_page_says_so() -> None:
    report, series = healthy_1()
    found = section(report)
    assert (found.maps, found.summary) == ((), ("One GPU: there is no pair to test.",))
    assert "there is no pair to test" in html.render(report, series)
    assert peers(without_check(report, "nvlink")) is None


def test_slow_link_is_marked_in_its_two_cells_framed_and_named() -> None:
    report, series = one_slow_link()
    for map in section(report).maps:
        cells = drawn(map.svg)
        marked = {place for place, (_, marks) in cells.items() if marks}
        assert marked == {(2, 5), (5, 2)}
        assert cells[2, 5][0][1] == "slow"
        assert float(cells[2, 5][0][0]) == pytest.approx(40.5, abs=1)
        assert {css for css, _ in framed(map.svg)} == {"FAIL"}
        assert len(framed(map.svg)) == 2
    page = html.render(report, series)
    assert "the link between GPU 2 and GPU 5 is slow: 40.16 GB/s" in page
    assert "The link between GPU 2 and GPU 5 failed, out of 8 GPUs." in page


def test_warning_about_a_link_frames_it_as_a_warning() -> None:
    found = section(one_link_a_little_slow()[0])
    assert {css for map in found.maps for css, _ in framed(map.svg)} == {"WARNING"}
    assert {blame.severity for blame in found.blames} == {"WARNING"}


def test_slow_gpu_is_framed_as_a_row_and_a_column() -> None:
    found = section(one_slow_gpu()[0])
    assert [(blame.kind, blame.word) for blame in found.blames] == [("gpu", "slow")]
    for map in found.maps:
        marked = {place for place, (_, marks) in drawn(map.svg).items() if marks == ["slow"]}
        assert marked == {(row, column) for row, column in drawn(map.svg) if 4 in (row, column)}
        assert len(framed(map.svg)) == 2


def test_long_evidence_is_cut_on_the_page_only() -> None:
    report, series = one_slow_gpu()
    reason = next(reason for reason in report.reasons if reason.code == "P2P_GPU_SLOW")
    assert len(names_of(mapping_of(reason.details, "attributed"), "transfers")) == 28
    assert "... (the rest is in report.json)" in html.render(report, series)
    assert "the rest is in" not in html.render(*one_slow_link())


def test_dead_wrong_and_missing_cells_say_so_in_words_and_shape() -> None:
    found = section(dead_and_wrong_links()[0])
    write, read = (drawn(map.svg) for map in found.maps)
    assert write[1, 6] == read[6, 1] == (["dead"], ["dead"])
    # Only what GPU 3 wrote to GPU 0 was wrong.
    assert write[3, 0][0][1] == "wrong"
    assert write[3, 0][1] == ["wrong"]
    assert write[0, 3][1] == read[0, 3][1] == read[3, 0][1] == []
    # What was written to GPU 7 nobody looked at; what it copied itself is not known at all.
    assert write[2, 7][0][1] == "unseen"
    assert read[2, 7][0][1:] == []
    assert found.maps[0].svg.count("no result</text>") == 7
    assert set(found.marks) >= {"dead", "wrong", "unseen"}
    assert found.summary[0].startswith("39 of 56 directions")


def test_node_on_which_no_pair_can_copy_is_framed_as_a_whole() -> None:
    found = section(links(all_dead, count=4)[0])
    assert [blame.kind for blame in found.blames] == ["node"]
    for map in found.maps:
        assert {texts[0] for texts, _ in drawn(map.svg).values()} == {"dead"}
        assert len(framed(map.svg)) == 1


def all_dead(rows: Pairs, gpus: Sequence[Gpu]) -> None:
    """No link works."""
    for place, one in enumerate(gpus):
        for other in gpus[place + 1 :]:
            dead_link(rows, one, other)


def test_pairs_that_cannot_copy_are_no_fault_and_tell_why() -> None:
    found = section(no_p2p_4()[0])
    assert drawn(found.maps[0].svg)[0, 3] == (["no P2P"], [])
    assert "ACS is on in the bridge above" in found.maps[0].svg
    assert found.marks == ("none",)
    assert all("FAIL" not in css for map in found.maps for css, _ in framed(map.svg))
    assert "Over PCIe: median 26" in found.summary[1]


def test_sixteen_gpus_keep_their_numbers_apart() -> None:
    """No text is wider than its cell: about 7 units a letter of 12, 5.6 of 9."""
    for map in section(slow_link_16()[0]).maps:
        tree = ET.fromstring(map.svg)
        assert float(str(tree.get("width"))) <= 900
        for group in tree.iter("g"):
            box = group.find("rect")
            assert box is not None
            for text in group.findall("text"):
                wide = 5.6 if text.get("class") == "word" else 7.0
                assert len(text.text or "") * wide <= float(str(box.get("width")))


def test_reads_and_writes_are_not_mixed_up() -> None:
    report, _ = one_slow_link()
    check = next(check for check in report.checks if check.name == "nvlink")
    pair, *others = coverages.nvlink(check).p2p
    pair = replace(pair, write_bytes_per_s=111e9, read_bytes_per_s=222e9)
    new = replace(check, coverage=replace(coverages.nvlink(check), p2p=(pair, *others)))
    report = replace(report, checks=tuple(new if one is check else one for one in report.checks))
    write, read = (drawn(map.svg) for map in section(report).maps)
    assert (write[0, 1][0], read[0, 1][0]) == (["111"], ["222"])
    matrix = matrix_of(report)
    of_pair = [t for t in matrix.transfers if t[:2] == (check.gpu, pair.peer)]
    assert [(t[2], matrix.rate(t)) for t in of_pair] == [("write", 111e9), ("read", 222e9)]


def test_texts_of_the_matrix_are_escaped() -> None:
    evil = '"><script>1</script>'
    svg = grid(evil, [evil, "b"], {(0, 1): Cell(evil, 3, evil, evil, "slow")}, [Outline((0, 0), (1, 1), "FAIL", evil)])
    assert "<script>" not in svg
    assert len(list(ET.fromstring(svg).iter("script"))) == 0
