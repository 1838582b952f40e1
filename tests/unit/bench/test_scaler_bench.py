"""The scaler's week in simulation: what it prints adds up, and it saves without losing a job."""

from __future__ import annotations

import random

from gpu_burnin.scaler.model import Rules
from tests.bench.scaler import Arrival, percentiles, report, run, week

MACHINES, DAYS = 8, 0.5


def test_a_week_asks_for_the_load_that_was_named() -> None:
    arrivals = week(random.Random(1), 64, 0.35, 7)
    asked = sum(one.nodes * one.seconds for one in arrivals) / (64 * 7 * 86400)
    assert 0.35 <= asked < 0.4
    assert all(0 <= one.at_s <= 7 * 86400 and 1 <= one.nodes <= 32 for one in arrivals)


def test_every_job_runs_and_what_is_idle_costs_nothing() -> None:
    arrivals = [Arrival(3600.0, 2, 1800.0), Arrival(20000.0, 4, 600.0)]
    scaled = run(arrivals, MACHINES, Rules(idle_s=600), DAYS, all_on=False)
    assert scaled.done == 2 and sum(scaled.cycles) == 6
    # Each waits for a boot, and its machines are on for boot, work and the time until they are idle for long.
    assert all(900 <= wait <= 1200 for wait in scaled.waits)
    assert 2 * 0.9 + 4 * 0.5 < scaled.on_hours < 2 * 1.1 + 4 * 0.8
    all_on = run(arrivals, MACHINES, Rules(idle_s=1e9), DAYS, all_on=True)
    assert all_on.on_hours >= MACHINES * DAYS * 24 - 1 and max(all_on.waits) < 60 and sum(all_on.cycles) == 0


def test_the_report_names_what_it_compares() -> None:
    lines = list(report(MACHINES, DAYS, 0.3, 1, Rules(idle_s=600)))
    assert (
        lines[1].startswith("least possible: ") and lines[2].startswith("scaled: ") and lines[3].startswith("all on: ")
    )
    assert all("power cycles" in line for line in lines[2:])


def test_percentiles_are_in_minutes() -> None:
    assert percentiles([60.0] * 5) == "p50 1.0, p90 1.0, p99 1.0, max 1.0"
    assert percentiles([]) == "none" and percentiles([120.0]) == "p50 2.0, p90 2.0, p99 2.0, max 2.0"
