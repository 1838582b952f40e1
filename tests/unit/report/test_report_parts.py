"""The sections of single checks: memory, PCIe, collectives, waves of load, another program's opinion."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from gpu_burnin.checks.pcie.result import LinkUnderLoad
from gpu_burnin.hardware import what_to_do
from gpu_burnin.report import compare, html, openmetrics, text
from gpu_burnin.report.curves import busbw, curves
from gpu_burnin.report.links import ALONE, opinion, pcie
from gpu_burnin.report.memory import error_maps, memory_rows
from gpu_burnin.report.model import Report
from gpu_burnin.report.series import RunSeries
from gpu_burnin.report.waves import summary, waves
from gpu_burnin.types import Coverage, Measurement
from tests.support import coverages
from tests.support.sample_nodes import SAMPLES, bit_lane_2, healthy_16, nccl_fallback_8, no_waves_1, power_brake_8
from tests.support.sample_reports import faulty_8, healthy_1, healthy_8


def changed(
    report: Report, name: str, gpu: int, *, measurements: tuple[Measurement, ...] = (), **coverage: Any
) -> Report:
    """Another word of a check on a GPU (index), and other first measurements."""
    (old,) = (check for check in report.checks if (check.name, check.gpu) == (name, report.gpus[gpu].uuid))
    measured = (*measurements, *old.measurements[len(measurements) :])
    new = replace(old, measurements=measured, coverage=replace(old.coverage, **coverage))
    return replace(report, checks=tuple(new if check is old else check for check in report.checks))


# --- memory ---


def test_memory_errors_make_a_map_and_only_they() -> None:
    report, series = faulty_8()
    (map,) = error_maps(report)
    assert map.heading == "hbm on GPU 5"
    # Four words, one of them with two wrong bits.
    whole = map.figures[0][1]
    assert whole.count('class="dot') == 5
    assert "offset 81,204,281,344 bytes, bit 17, pattern walking" in whole
    assert error_maps(healthy_8()[0]) == []
    assert "error map" not in html.render(*healthy_8())
    assert "error map" in html.render(report, series)


def test_memory_errors_close_together_get_a_map_of_their_own() -> None:
    (map,) = error_maps(bit_lane_2()[0])
    assert map.shape == "bit lane 17 in 412 words"
    assert map.seen_by == "Came back wrong in walking 412 times, random 206 times."
    assert [pattern for _, pattern in map.patterns] == ["address", "random", "walking", "modulo"]
    whole, near = (svg for _, svg in map.figures)
    assert re.search(r">100 GiB</text>", whole)
    assert re.search(r">\d+ KiB</text>", near)
    assert "75.63 GiB" in map.figures[1][0]
    places = {
        svg: {float(str(dot.get("d")).split()[0][1:]) for dot in ET.fromstring(svg).iter("path")}
        for svg in (whole, near)
    }
    assert (len(places[whole]), len(places[near])) == (1, 28)
    # Patterns differ in colour and in shape.
    shapes = {str(dot.get("d")).split(" ", 1)[1].split("m", 1)[1] for dot in ET.fromstring(near).iter("path")}
    assert len(shapes) == 4


def test_memory_that_is_covered_is_told_and_drawn() -> None:
    rows = memory_rows(bit_lane_2()[0])
    assert [row.gpu for row in rows] == ["GPU 0", "GPU 1"]
    assert rows[0].covered == "138.9 GiB of 140.4 GiB (98.9%)"
    assert (rows[0].unreachable, rows[0].wrong) == ("1.541 GiB", "none")
    assert (rows[1].is_wrong, rows[1].wrong) == (True, "bit lane 17 in 412 words")
    assert rows[0].bar is not None
    widths = {rect.get("class"): float(str(rect.get("width"))) for rect in ET.fromstring(rows[0].bar).iter("rect")}
    assert widths["covered"] / widths["whole"] == pytest.approx(0.989, abs=0.001)
    assert widths["unreachable"] > 0


def test_memory_of_the_host_gets_no_bar() -> None:
    report, _ = healthy_1()
    report = changed(report, "hbm", 0, simulated=True, covered_bytes=1 << 24, unreachable_bytes=None)
    (row,) = memory_rows(report)
    assert (row.bar, row.covered, row.unreachable) == (None, "16 MiB of host memory, no GPU memory", "-")


# --- PCIe ---


def test_pcie_table_has_rates_alone_and_all_at_once_beside_the_floor() -> None:
    table = pcie(healthy_8()[0])
    assert table is not None
    assert table.columns == ("to GPU", "from GPU", "both at once", "to GPU", "from GPU")
    assert table.alone == ALONE == 3
    assert [row.gpu for row in table.rows] == [f"GPU {index}" for index in range(8)]
    assert {row.link for row in table.rows} == {"gen 5 x16"}
    assert all(re.fullmatch(r"5\d\.\d", row.cells[0][0]) for row in table.rows)
    sums = dict(table.sums)
    assert sums["floor"] == ("48 (vendor)", "48 (vendor)", "-", "-", "-")
    assert sums["spread"][0].endswith("%")


def test_slow_and_narrow_links_are_marked() -> None:
    report, series = healthy_8()
    link = LinkUnderLoad(generation=5, width=8, max_generation=5, max_width=16)
    report = changed(report, "pcie", 3, measurements=(Measurement("h2d", 26.1e9, "B/s", 48e9),), link=link)
    table = pcie(report)
    assert table is not None
    assert [row.narrow for row in table.rows] == [index == 3 for index in range(8)]
    assert table.rows[3].link == "gen 5 x8 (of gen 5 x16)"
    assert table.rows[3].cells[0] == ("26.1", True)
    assert sum(low for row in table.rows for _, low in row.cells) == 1
    assert '<td class="num low" data-label="to GPU">26.1</td>' in html.render(report, series)


def test_link_that_could_not_be_read_is_left_open() -> None:
    report, _ = healthy_1()
    report = changed(report, "pcie", 0, link=None)
    table = pcie(report)
    assert table is not None
    assert (table.rows[0].link, table.rows[0].narrow) == ("-", False)
    # One GPU has neither median nor spread.
    assert dict(table.sums)["median"][0] == dict(table.sums)["spread"][0] == "-"


# --- collectives ---


def test_curves_have_a_line_for_each_algorithm_and_the_floor() -> None:
    found = curves(healthy_8()[0])
    assert found is not None
    assert [plot.title for plot in found.plots] == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    assert [name for _, _, name in found.legend] == ["default", "ring", "nvls"]
    assert found.about == "NCCL 2.27.7, 8 GPUs"
    lines = [len(re.findall(r'<path class="line ', plot.svg)) for plot in found.plots]
    assert lines == [3, 3, 3, 2]
    assert ["floor 430 GB/s" in plot.svg for plot in found.plots] == [True, False, False, False]
    below = re.findall(r">([\d.]+ [KMG]iB)</text>", found.plots[0].svg)
    assert below == ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB"]
    assert found.plots[0].note == "best size 472.8 GB/s"
    assert found.quantity == "bus bandwidth"
    assert dict(found.ways)["ring (all_reduce, all_gather, reduce_scatter, all_to_all)"] == (
        "P2P/CUMEM: directly from GPU to GPU"
    )


def test_sizes_stand_at_equal_steps_of_their_logarithm() -> None:
    found = curves(healthy_8()[0])
    assert found is not None
    dots = re.findall(r'<path class="dot line0" d="M([\d.]+) ', found.plots[0].svg)
    steps = [float(after) - float(before) for before, after in itertools.pairwise(dots)]
    assert max(steps) - min(steps) < 0.2


def test_the_slowest_rank_counts() -> None:
    report, _ = healthy_8()
    (checked,) = (check for check in report.checks if (check.name, check.gpu) == ("nccl", report.gpus[6].uuid))
    curve, *others = coverages.nccl(checked).curves
    slow = replace(curve.points[-1], busbw_bytes_per_s=99e9)
    report = changed(report, "nccl", 6, curves=(replace(curve, points=(*curve.points[:-1], slow)), *others))
    assert busbw(report)["all_reduce", "default"][float(1 << 30)] == 99e9


def test_ways_around_nvlink_and_algorithms_that_did_not_run_are_words() -> None:
    report, series = nccl_fallback_8()
    found = curves(report)
    assert found is not None
    assert {way for _, way in found.ways} == {"SHM: through host memory"}
    assert found.missing == ("all_reduce nvls: NVLS is not there",)
    # The floor is on the axis however low the line is.
    level = re.search(r'<g class="level"><line [^>]*y1="([\d.]+)"', found.plots[0].svg)
    assert level is not None
    assert 16 < float(level[1]) < 190
    assert "all_reduce went through host memory (SHM)" in html.render(report, series)


def test_one_rank_is_no_bus_and_the_rank_that_is_waited_for_is_named() -> None:
    report, _ = healthy_1()
    found = curves(report)
    assert found is not None
    assert "nothing went from one GPU to another" in found.about
    assert len(found.plots) == 4
    report, _ = healthy_8()
    assert (section := curves(report)) is not None
    assert section.latest == ""
    for index in range(8):
        report = changed(report, "nccl", index, latest_gpu=report.gpus[3].uuid)
    assert (section := curves(report)) is not None
    assert section.latest == "The others wait for GPU 3, which reaches the operations last."


# --- waves of load ---


def test_power_and_clock_lie_over_the_waves() -> None:
    report, series = healthy_8()
    found = waves(report, series)
    assert found is not None
    assert [name for _, name in found.legend] == ["0.5 Hz", "1 Hz", "5 Hz", "20 Hz", "mixed load"]
    assert (len(found.gpus.shown), len(found.gpus.folded)) == (0, 8)
    power, clock, temperature = found.gpus.folded[0].figures
    assert [figure.title for figure in found.gpus.folded[0].figures] == ["Power", "SM clock", "Temperature"]
    assert "limit 700 W" in power.svg
    assert "limit" not in clock.svg
    for figure in (power, clock, temperature):
        # The last stretch is too narrow for a name that a phone can show; its tooltip and the legend have it.
        assert re.findall(r'class="band-name"[^>]*>([^<]+)<', figure.svg) == ["0.5 Hz", "1 Hz", "5 Hz", "20 Hz"]
        assert "<title>mixed load</title>" in figure.svg
        # Three half periods of 0.5 Hz and six of 1 Hz are wide enough to be told apart, those of 5 and 20 Hz are not.
        assert figure.svg.count('<g class="band load">') == 9
    assert found.told[0].startswith("All loads went on and off together on 8 GPUs at 0.5, 1, 5, 20 Hz, 2,400 edges")
    assert "at most 0.6 ms apart" in found.told[0]
    assert re.search(r"lowest on GPU \d, 6\d\d W of a limit of 700 W \(9\d%\)", found.told[1])
    page = html.render(report, series)
    assert "an average over about a second" in page
    # When the load was on is no throughput.
    assert "wave load" not in page


def test_only_the_time_of_the_check_is_shown() -> None:
    report, series = healthy_8()
    found = waves(report, series)
    assert found is not None
    window = next(window for window in series.windows if window.check == "power")
    seconds = [float(n) for n in re.findall(r">(\d+)(?: s)?</text>", found.gpus.folded[0].figures[2].svg)]
    assert all(window.start_s - 3 <= second <= window.end_s + 3 for second in seconds if second > 100)


def test_the_wait_for_leave_is_not_shown() -> None:
    report, series = healthy_8()
    plain = waves(report, series)
    windows = (
        replace(window, start_s=window.start_s - 200) if window.check == "power" else window
        for window in series.windows
    )
    assert waves(report, replace(series, windows=tuple(windows))) == plain


def test_power_brake_is_shown_where_it_was() -> None:
    report, series = power_brake_8()
    found = waves(report, series)
    assert found is not None
    assert [bool(row.slowed) for row in found.drawn] == [index == 3 for index in range(8)]
    assert re.fullmatch(r"power brake for 4\.\d* s of the waves", found.drawn[3].slowed)
    rows = {gpu.uuid: gpu for gpu in (*found.gpus.shown, *found.gpus.folded)}
    braked = ["power brake</title>" in rows[gpu.uuid].figures[1].svg for gpu in report.gpus]
    assert braked == [index == 3 for index in range(8)]
    assert found.drawn[0].of_limit.endswith("%")
    assert found.drawn[0].energy.endswith("kJ")


def test_waves_that_were_not_made_are_told_with_the_reason() -> None:
    report, series = no_waves_1()
    found = waves(report, series)
    assert found is not None
    page = html.render(report, series)
    # The warning says it in the section; no second sentence does.
    assert "no grant for power waves came within 600 s" in page
    assert "The waves did not run" not in page
    assert "waves of more than 0.5 Hz look flat" not in page
    unwarned = replace(report, warnings=())
    assert "The waves did not run: no grant for power waves came within 600 s." in list(summary(unwarned))
    assert [name for _, name in found.legend] == ["mixed load"]
    assert "WAVES_NOT_RUN" in {warning.code for warning in report.warnings}


def test_power_check_without_samples_is_words_only() -> None:
    report, _ = healthy_1()
    found = waves(report, RunSeries(started_monotonic_s=0.0))
    assert found is not None
    assert (found.gpus.shown, found.gpus.folded) == ((), ())
    assert found.told


# --- another program's opinion ---


def test_opinion_is_a_table_and_only_where_it_was_asked_for() -> None:
    report, series = power_brake_8()
    found = opinion(report)
    assert found is not None
    assert found.about == "DCGM 4.2.3, level 3"
    said = {name: (result, verdict, units) for name, result, verdict, units, _ in found.tests}
    assert said["targeted_power"] == ("Fail", "FAIL", "all 8 GPUs")
    assert said["memory"] == ("Pass", "PASS", "all 8 GPUs")
    assert said["pulse_test"] == ("Skip", "", "all 8 GPUs")
    assert "A second opinion (DCGM)" in html.render(report, series)
    assert opinion(healthy_8()[0]) is None
    assert "second opinion" not in html.render(*healthy_8())
    assert opinion(healthy_16()[0]) is not None


# --- what is only the worker's own word ---


_GARBAGE: tuple[Any, ...] = (None, 7, -1, 1e308, True, "text", [], {}, [1, "a", None], {"a": 1}, [{}])


@pytest.mark.slow
@pytest.mark.parametrize("by", _GARBAGE, ids=repr)
def test_errors_and_evidence_in_any_form_make_every_kind_of_report(by: Any) -> None:
    """They are mappings of any form: what has another one is left out, never an exception."""
    report, series = power_brake_8()
    errors = ({"offset_bytes": by, "bit_lanes": by, "pattern": by}, {"offset_bytes": 5, "bit_lanes": [by]})
    report = replace(
        report,
        checks=tuple(replace(check, errors=errors) for check in report.checks),
        reasons=tuple(replace(reason, details={"attributed": by}) for reason in report.reasons),
        warnings=tuple(replace(warning, details={"attributed": by}) for warning in report.warnings),
    )
    assert "</html>" in html.render(report, series)
    assert text.render(report, what_to_do)
    assert openmetrics.to_openmetrics(report).endswith(b"# EOF\n")
    assert compare.compare(report, faulty_8()[0]).changes


def test_a_result_that_says_nothing_of_its_coverage_makes_every_kind_of_report() -> None:
    report, series = power_brake_8()
    report = replace(report, checks=tuple(replace(check, coverage=Coverage()) for check in report.checks))
    assert "</html>" in html.render(report, series)
    assert text.render(report, what_to_do)
    assert openmetrics.to_openmetrics(report).endswith(b"# EOF\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_picture_is_well_formed_and_says_what_it_shows(name: str) -> None:
    pictures = re.findall(r"<svg [^>]*viewBox.*?</svg>", html.render(*SAMPLES[name]()), re.DOTALL)
    assert pictures
    for picture in pictures:
        tree = ET.fromstring(picture)
        assert tree.get("aria-label") or tree.get("aria-hidden") == "true"
        assert "nan" not in picture.lower().split("aria-label")[0]
