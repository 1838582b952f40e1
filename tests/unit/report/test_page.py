"""The page: everything is on it, in words that a person understands."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.report import charts, html, outputs, text
from gpu_burnin.report.order import order_of
from gpu_burnin.report.page import Page
from gpu_burnin.report.standing import state_cell, telemetry_cell
from gpu_burnin.report.units import gpu_name
from gpu_burnin.report.verdicts import columns, verdict_on
from tests.support.page_reader import Parsed
from tests.support.sample_nodes import SAMPLES
from tests.support.sample_reports import Sample, faulty_8, gpus_of, healthy_1, healthy_8, sample


def test_everything_of_the_report_is_on_the_page() -> None:
    report, series = faulty_8()
    parsed = Parsed(html.render(report, series))
    shown = parsed.text
    wanted = [report["verdict"], report["node"], report["run_id"], report["software"]["driver"], report["plan_sha256"]]
    for reason in report["reasons"]:
        wanted += [reason["message"].split("): ")[-1], reason["code"].split("_")[0]]
    wanted += [warning["message"].split("): ")[-1] for warning in report["warnings"]]
    for gpu in report["gpus"]:
        wanted += [gpu["uuid"], gpu["serial"], gpu["pci_bus_id"], f"GPU {gpu['index']}"]
    wanted += [source["name"] for source in report["telemetry"]["sources"]]
    wanted += [counter["name"] for counter in report["telemetry"]["counters"] if counter["delta"] != 0]
    wanted += [event["text"] for event in report["telemetry"]["kernel_log"]["events"]]
    wanted += [test["fault"] for test in report["selftest"]]
    wanted += [unit["check"] for unit in report["coverage"]["units"]]
    wanted += ["wrong in the same way", "81204281344", "982.1", "7 of 8", "not asked for"]
    assert [text for text in wanted if str(text) not in shown] == []
    plots = [attributes["aria-label"] for tag, attributes in parsed.elements if "aria-label" in attributes]
    for gpu in report["gpus"]:
        for title in ("Temperature in °C", "Power in W", "SM clock in MHz", "Throughput in %"):
            assert any(plot.startswith(f"GPU {gpu['index']}: {title}") for plot in plots)


def test_plots_mark_checks_xids_and_slowdowns() -> None:
    report, series = faulty_8()
    timeline = charts.timeline(report, series)
    assert [name for _, name in timeline.windows] == ["state", "sm", "gemm", "hbm", "pcie", "nvlink", "nccl", "power"]
    by_index = {gpu["index"]: gpu["uuid"] for gpu in report["gpus"]}
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
    report["gpus"][1] |= {"uuid": "", "serial": "", "vbios": "", "name": "", "sku": "", "memory_bytes": 0}
    report["gpus"][1]["verdict"] = "FAIL"
    empty: dict[str, Any] = {"started_monotonic_s": 0.0, "gpus": {}, "windows": [], "rates": []}
    shown = Parsed(html.render(report, empty)).text
    assert "lost: does not tell" in shown
    assert "Over time" not in shown
    report["gpus"], report["checks"], report["selftest"] = [], [], []
    assert "None was found." in Parsed(html.render(report, empty)).text


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
    for gpu in report["gpus"]:
        gpu["verdict"] = "PASS"
    assert "cannot vouch for the node, although its 8 GPUs passed." in Page(report).sentence
    report["gpus"][5]["verdict"] = "INCONCLUSIVE"
    assert "cannot vouch for GPU 5, out of 8 GPUs." in Page(report).sentence
    report["reasons"] = [{**report["reasons"][0], "code": "INJECTED"}]
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
    for unit in report["coverage"]["units"]:
        if unit["check"] == "nvlink":
            unit["missed_fault_rate_upper95_per_s"] = None
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
    for gpu in report["gpus"]:
        failed = [name for name in columns(report) if verdict_on(report, name, gpu["uuid"]) == "FAIL"]
        assert failed == ([column] if gpu["index"] == 3 else [])
    lines = [line.split() for line in text.render(report, lambda code: None).splitlines()]
    rows = [line for line in lines if line and line[0].isdigit() and line[-1] in ("PASS", "FAIL")]
    assert len(rows) == 8
    assert rows[3].count("FAIL") == 2
    assert not any("FAIL" in row for row in (*rows[:3], *rows[4:]))


def test_unwatched_gpu_and_a_node_that_state_could_not_read_do_not_show_pass() -> None:
    def change(seen: Observations) -> Observations:
        return replace(seen, extra=(make_reason("NVML_UNAVAILABLE", "state", "no NVML"),))

    report, _ = sample(change=change)
    first = report["gpus"][0]["uuid"]
    assert verdict_on(report, "state", first) == "INCONCLUSIVE"
    assert verdict_on(report, "telemetry", first) == "PASS"
    report["telemetry"]["sources"] = []
    assert verdict_on(report, "telemetry", first) is None


def test_reason_that_weighs_most_stands_at_the_top() -> None:
    report, series = faulty_8()
    reason = Page(report).reason
    assert reason
    assert (reason.code, reason.units, reason.more) == ("SLOW", ("GPU 2",), 7)
    hero = html.render(report, series).split("</header>")[0]
    assert "the floor of this model is 1136" in hero
    assert "and 7 more reasons" in hero
    assert Page(healthy_1()[0]).reason is None
    report["reasons"][0]["message"] = "word " * 100
    reason = Page(report).reason
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
    report["plan"]["options"] = {"expect": {"nvlink_links": 99}}
    assert "at what they share: what was expected of them, driver" in order_of(report).sentence
    report, series = broken(range(7))
    assert "alike" not in order_of(report).sentence
    assert "failed under this code" not in html.render(report, series)
    assert "look first" not in text.render(report, lambda code: None)


def test_plots_of_a_gpu_are_open_where_something_was_found_against_it_and_folded_otherwise() -> None:
    def folded(name: str) -> tuple[list[str], list[str]]:
        report, series = SAMPLES[name]()
        rows = charts.timeline(report, series).gpus
        page = html.render(report, series)
        assert (page.count('<details class="more gpus">') == 2) is bool(rows.folded)
        return [gpu_name(report, gpu.uuid) for gpu in rows.shown], [gpu_name(report, gpu.uuid) for gpu in rows.folded]

    assert folded("healthy-8") == ([], [f"GPU {index}" for index in range(8)])
    shown, others = folded("faulty-8")
    assert (shown, others) == (["GPU 0", "GPU 2", "GPU 3", "GPU 5", "GPU 6"], ["GPU 1", "GPU 4", "GPU 7"])
    assert folded("slow-link-8")[0] == ["GPU 2", "GPU 5"], "a link blames neither, and is of both"
    assert folded("doubtful-8")[0] == [], "what is in doubt on every GPU is the node's"
    assert folded("healthy-1") == (["GPU 0"], []), "one GPU has no plot of all"


def test_all_gpus_are_one_plot_with_the_one_that_stands_apart() -> None:
    report, series = faulty_8()
    figures = {figure.title: figure for figure in charts.timeline(report, series).together}
    assert list(figures) == ["Temperature", "Power", "SM clock", "Throughput"]
    assert figures["Temperature"].note == "GPU 1: up to 92 °C"
    assert figures["Power"].note == "up to 697 W"
    assert figures["Throughput"].note.startswith("lowest 88 %, GPU 1 ")
    lines = {title: len(re.findall('class="line line', figure.svg)) for title, figure in figures.items()}
    assert lines == {"Temperature": 2, "Power": 1, "SM clock": 2, "Throughput": 1}
    assert charts.timeline(*healthy_1()).together == ()


def test_many_rates_of_a_short_run_are_one_line_with_a_shade() -> None:
    """Thirteen lines of some tenths of a second each once crossed each other in a plot of 300 points."""
    report, series = sample(level="quick", seconds=14, hz=10)
    for gpu in charts.timeline(report, series).gpus.folded:
        (throughput,) = (figure for figure in gpu.figures if figure.title == "Throughput")
        assert throughput.svg.count('<path class="line') <= 2  # strokes, and points that stand alone
        assert throughput.svg.count('<path class="shade') == 1


def test_cells_of_the_table_of_gpus_say_how_a_gpu_stands() -> None:
    def change(seen: Observations) -> Observations:
        uuid = seen.gpus[2].uuid
        found = [make_reason(code, "state", "x", gpu=uuid) for code in ("ECC_UNCORRECTED", "REMAP_PENDING")]
        return replace(seen, extra=tuple(found))

    report, series = sample(hot={1: 22.0}, change=change)
    cells = [state_cell(report, gpu["uuid"]) for gpu in report["gpus"]]
    assert (cells[2].outcome, cells[2].stands_out) == ("FAIL", ("ECC uncorrected", "remap pending"))
    assert {(cell.outcome, cell.figures) for cell in (*cells[:2], *cells[3:])} == {("PASS", "ok")}
    watched = [telemetry_cell(report, series, gpu["uuid"]) for gpu in report["gpus"]]
    assert (watched[0].figures, watched[0].stands_out) == ("69 °C, 697 W", ())
    assert watched[1].figures == "92 °C, 697 W"
    assert watched[1].stands_out[-1].startswith("slowed for ")
    shown = Parsed(html.render(report, series)).text
    assert "ECC uncorrected, remap pending" in shown
    report["reasons"] = []
    report["warnings"] = [{"code": "PCIE_NARROW", "check": "state", "gpu": report["gpus"][2]["uuid"]}]
    assert state_cell(report, report["gpus"][2]["uuid"]).outcome == "WARNING"
    assert state_cell(report, "").stands_out == ("lost",)
    report["checks"] = [check for check in report["checks"] if check.name != "state"]
    assert state_cell(report, report["gpus"][1]["uuid"]).outcome is None, "what was not looked at is not ok"


def test_tile_says_how_many_codes_it_does_not_show() -> None:
    tiles = html.render(*faulty_8()).split('<div class="tiles')[1].split("</div>")[0]
    assert re.findall(r'GPU (\d)(?:(?!GPU \d).)*?<b class="more">(\+\d)</b>', tiles, re.DOTALL) == [("6", "+2")]


def test_bus_bandwidth_is_one_figure_on_the_page() -> None:
    report, series = healthy_8()
    uuid = report["gpus"][5]["uuid"]
    at = next(at for at, one in enumerate(report["checks"]) if (one.name, one.gpu) == ("nccl", uuid))
    first, *others = report["checks"][at].measurements
    slow = (replace(first, value=401.5e9), *others)
    report["checks"][at] = replace(report["checks"][at], measurements=slow)
    shown = Parsed(html.render(report, series)).text
    assert "all_reduce, bus bandwidth, GB/s best size 401.5 GB/s" in shown
    row = next(row for row in Page(report).measurements if row.name == "all reduce bus bandwidth, best size")
    assert min(text for text, _ in row.cells) == "401.5"


def test_command_is_code_that_wraps_between_its_words_alone() -> None:
    report, series = healthy_8()
    report["warnings"] = [
        {
            "code": "NO_EVIDENCE",
            "check": "state",
            "gpu": None,
            "message": "make it with `ssh-keygen -A </b>`, or `gpu-burnin run --level extended --for 2h`",
            "evidence": {},
        }
    ]
    page = html.render(report, series)
    assert '<code class="command"><span>ssh-keygen -A &lt;/b&gt;</span></code>, or ' in page
    words = " ".join(f"<span>{word}</span>" for word in ["gpu-burnin", "run", "--level", "extended", "--for", "2h"])
    assert f'<code class="command">{words}</code>' in page
    assert "code.command span { white-space: nowrap; }" in page


def test_forms_beside_the_page_are_named_and_linked(tmp_path: Path) -> None:
    report, series = healthy_1()
    outputs.write(tmp_path, report, series)
    page = (tmp_path / "report.html").read_text()
    footer = page[page.index("<footer>") :]
    links = re.findall(r'<a href="([^"]+)">', footer)
    assert {*links, "report.html"} == {path.name for path in tmp_path.iterdir()}


def test_every_cell_of_a_card_has_a_name_or_is_its_head() -> None:
    """On a phone the head of a wide table is gone."""
    for name in ("faulty-8", "no-p2p-4", "healthy-1"):
        page = html.render(*SAMPLES[name]())
        for table in re.findall(r'<table class="stack.*?</table>', page, re.DOTALL):
            for attributes, shown in re.findall(r"<td([^>]*)>(.*?)</td>", table, re.DOTALL):
                named = "data-label=" in attributes or re.search(r'class="[^"]*(head|long)', attributes)
                assert named or not shown, (name, attributes, shown)


def test_codes_break_at_underscores_alone() -> None:
    page = html.render(*faulty_8())
    assert "GEMM_<wbr>MISMATCH" in page
    places = re.findall(r'<(?:a class="tile|p class="(?:head|reason)).*?</(?:a|p)>', page, re.DOTALL)
    assert len(places) > 10
    assert not any(re.search(r"[A-Z]_[A-Z]", place) for place in places)


def test_page_of_an_injected_run_asks_for_a_run_without() -> None:
    report, _ = faulty_8()
    assert "inject" not in order_of(report).sentence
    report["coverage"]["injected"] = ["gemm:bitflip:gpu=1"]
    assert order_of(report).sentence.startswith("Run again without --inject.")


def test_page_without_gpus_says_so() -> None:
    report, _ = SAMPLES["doubtful-8"]()
    report["gpus"] = []
    assert Page(report).sentence == "No GPU was tested, so this run says nothing about the node."


def test_check_that_is_missing_on_every_gpu_has_its_column() -> None:
    report, _ = healthy_8()
    uuids = [gpu["uuid"] for gpu in report["gpus"]]
    report["checks"] = [check for check in report["checks"] if check.name != "gemm"]
    gaps = [{"check": "gemm", "gpu": uuid, "why": "interrupted"} for uuid in uuids]
    report["coverage"]["not_run"] = [*gaps, {"check": "dcgm", "gpu": None, "why": "not asked for"}]
    page = Page(report)
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
