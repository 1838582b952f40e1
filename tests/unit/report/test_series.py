"""Series over time: times count from the start of the run, long runs are thinned without losing extremes."""

from __future__ import annotations

import json
import math

import pytest

from gpu_burnin.report.series import MAX_BUCKETS, Rate, Window, build_series
from gpu_burnin.report.svg import Frame, Line, nice_range, nice_step, plot
from gpu_burnin.system.codec import to_json
from gpu_burnin.telemetry.findings import GpuSeries, TelemetryFindings
from gpu_burnin.types import CheckResult, Series, Verdict
from tests.support.sample_reports import STARTED_S, healthy_8


def series_of(count: int, **columns: tuple[float | None, ...]) -> TelemetryFindings:
    """Ten samples a second from the start of the run on."""
    return TelemetryFindings(series=(GpuSeries("G", tuple(STARTED_S + i / 10 for i in range(count)), columns),))


def test_short_run_is_kept_as_it_is() -> None:
    made = build_series((), series_of(3, power_w=(1.0, None, 2.5)), STARTED_S)
    assert to_json(made) == {
        "schema": "muster-series/v1",
        "started_monotonic_s": STARTED_S,
        "gpus": {"G": {"t_s": [0.0, 0.1, 0.2], "columns": {"power_w": [1, None, 2.5]}}},
        "windows": [],
        "rates": [],
    }


def test_long_run_is_thinned_and_keeps_its_extremes() -> None:
    count = 25_000
    values = tuple(9000.0 if i == 12_345 else float(i % 10) for i in range(count))
    bits = tuple(float(0x40 * (i == 777) | 4) for i in range(count))
    made = build_series((), series_of(count, power_w=values, clocks_event_reasons=bits), STARTED_S).gpus["G"]
    assert len(made.t_s) == MAX_BUCKETS
    assert made.t_s == sorted(made.t_s)
    assert made.t_s[-1] == pytest.approx(count / 10, abs=2)
    assert {len(made.columns["power_w"]), len(made.low["power_w"]), len(made.high["power_w"])} == {MAX_BUCKETS}
    assert max(made.high["power_w"]) == 9000
    assert max(made.columns["power_w"]) < 9000
    assert min(made.low["power_w"]) == 0
    # A power brake of a tenth of a second must not be averaged away.
    assert [value for value in made.columns["clocks_event_reasons"] if value != 4] == [0x44]
    assert "clocks_event_reasons" not in made.low


def test_extremes_that_the_sampler_kept_are_taken() -> None:
    samples = GpuSeries("G", (1.0,), {"power_w": (5.0,)}, {"power_w": (1.0,)}, {"power_w": (9.0,)})
    made = build_series((), TelemetryFindings(series=(samples,)), 0.0).gpus["G"]
    assert (made.low, made.high) == ({"power_w": [1]}, {"power_w": [9]})


def test_windows_and_rates_count_from_the_start_of_the_run() -> None:
    rate = Series("gemm_bf16_throughput", "TFLOP/s", (STARTED_S + 2, STARTED_S + 3), (800.0, math.nan))
    ran = CheckResult("gemm", "G", Verdict.PASS, 4.5, series=(rate,), started_s=STARTED_S + 1)
    unknown = CheckResult("hbm", "G", Verdict.PASS, 4.5)
    made = build_series((ran, unknown), TelemetryFindings(), STARTED_S)
    assert made.windows == (Window("G", "gemm", start_s=1.0, end_s=5.5),)
    assert made.rates == (Rate("G", "gemm", rate.name, "TFLOP/s", [2.0, 3.0], [800, None]),)


def test_series_of_a_whole_node_are_small() -> None:
    _, series = healthy_8()
    assert len(json.dumps(to_json(series))) < 1_000_000


@pytest.mark.parametrize(("span", "wanted", "step"), [(60, 5, 20), (97, 5, 20), (0.8, 4, 0.2), (2000, 4, 500)])
def test_steps_are_what_people_count_in(span: float, wanted: int, step: float) -> None:
    assert nice_step(span, wanted) == pytest.approx(step)


def test_ranges_hold_all_values_at_round_numbers() -> None:
    assert nice_range([78, 697], 50) == (0, 800)
    assert nice_range([31, 92], 10, from_zero=False) == (20, 100)
    low, high = nice_range([500.0, 500.0], 50)
    assert low < 500 < high
    assert nice_range([], 1)[0] < nice_range([], 1)[1]


def drawn(line: Line) -> str:
    frame = Frame(300, 100, (0.0, 10.0), (0.0, 1.0), 5.0, 1.0, "s", 0.5)
    return str(plot(frame, "title", [line]))


def test_line_breaks_where_nothing_was_read() -> None:
    t_s = [0.0, 1.0, 2.0, 3.0, 4.0]
    assert drawn(Line("c", "l", t_s, [1, 1, 1, 1, 1])).count("M") == 1
    assert drawn(Line("c", "l", t_s, [1, 1, None, 1, 1])).count("M") == 2
    assert drawn(Line("c", "l", [0.0, 1.0, 2.0, 9.5, 10.0], [1, 1, 1, 1, 1])).count("M") == 2


def test_what_is_outside_the_axes_is_drawn_at_their_end() -> None:
    svg = drawn(Line("c", "l", [0.0, 20.0], [5.0, -5.0]))
    assert "M52.0 18.0L292.0 75.0" in svg
