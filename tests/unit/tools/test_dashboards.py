"""The dashboards: each panel says what it shows, reads what is kept, and turns red where its alert is raised."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.dcgm import COUNTER_TABLE
from grafana_foundation_sdk.models import units

from gpu_burnin.admission.service import metrics
from tools.dashboards import __main__ as command
from tools.dashboards.grafana import to_json
from tools.dashboards.limits import NoLimitError, alerts, limit
from tools.dashboards.model import Page
from tools.dashboards.pages import PAGES

ROLE = command.REPOSITORY / "roles" / "fleet_monitoring"
ADMITTER_PAGE = (command.REPOSITORY / "docs" / "operations" / "standing-admission.md").read_text()
RULES = [
    rule
    for path in sorted((ROLE / "files" / "rules").glob("*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
KEPT = re.compile(
    "|".join(
        entry["names"]
        for entries in yaml.safe_load((ROLE / "files" / "series.yaml").read_text()).values()
        for entry in entries
    )
)
# Prometheus makes these itself.
OWN = {
    "up", "ALERTS", "scrape_body_size_bytes", "scrape_sample_limit", "scrape_samples_post_metric_relabeling",
    "scrape_samples_scraped",
}  # fmt: skip
PANELS = [(page, panel) for page in PAGES for panel in page.panels]


def _id(page: Page) -> str:
    return page.uid


def _selectors(expression: str) -> Iterator[promql.VectorSelector]:
    """Each series that an expression reads."""
    found: list[promql.VectorSelector] = []

    def look(node: object) -> bool:
        if isinstance(node, promql.VectorSelector):
            found.append(node)
        elif isinstance(node, promql.MatrixSelector):
            found.append(node.vector_selector)
        return True

    promql.walk(promql.parse(expression), look)
    yield from found


def _names(expression: str) -> set[str]:
    return {str(selector.name) for selector in _selectors(expression)}


def _expressions(page: Page) -> list[str]:
    return [query.expr for panel in page.panels for query in panel.queries] + [mark.expr for mark in page.marks]


def _unknown(names: set[str]) -> set[str]:
    """Those that no rule records and that Prometheus drops, or that nobody ever writes."""
    kept = {name for name in names if KEPT.fullmatch(name)}
    # Two of the patterns keep whatever there is.
    fields = {row.field for row in COUNTER_TABLE}
    kept -= {name for name in kept if name.startswith("DCGM_") and name not in fields}
    counters = {f"{metrics.PREFIX}{name}_total" for name in metrics.COUNTERS}
    kept -= {
        name
        for name in kept
        if name.startswith(metrics.PREFIX) and name not in counters and f"`{name}" not in ADMITTER_PAGE
    }
    return names - RECORDS - OWN - kept


def test_what_is_not_kept_or_not_written_is_unknown() -> None:
    strange = {"node_load5", "DCGM_FI_DEV_FAN_SPEED", "muster_admitter_nonsense", "muster:nonsense"}
    assert _unknown({*strange, "node_load1", "DCGM_FI_DEV_GPU_TEMP", "muster_admitter_leader", "up"}) == strange
    assert _names('rate(a_total{x="$y"}[5m]) / on (i) (b or 0 * sum(c)) > topk(3, max_over_time(d[5m:1m]))') == {
        "a_total",
        "b",
        "c",
        "d",
    }


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_every_series_of_a_page_is_kept_or_recorded(page: Page) -> None:
    names = set().union(*map(_names, _expressions(page)))
    names |= set().union(*(_names(_asked(variable.query)) for variable in page.variables))
    assert not _unknown(names)


def _asked(query: str) -> str:
    """The selector in label_values(SELECTOR, label)."""
    found = re.fullmatch(r"label_values\((.+), \w+\)", query)
    assert found, query
    return found[1]


def test_every_series_of_a_rule_is_kept_or_recorded() -> None:
    assert not _unknown(set().union(*(_names(rule["expr"]) for rule in RULES)))


@pytest.mark.parametrize("page", [page for page in PAGES if page.uid in ("muster-fleet", "muster-burnin")], ids=_id)
def test_a_page_of_the_whole_fleet_reads_sums_alone(page: Page) -> None:
    assert set().union(*map(_names, _expressions(page))) <= RECORDS


@pytest.mark.parametrize("page", [page for page in PAGES if page.variables], ids=_id)
def test_a_page_of_some_hosts_reads_no_other_host(page: Page) -> None:
    (variable,) = page.variables
    chosen = ("instance", f"${variable.name}")
    for expression in _expressions(page):
        for selector in _selectors(expression):
            assert chosen in {(one.name, one.value) for one in selector.matchers.matchers}, expression
    assert to_json(page).count('"multi": true') == int(variable.many)


@pytest.mark.parametrize("page", [page for page in PAGES if not page.variables], ids=_id)
def test_a_page_without_a_choice_asks_for_none(page: Page) -> None:
    assert not [expression for expression in _expressions(page) if "$" in expression]


def test_each_panel_says_what_it_shows() -> None:
    known = {value for value in vars(units).values() if isinstance(value, str)}
    for page, panel in PANELS:
        about = f"{page.uid}: {panel.title}"
        assert panel.unit in known, about
        assert re.fullmatch(r"[A-Z`].{10,}\.", panel.description), about
        assert panel.queries and all(query.legend for query in panel.queries), about
    for page in PAGES:
        for row in page.rows:
            titles = [panel.title for panel in row.panels]
            assert len(set(titles)) == len(titles), f"{page.uid}: {row.title}"


def _for_all_hosts(expression: str) -> str:
    return str(promql.parse(re.sub(r"\{instance=\"\$node\"\}", "", expression)))


def test_panels_have_the_limits_of_alerts_that_compare_the_same() -> None:
    limits = {}
    for alert in alerts():
        try:
            limits[limit(alert).of] = alert
        except NoLimitError:
            continue
    met = set()
    for page, panel in PANELS:
        expression = _for_all_hosts(panel.queries[0].expr)
        if expression in limits:
            assert panel.alert == limits[expression], f"{page.uid}: {panel.title}"
            met.add(panel.alert)
        elif panel.alert and not panel.counted:
            assert limit(panel.alert).of in expression, f"{page.uid}: {panel.title}"
    assert {"MusterNodesOut", "MusterDiskFull", "MusterEtcdSlowFsync", "MusterApiSlow"} <= met


def test_what_is_counted_counts_what_an_alert_is_about() -> None:
    counted = [panel for _, panel in PANELS if panel.counted]
    assert counted and {panel.alert for panel in counted} <= set(alerts())


def test_a_limit_is_the_alerts_own() -> None:
    assert limit("MusterNodesOut") == limit("MusterNodesOut")
    assert (limit("MusterNodesOut").value, limit("MusterNodesOut").below) == (0.1, False)
    assert (limit("MusterDiskFull").value, limit("MusterDiskFull").below) == (0.1, True)
    with pytest.raises(NoLimitError, match="no alert MusterNonsense"):
        limit("MusterNonsense")
    with pytest.raises(NoLimitError, match="MusterHostDown compares nothing"):
        limit("MusterHostDown")


def _steps(page: str, title: str) -> list[tuple[str, Any]]:
    document = json.loads(next(to_json(one) for one in PAGES if one.uid == page))
    (panel, *_) = [panel for panel in document["panels"] if panel["title"] == title]
    return [(step["color"], step["value"]) for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]


def test_colours_begin_where_the_alert_does() -> None:
    assert _steps("muster-fleet", "Out of work") == [("green", None), ("red", 0.1)]
    assert _steps("muster-fleet", "Hosts that do not answer") == [("green", None), ("red", 1.0)]
    assert _steps("muster-control-plane", "Late tests") == [("green", None), ("red", 1.0)]
    assert _steps("muster-node", "Disk left") == [("red", None), ("green", 0.1)]


def test_the_burn_ins_of_a_node_are_marked_at_their_own_time() -> None:
    document = json.loads(next(to_json(page) for page in PAGES if page.uid == "muster-node"))
    marks = document["annotations"]["list"]
    assert [mark["titleFormat"].split()[-1] for mark in marks] == ["began", "ended"]
    assert all(mark["useValueForTime"] for mark in marks)


def test_panels_stand_beside_and_below_each_other() -> None:
    for page in PAGES:
        document = json.loads(to_json(page))
        taken: set[tuple[int, int]] = set()
        for panel in document["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not taken & cells, panel["title"]
            taken |= cells
        numbers = [panel["id"] for panel in document["panels"]]
        assert len(numbers) == len(set(numbers)) and 0 not in numbers


def test_the_role_has_each_dashboard() -> None:
    variables = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
    sources = {Path(one.get("src", "")).name for one in variables["__fleet_monitoring_grafana_files"]}
    assert sources >= {f"{page.uid}.json" for page in PAGES}


def test_what_is_not_up_to_date_is_named_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "REPOSITORY", tmp_path)
    monkeypatch.setattr(command, "FOLDER", tmp_path / "dashboards")
    assert command.main(["--check"]) == 1
    assert command.main([]) == 0
    assert command.main(["--check"]) == 0
    (tmp_path / "dashboards/muster-node.json").write_text("{}")
    (tmp_path / "dashboards/old.json").write_text("{}")
    capsys.readouterr()
    assert command.main(["--check"]) == 1
    told = capsys.readouterr().err
    assert "muster-node.json is not up to date" in told and "old.json" in told and "muster-job" not in told
    assert command.main([]) == 0
    assert command.main(["--check"]) == 0
    assert not (tmp_path / "dashboards/old.json").exists()
