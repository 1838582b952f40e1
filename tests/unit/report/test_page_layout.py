"""The page as eyes meet it: what is open and what is folded, cells and cards, commands, plots, on a phone too."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.report import charts, html, outputs
from gpu_burnin.report.page import Page
from gpu_burnin.report.standing import state_cell, telemetry_cell
from gpu_burnin.types import Notice
from tests.support.made_reports import without_check
from tests.support.page_reader import Parsed
from tests.support.sample_nodes import SAMPLES
from tests.support.sample_reports import faulty_8, healthy_1, healthy_8, sample


@pytest.mark.slow
def test_plots_of_a_gpu_are_open_where_something_was_found_against_it_and_folded_otherwise() -> None:
    def folded(name: str) -> tuple[list[str], list[str]]:
        report, series = SAMPLES[name]()
        rows = charts.timeline(report, series).gpus
        page = html.render(report, series)
        assert (page.count('<details class="more gpus">') == 2) is bool(rows.folded)
        return [report.name(gpu.uuid) for gpu in rows.shown], [report.name(gpu.uuid) for gpu in rows.folded]

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
    cells = [state_cell(report, gpu.uuid) for gpu in report.gpus]
    assert (cells[2].outcome, cells[2].stands_out) == ("FAIL", ("ECC uncorrected", "remap pending"))
    assert {(cell.outcome, cell.figures) for cell in (*cells[:2], *cells[3:])} == {("PASS", "ok")}
    watched = [telemetry_cell(report, series, gpu.uuid) for gpu in report.gpus]
    assert (watched[0].figures, watched[0].stands_out) == ("69 °C, 697 W", ())
    assert watched[1].figures == "92 °C, 697 W"
    assert watched[1].stands_out[-1].startswith("slowed for ")
    shown = Parsed(html.render(report, series)).text
    assert "ECC uncorrected, remap pending" in shown
    report = replace(report, reasons=(), warnings=(Notice("PCIE_NARROW", "state", "x", report.gpus[2].uuid),))
    assert state_cell(report, report.gpus[2].uuid).outcome == "WARNING"
    assert state_cell(report, "").stands_out == ("lost",)
    unseen = without_check(report, "state")
    assert state_cell(unseen, report.gpus[1].uuid).outcome is None, "what was not looked at is not ok"


def test_tile_says_how_many_codes_it_does_not_show() -> None:
    tiles = html.render(*faulty_8()).split('<div class="tiles')[1].split("</div>")[0]
    assert re.findall(r'GPU (\d)(?:(?!GPU \d).)*?<b class="more">(\+\d)</b>', tiles, re.DOTALL) == [("6", "+2")]


def test_bus_bandwidth_is_one_figure_on_the_page() -> None:
    report, series = healthy_8()
    (of_gpu,) = (one for one in report.checks if (one.name, one.gpu) == ("nccl", report.gpus[5].uuid))
    first, *others = of_gpu.measurements
    slow = replace(of_gpu, measurements=(replace(first, value=401.5e9), *others))
    report = replace(report, checks=tuple(slow if one is of_gpu else one for one in report.checks))
    shown = Parsed(html.render(report, series)).text
    assert "all_reduce, bus bandwidth, GB/s best size 401.5 GB/s" in shown
    row = next(row for row in Page(report).measurements if row.name == "all reduce bus bandwidth, best size")
    assert min(text for text, _ in row.cells) == "401.5"


def test_command_is_code_that_wraps_between_its_words_alone() -> None:
    report, series = healthy_8()
    message = "make it with `ssh-keygen -A </b>`, or `gpu-burnin run --level extended --for 2h`"
    page = html.render(replace(report, warnings=(Notice("NO_EVIDENCE", "state", message),)), series)
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


def test_what_is_wider_than_paper_is_cards_there() -> None:
    """A browser shrinks all printed pages, to half and less, until the widest table fits."""
    printed = (Path(html.__file__).parent / "templates/report.css").read_text().split("@media print")[1]
    assert ".broad tr { display: grid;" in printed and ".broad thead { display: none; }" in printed
    page = html.render(*SAMPLES["faulty-8"]())
    tables = {head: css for css, head in re.findall(r'<table class="([^"]*)">\s*<thead>(.*?)</thead>', page, re.DOTALL)}
    for column in ("<th>Serial</th>", "<th>precision</th>"):
        [css] = [css for head, css in tables.items() if column in head]
        assert "broad" in css.split(), column


def test_texts_of_plots_have_eleven_pixels_in_the_narrowest_column_and_on_a_phone() -> None:
    css = (Path(html.__file__).parent / "templates/report.css").read_text()
    wide, phone = css.split("@media (max-width: 640px)")
    row = re.compile(r"(\.plots[.\w]*) \{ --t: ([\d.]+)px; .*?min\(100%, (\d+)px\)")
    narrowest = {kind: (float(text), float(column)) for kind, text, column in row.findall(wide)}
    on_phone = {kind: float(text) for kind, text in re.findall(r"(\.plots[.\w]*) \{ --t: ([\d.]+)px; \}", phone)}
    sizes: dict[str, set[int]] = {}
    for name in ("faulty-8", "healthy-1", "bit-lane-2"):
        for css_class, plots in re.findall(
            r'<div class="(plots[ \w]*)">(.*?)</div>', html.render(*SAMPLES[name]()), re.S
        ):
            kind = "." + ".".join(css_class.split())
            sizes.setdefault(kind, set()).update(
                int(width) for width in re.findall(r'viewBox="0 0 (\d+) \d+" role', plots)
            )
    assert set(sizes) == set(narrowest) == {".plots", ".plots.three", ".plots.wide"}
    padding = 2 * (12 + 14 + 1)
    for kind, (letters, column) in narrowest.items():
        for width in sizes[kind]:
            assert letters * column / width >= 11, kind
            assert on_phone.get(kind, letters) * (360 - padding) / width >= 11, f"{kind} on a phone of 360 px"
