"""Each panel of each dashboard shows something: in the lab, or, of what the lab does not have, by promtool.

Only here: each panel's expression finds what real exporters show.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.image import ensure_image
from tools.dashboards.limits import RULES
from tools.dashboards.pages import PAGES

from .fleet import Fleet, wait_until
from .prometheus import answers, query, readings

# gpu-3 is sick on purpose, so that its page has reasons and alerts.
CHOICES = {"$nodes": "gpu-1|gpu-2|gpu-3", "$node": "gpu-3"}
_STEPS = 240
_AWAY = "min_over_time(up[1m]) == 0"


@dataclass(frozen=True)
class Scenario:
    """Why the lab need not have what a panel shows, and series (for `readings`) by which it shows something."""

    why: str
    series: Mapping[str, str]


_LEADER = {'muster_admitter_leader{instance="api-1"}': "1"}
_TAKEN = {'muster_admitter_transitions_total{instance="api-1",from="ready",to="suspect",code="XID_79"}': "0+1"}
_REQUESTS = {'apiserver_request_total{instance="api-1",code="200"}': "0+30"}
_OF_CLASS = 'instance="gpu-3",class="internet"'
_TRAFFIC = {
    **{
        f'muster_node_traffic_bytes_total{{{_OF_CLASS},direction="{direction}",path="pods",family="ipv4"}}': "0+30"
        for direction in ("in", "out")
    },
    f"muster_node_traffic_limit_bits_per_second{{{_OF_CLASS}}}": "1e10",
}
SCENARIOS: Mapping[tuple[str, str], Scenario] = {
    ("muster-fleet", "Taken from work"): Scenario("an hour in which no node fell ill", _TAKEN),
    ("muster-burnin", "Taken from work"): Scenario("an hour in which no node fell ill", _TAKEN),
    ("muster-fleet", "Changes of state"): Scenario("an hour in which no node changed its state", _TAKEN),
    ("muster-fleet", "Held, by reason"): Scenario(
        "no node is held by the admitter",
        {**_LEADER, 'muster_admitter_held{instance="api-1",reason="HELD_BY_PERSON"}': "1"},
    ),
    ("muster-fleet", "Let in"): Scenario(
        "the leading admitter has let no node in yet", {'muster_admitter_joins_total{instance="api-1"}': "0+1"}
    ),
    ("muster-fleet", "Which XID"): Scenario(
        "DCGM's stand-in tells of no XID", {'DCGM_FI_DEV_XID_ERRORS{instance="gpu-1",gpu="0"}': "79"}
    ),
    ("muster-node", "XIDs by class"): Scenario(
        "a node need not have had an XID in this boot",
        {'gpu_burnin_watch_xids_total{instance="gpu-3",gpu="0",class="revoke"}': "1"},
    ),
    **{
        place: Scenario("the lab's inventory has no classes of traffic", _TRAFFIC)
        for place in (
            ("muster-fleet", "Traffic by class"),
            ("muster-node", "Comes in"),
            ("muster-node", "Goes out"),
            ("muster-node", "Of pods"),
        )
    },
    ("muster-control-plane", "Age of the snapshot"): Scenario(
        "the first snapshot is made within an hour",
        {'muster_etcd_backup_last_success_timestamp_seconds{instance="etcd-1",cluster="main"}': "3600"},
    ),
    ("muster-control-plane", "Last snapshot"): Scenario(
        "the first snapshot is tried within an hour",
        {'muster_etcd_backup_failed{instance="etcd-1",cluster="main"}': "1"},
    ),
    ("muster-control-plane", "Size of the snapshot"): Scenario(
        "the first snapshot is made within an hour",
        {'muster_etcd_backup_size_bytes{instance="etcd-1",cluster="main"}': "20512"},
    ),
    ("muster-control-plane", "Errors"): Scenario(
        "no API server has answered with an error yet",
        {**_REQUESTS, 'apiserver_request_total{instance="api-1",code="500"}': "0+1"},
    ),
    ("muster-control-plane", "Turned away"): Scenario(
        "no API server has turned a request away yet",
        {'apiserver_request_total{instance="api-1",code="429"}': "0+1"},
    ),
    ("muster-control-plane", "DNS errors"): Scenario(
        "within five minutes no pod asks for a name",
        {'coredns_dns_responses_total{instance="api-1",rcode="NOERROR"}': "0+1"},
    ),
}


def _expressions() -> dict[tuple[str, str, str], str]:
    """Each query of each panel, and each mark, with the choices made, by page, title and legend."""
    found = {
        (page.uid, panel.title, query.legend): query.expr
        for page in PAGES
        for panel in page.panels
        for query in panel.queries
    } | {(page.uid, mark.name, mark.title): mark.expr for page in PAGES for mark in page.marks}
    for name, value in CHOICES.items():
        found = {key: expression.replace(f'"{name}"', f'"{value}"') for key, expression in found.items()}
    return found


def test_each_panel_shows_something_in_the_lab(fleet: Fleet) -> None:
    # The tests of jobs end with a reboot of gpu-3, of which nothing is read until its exporter is up.
    wait_until("a minute in which each target answers", lambda: not query(fleet, _AWAY), timeout_s=180)
    expressions = _expressions()
    found = answers(fleet, sorted(set(expressions.values())))
    refused = {key: found[one] for key, one in expressions.items() if found[one]["status"] != "success"}
    assert not refused
    empty = {key for key, one in expressions.items() if not found[one]["data"]["result"]}
    unexplained = sorted(key for key in empty if key[:2] not in SCENARIOS)
    assert not unexplained


def test_the_lab_has_hosts_to_choose_from(fleet: Fleet) -> None:
    found = answers(fleet, ['up{job="node"}', 'up{job="node",group="gpu_nodes"}'])
    hosts, nodes = ({one["metric"]["instance"] for one in answer["data"]["result"]} for answer in found.values())
    assert hosts == set(fleet.addresses)
    assert nodes == {"gpu-1", "gpu-2", "gpu-3"}


def test_each_panel_that_the_lab_need_not_fill_shows_its_scenario(tmp_path: Path) -> None:
    by_panel = {key[:2]: expression for key, expression in _expressions().items()}
    assert set(SCENARIOS) <= set(by_panel)
    tests = [
        {
            "interval": "30s",
            "input_series": readings(scenario.series, _STEPS),
            "promql_expr_test": [
                # Without the scenario the panel's expression gives nothing, and so does this.
                {
                    "expr": f"count({by_panel[panel]}) > bool 0",
                    "eval_time": "2h",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
            ],
        }
        for panel, scenario in SCENARIOS.items()
    ]
    file = {
        "rule_files": [str(path) for path in sorted(RULES.glob("*.yml"))],
        "evaluation_interval": "30s",
        "tests": tests,
    }
    (tmp_path / "tests.yml").write_text(json.dumps(file))

    promtool = ensure_image() / "usr" / "bin" / "promtool"
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_takes_each_expression(tmp_path: Path) -> None:
    rules = [{"record": "muster:panel", "expr": one} for one in sorted(set(_expressions().values()))]
    (tmp_path / "panels.yml").write_text(
        json.dumps({"groups": [{"name": f"panel-{n}", "rules": [rule]} for n, rule in enumerate(rules)]})
    )
    promtool = ensure_image() / "usr" / "bin" / "promtool"
    done = subprocess.run(
        [promtool, "check", "rules", "--lint=none", tmp_path / "panels.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
