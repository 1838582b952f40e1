"""The pages of the monitoring benchmark: as many series as are declared, each kept by its own entry."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.bench.scrape_pages import CPUS, TURNS, declared, many_processors, turns

SERIES = yaml.safe_load((Path(__file__).resolve().parents[3] / "roles/fleet_monitoring/files/series.yaml").read_text())


def test_a_page_has_the_declared_series_and_prometheus_keeps_them_all() -> None:
    for job in ("node", "gpu"):
        lines = declared(SERIES[job])
        assert len(set(lines)) == len(lines) == sum(entry["series"] for entry in SERIES[job])
        kept = re.compile("|".join(entry["names"] for entry in SERIES[job]))
        assert all(kept.fullmatch(line.partition("{")[0]) for line in lines)


def test_the_numbers_of_one_processor_become_those_of_many() -> None:
    page = 'node_cpu{cpu="0"} 1\nnode_cpu{cpu="1"} 2\nnode_load1 3\n'
    assert len(many_processors(page)) == CPUS + 1


def test_each_turn_has_other_values_of_the_same_series() -> None:
    pages = [page.decode() for page in turns(["# TYPE a counter", "a 1", "b 2", 'c{x="y"} 3'])]
    assert len(set(pages)) == TURNS
    assert len({re.sub(r" [0-9.]+\n", "\n", page) for page in pages}) == 1
