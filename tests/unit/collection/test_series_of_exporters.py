"""The names in files/series.yaml are those of real exporters: pages of them, recorded with their versions."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.series_budget import expanded

KEPT = yaml.safe_load(
    (Path(__file__).resolve().parents[3] / "roles/fleet_monitoring/files/series.yaml").read_text(encoding="utf-8")
)
RECORDED = {path.stem: path for path in sorted((Path(__file__).parent / "exporter_names").glob("*.txt"))}
# What Muster's own programs leave for node_exporter is no name of its own.
OURS = ("muster_", "gpu_burnin_")
# Shown where systemd runs alone: the lab raises MusterUnitFailed by it.
NEEDS_SYSTEMD = {"node_systemd_unit_state"}


def unknown(job: str, entries: list[dict[str, str]]) -> list[str]:
    """Names of these entries that the recorded page of the job does not show."""
    shown = set(RECORDED[job].read_text(encoding="utf-8").splitlines())
    names = [name for entry in entries for name in expanded(entry["names"]) if not name.startswith(OURS)]
    return [name for name in names if name not in shown | NEEDS_SYSTEMD]


def test_an_expression_stands_for_each_of_its_names() -> None:
    assert expanded("a_(b|c)_d(_e)?") == ["a_b_d_e", "a_b_d", "a_c_d_e", "a_c_d"]


@pytest.mark.parametrize("job", RECORDED)
def test_each_kept_name_is_one_that_the_exporter_shows(job: str) -> None:
    assert unknown(job, KEPT[job]) == []


@pytest.mark.parametrize("job", RECORDED)
def test_a_name_that_the_exporter_does_not_have_is_found(job: str) -> None:
    name = expanded(KEPT[job][0]["names"])[0]
    assert unknown(job, [{"names": f"({name}|{name}s)"}]) == [f"{name}s"]


def test_jobs_without_a_recorded_page_are_known() -> None:
    """They are kept by their prefix alone. The services' own pages are read in tests of them (test_service.py)."""
    assert set(KEPT) - set(RECORDED) == {"admitter", "gpu", "scaler"}
