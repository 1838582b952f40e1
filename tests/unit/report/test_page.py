"""The page: everything is on it, in words that a person understands."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.report import charts, html, text
from gpu_burnin.report.model import NotRun
from gpu_burnin.report.order import order_of
from gpu_burnin.report.page import Page
from gpu_burnin.report.series import RunSeries
from gpu_burnin.report.verdicts import columns, verdict_on
from gpu_burnin.types import Verdict
from tests.support.made_reports import with_gpu, without_check
from tests.support.page_reader import Parsed
from tests.support.sample_nodes import SAMPLES
from tests.support.sample_reports import Sample, faulty_8, gpus_of, healthy_1, healthy_8, sample


def test_everything_of_the_report_is_on_the_page() -> None:
    report, series = faulty_8()
    parsed = Parsed(html.render(report, series))
    shown = parsed.text
    wanted = [report.verdict, report.node, report.run_id, report.software["driver"], report.plan_sha256]
    for reason in report.reasons:
        wanted += [reason.message.split("): ")[-1], reason.code.split("_")[0]]
    wanted += [warning.message.split("): ")[-1] for warning in report.warnings]
    for gpu in report.gpus:
        wanted += [gpu.uuid, gpu.serial, gpu.pci_bus_id, f"GPU {gpu.index}"]
    wanted += [source.name for source in report.telemetry.sources]
    wanted += [counter.name for counter in report.telemetry.counters if counter.delta != 0]
    wanted += [event.text for event in report.telemetry.kernel_log.events]
    wanted += [test.fault for test in report.selftest]
    wanted += [unit.check for unit in report.coverage.units]
    wanted += ["wrong in the same way", "81204281344", "982.1", "7 of 8", "not asked for"]
    assert [text for text in wanted if str(text) not in shown] == []
    plots = [attributes["aria-label"] for tag, attributes in parsed.elements if "aria-label" in attributes]
    for gpu in report.gpus:
        for title in ("Temperature in °C", "Power in W", "SM clock in MHz", "Throughput in %"):
            assert any(plot.startswith(f"GPU {gpu.index}: {title}") for plot in plots)


def test_plots_mark_checks_xids_and_slowdowns() -> None:
    report, series = faulty_8()
    timeline = charts.timeline(report, series)
    assert [name for _, name in timeline.windows] == ["state", "sm", "gemm", "hbm", "pcie", "nvlink", "nccl", "power"]
    by_index = {gpu.index: gpu.uuid for gpu in report.gpus}
    rows = (*timeline.gpus.shown, *timeline.gpus.folded)
    plots = {figures.uuid: "".join(figure.svg for figure in figures.figures) for figures in rows}
    assert plots[by_index[0]].count("<title>gemm</title>") == 4
    assert "XID 79" in plots[by_index[6]]
    assert "XID 79" not in plots[by_index[5]]
    assert "software thermal slowdown" in plots[by_index[1]]
    assert "thermal slowdown" not in plots[by_index[0]]
    notes = {figures.uuid: {figure.title: figure.note for figure in figures.figures} for figures in rows}
    assert notes[by_index[1]]["Throughput"].startswith("lowest 88 %")


def test_axes_are_common_and_have_units() -> None:
    timeline = charts.timeline(*healthy_8())
    for title in ("Temperature", "Power", "SM clock", "Throughput"):
        ticks = {
            tuple(re.findall(r'text-anchor="end">([^<]*)</text>', figure.svg))
            for figures in (*timeline.gpus.folded, charts.GpuFigures("all", timeline.together))
            for figure in figures.figures
            if figure.title == title
        }
        assert len(ticks) == 1
        assert len(next(iter(ticks))) >= 3
    svg = timeline.gpus.folded[0].figures[0].svg
    assert re.search(r">\d+ min</text>", svg)


def test_a_lost_gpu_and_no_samples_at_all_make_a_page() -> None:
    report, _ = sample(count=2)
    lost: dict[str, Any] = {"uuid": "", "serial": "", "vbios": "", "name": "", "sku": "", "memory_bytes": 0}
    report = with_gpu(report, 1, verdict=Verdict.FAIL, **lost)
    empty = RunSeries(started_monotonic_s=0.0)
    shown = Parsed(html.render(report, empty)).text
    assert "lost: does not tell" in shown
    assert "Over time" not in shown
    bare = replace(report, gpus=(), checks=(), selftest=())
    assert "None was found." in Parsed(html.render(bare, empty)).text


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("healthy-8", "No fault was seen on 8 GPUs in 4 min 52 s."),
        ("faulty-8", "GPU 2, GPU 3, GPU 5 and GPU 6 failed, out of 8 GPUs."),
        ("doubtful-8", "No fault was proved, but this run cannot vouch for the 8 GPUs either."),
        ("healthy-1", "No fault was seen on 1 GPU in 1 min."),
        ("slow-link-8", "The link between GPU 2 and GPU 5 failed, out of 8 GPUs."),
        ("slow-gpu-8", "GPU 4 failed, out of 8 GPUs."),
    ],
)
def test_sentence_says_what_came_out(name: str, sentence: str) -> None:
    assert Page(SAMPLES[name]()[0]).sentence == sentence


def test_sentence_of_a_doubtful_run_names_what_it_cannot_vouch_for() -> None:
    report, _ = SAMPLES["doubtful-8"]()
    report = replace(report, gpus=tuple(replace(gpu, verdict=Verdict.PASS) for gpu in report.gpus))
    assert "cannot vouch for the node, although its 8 GPUs passed." in Page(report).sentence
    report = with_gpu(report, 5, verdict=Verdict.INCONCLUSIVE)
    assert "cannot vouch for GPU 5, out of 8 GPUs." in Page(report).sentence
    report = replace(report, reasons=(replace(report.reasons[0], code="INJECTED"),))
    assert Page(report).sentence == "Faults were injected on purpose, so this run says nothing about the 8 GPUs."


def test_failed_link_shows_on_the_tiles_and_in_the_tables_of_both_gpus() -> None:
    report, series = SAMPLES["slow-link-8"]()
    page = html.render(report, series)
    assert page.count("<small>link</small>") == 2
    assert page.count('class="tile INCONCLUSIVE"') == 2
    rows = [line.split() for line in text.render(report, lambda code: None).splitlines() if "LINK" in line.split()]
    assert [row[0] for row in rows] == ["2", "5"]


def test_check_that_passed_with_nothing_to_test_has_no_bound_and_no_fault() -> None:
    report, _ = healthy_1()
    units = (
        replace(unit, missed_fault_rate_upper95_per_s=None) if unit.check == "nvlink" else unit
        for unit in report.coverage.units
    )
    report = replace(report, coverage=replace(report.coverage, units=tuple(units)))
    assert "one GPU: there is no pair to test" in text.render(report, lambda code: None)
    (row,) = [row for row in Page(report).coverage if row.check == "nvlink"]
    assert row.bound == "nothing to test here: no bound"


@pytest.mark.parametrize("check", ["telemetry", "kernel_log", "state", "gemm"])
def test_gpu_that_failed_shows_in_which_column(check: str) -> None:
    """A throttled GPU once was FAIL with PASS in every column."""
    column = "telemetry" if check == "kernel_log" else check

    def change(seen: Observations) -> Observations:
        return replace(seen, extra=(make_reason("THROTTLED", check, "too hot", gpu=seen.gpus[3].uuid),))

    report, _ = sample(change=change)
    for gpu in report.gpus:
        failed = [name for name in columns(report) if verdict_on(report, name, gpu.uuid) == "FAIL"]
        assert failed == ([column] if gpu.index == 3 else [])
    lines = [line.split() for line in text.render(report, lambda code: None).splitlines()]
    rows = [line for line in lines if line and line[0].isdigit() and line[-1] in ("PASS", "FAIL")]
    assert len(rows) == 8
    assert rows[3].count("FAIL") == 2
    assert not any("FAIL" in row for row in (*rows[:3], *rows[4:]))


def test_unwatched_gpu_and_a_node_that_state_could_not_read_do_not_show_pass() -> None:
    def change(seen: Observations) -> Observations:
        return replace(seen, extra=(make_reason("NVML_UNAVAILABLE", "state", "no NVML"),))

    report, _ = sample(change=change)
    first = report.gpus[0].uuid
    assert verdict_on(report, "state", first) == "INCONCLUSIVE"
    assert verdict_on(report, "telemetry", first) == "PASS"
    unwatched = replace(report, telemetry=replace(report.telemetry, sources=()))
    assert verdict_on(unwatched, "telemetry", first) is None


def test_reason_that_weighs_most_stands_at_the_top() -> None:
    report, series = faulty_8()
    reason = Page(report).reason
    assert reason
    assert (reason.code, reason.units, reason.more) == ("SLOW", ("GPU 2",), 7)
    hero = html.render(report, series).split("</header>")[0]
    assert "the floor of this model is 1136" in hero
    assert "and 7 more reasons" in hero
    assert Page(healthy_1()[0]).reason is None
    long = replace(report.reasons[0], message="word " * 100)
    reason = Page(replace(report, reasons=(long, *report.reasons[1:]))).reason
    assert reason
    assert len(reason.message) <= 244
    assert reason.message.endswith("word ...")


def test_same_fault_on_every_gpu_asks_for_a_common_cause_first() -> None:
    def broken(indices: range) -> Sample:
        def change(seen: Observations) -> Observations:
            wrong = [make_reason("GEMM_MISMATCH", "gemm", "wrong", gpu=gpu.uuid) for gpu in seen.gpus]
            return replace(seen, extra=tuple(wrong[index] for index in indices))

        return sample(change=change)

    report, series = broken(range(8))
    assert order_of(report).sentence.startswith("All 8 GPUs failed alike, so look first at what they share: driver")
    assert "All 8 GPUs failed under this code" in html.render(report, series)
    assert "look first at what they share" in " ".join(text.render(report, lambda code: None).split())
    report = replace(report, plan={**report.plan, "options": {"expect": {"nvlink_links": 99}}})
    assert "at what they share: what was expected of them, driver" in order_of(report).sentence
    report, series = broken(range(7))
    assert "alike" not in order_of(report).sentence
    assert "failed under this code" not in html.render(report, series)
    assert "look first" not in text.render(report, lambda code: None)


def test_codes_break_at_underscores_alone() -> None:
    page = html.render(*faulty_8())
    assert "GEMM_<wbr>MISMATCH" in page
    places = re.findall(r'<(?:a class="tile|p class="(?:head|reason)).*?</(?:a|p)>', page, re.DOTALL)
    assert len(places) > 10
    assert not any(re.search(r"[A-Z]_[A-Z]", place) for place in places)


def test_page_of_an_injected_run_asks_for_a_run_without() -> None:
    report, _ = faulty_8()
    assert "inject" not in order_of(report).sentence

    def sentence(spec: str) -> str:
        return order_of(replace(report, coverage=replace(report.coverage, injected=(spec,)))).sentence

    assert sentence("gemm:bitflip").startswith("Run again without --inject.")
    assert "the machine off and on. Then run again without --inject. Only if" in sentence("gemm:bitflip:gpu=1")


def test_page_without_gpus_says_so() -> None:
    report = replace(SAMPLES["doubtful-8"]()[0], gpus=())
    assert Page(report).sentence == "No GPU was tested, so this run says nothing about the node."


def test_check_that_is_missing_on_every_gpu_has_its_column() -> None:
    report, _ = healthy_8()
    gaps = (NotRun("gemm", gpu.uuid, "interrupted") for gpu in report.gpus)
    coverage = replace(report.coverage, not_run=(*gaps, NotRun("dcgm", None, "not asked for")))
    page = Page(replace(without_check(report, "gemm"), coverage=coverage))
    assert "gemm" in page.columns
    assert "dcgm" not in page.columns
    assert page.not_run == [("interrupted", "gemm on all 8 GPUs"), ("not asked for", "dcgm")]


def test_reasons_of_one_code_are_one_finding_with_one_advice() -> None:
    uuids = [gpu.uuid for gpu in gpus_of(8)]

    def change(seen: Observations) -> Observations:
        extra = [make_reason("THROTTLED", "telemetry", "too hot", gpu=uuid) for uuid in uuids[:3]]
        return replace(seen, extra=(*extra, make_reason("THROTTLED", "telemetry", "power brake", gpu=uuids[5])))

    report, series = sample(change=change)
    (finding,) = Page(report).findings
    assert [(units, message) for units, message, _ in finding.entries] == [
        (["GPU 0", "GPU 1", "GPU 2"], "too hot"),
        (["GPU 5"], "power brake"),
    ]
    assert html.render(report, series).count("To do:") == 1


def test_coverage_joins_gpus_that_covered_the_like() -> None:
    rows = {(row.check, row.units): row for row in Page(faulty_8()[0]).coverage}
    assert rows["sm", "all 8 GPUs"].bound == "would see a fault coming every 1.9 s of verified work"
    like = rows["gemm", "GPUs 0, 1, 4, 5, 6 and 7"]
    assert like.covered.startswith("6,300 to 6,349 products in fp64, fp32")
    assert rows["gemm", "GPUs 2 and 3"].bound.endswith("no bound")
