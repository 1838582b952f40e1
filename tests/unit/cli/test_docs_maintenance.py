"""What the page on maintenance windows shows is what the project reads."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import yaml
from ansible_collections.muster.fleet.plugins.module_utils.preflight.calendar import VARIABLE, near

from gpu_burnin.admission.view import Rules
from gpu_burnin.node.maintenance.reader import FRESH_S, POLL_S, PROVIDERS
from gpu_burnin.settings.config import Config

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/operations/maintenance.md").read_text()
DEFAULTS = yaml.safe_load((ROOT / "roles/fleet/defaults/main.yml").read_text())


def test_the_calendar_of_the_page_is_one() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    calendar, groups = yaml.safe_load(text)[VARIABLE], {"all": ["gpu-011", "gpu-012"], "rack7": ["gpu-011"]}
    for hour, expected in ((20, False), (21, True), (23, True)):
        now = datetime(2026, 12, 1, hour, 30, tzinfo=UTC)
        found = near(calendar, "gpu-011", ["rack7"], groups, groups["all"], DEFAULTS["fleet_maintenance_before_s"], now)
        assert bool(found) is expected
    assert near(calendar, "gpu-011", ["rack7"], groups, groups["all"], 0, datetime(2026, 12, 2, 2, tzinfo=UTC)) == ""


def test_the_figures_of_the_page_are_those_of_the_project() -> None:
    assert "from 60 minutes before" in PAGE
    assert (
        Rules().maintenance_before_s == Config().maintenance_before_s == DEFAULTS["fleet_maintenance_before_s"] == 3600
    )
    assert f"every {POLL_S:g} seconds" in PAGE
    assert "missing for three minutes" in PAGE and 180 <= FRESH_S < 240


def test_each_provider_has_its_row() -> None:
    rows = re.findall(r"^\| `(\w+)`", PAGE, re.MULTILINE)
    assert [row for row in rows if row != "none"] == list(PROVIDERS)
