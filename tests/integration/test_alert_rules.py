"""Each alert fires by its fault, in the words that people read, and is quiet without it (the real promtool).

Only here: every rule's expression, labels and words, for each fault that it knows, at the minute at which it must fire.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.fleet.attach import monitoring
from gpu_burnin.hardware.xid import Runtime, load_xids
from tests.lab.image import ensure_image

from .alert_cases import RULES, cases, groups
from .alert_cases.case import Case
from .alert_faults import DUE, ELSEWHERE, FAULTS, LEFT
from .alert_replay import alerts_of

REPOSITORY = Path(__file__).resolve().parents[2]
RUNBOOK = REPOSITORY / "docs" / "operations" / "alerts.md"


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Debian's, from the root file system of the lab's hosts."""
    return ensure_image() / "usr" / "bin" / "promtool"


def _alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}


def _only(alert: str, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rule of an alert and the records that it reads: promtool evaluates all that it is given at every step."""
    words = alerts_of(groups)[alert].words
    kept = [
        {
            **group,
            "rules": [rule for rule in group["rules"] if rule.get("alert") == alert or rule.get("record") in words],
        }
        for group in groups
    ]
    return [group for group in kept if group["rules"]]


def _test(case: Case, series: Mapping[str, str], expected: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {
        "name": f"{case.alert}: {name}",
        "interval": "30s",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [{"alertname": case.alert, "eval_time": case.after, "exp_alerts": expected}],
    }


def test_each_alert_fires_by_its_fault_and_not_without_it(promtool: Path, tmp_path: Path) -> None:
    alerts, every = _alerts(), groups()
    tests: dict[str, list[dict[str, Any]]] = {}
    for case in cases():
        rule = alerts[case.alert]
        expected = {
            "exp_labels": {**rule["labels"], **case.labels},
            "exp_annotations": {"summary": case.says, "runbook": rule["annotations"]["runbook"]},
        }
        tests.setdefault(case.alert, []).extend(
            [_test(case, case.wrong, [expected], "wrong"), _test(case, case.fine, [], "fine")]
        )
    files = []
    for alert, its in tests.items():
        rules, file = tmp_path / f"{alert}.yml", tmp_path / f"{alert}-tests.yml"
        rules.write_text(json.dumps({"groups": _only(alert, every)}))
        file.write_text(json.dumps({"rule_files": [str(rules)], "tests": its}))
        files.append(file)

    done = subprocess.run([promtool, "test", "rules", *files], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


CHECKED, AUTHORITY = "muster_gate_checked_timestamp_seconds", "muster_gate_authority_ends_timestamp_seconds"
# Of an attached cluster, where the probe is a pod: the alert, series that raise it, series that do not, when.
ATTACHED = (
    # Open for two minutes; open for one, as when the cluster went from observing to enforcing.
    ("MusterGateOpen", {"muster_gate_refused": "1 0x10"}, {"muster_gate_refused": "1x3 0x10"}, "3m"),
    (
        "MusterGatePolicyChanged",
        {"muster_gate_objects_changed": "0 2x20"},
        {"muster_gate_objects_changed": "0 2x4 0x20"},
        "4m",
    ),
    # It has answered and does so no more; it has never come.
    ("MusterGateNotChecked", {CHECKED: "0x60"}, {CHECKED: "0+30x60"}, "11m"),
    # Away for more than five minutes; for less, as while its first pods start.
    (
        "MusterGateWebhookAway",
        {"muster_gate_webhook_taints": "1 0x20"},
        {"muster_gate_webhook_taints": "1 0x4 1x20"},
        "7m",
    ),
    # Never answered, as by a policy of others; answered after ten minutes.
    (
        "MusterGateWebhookNotChecked",
        {"muster_gate_webhook_answered": "0x30"},
        {"muster_gate_webhook_answered": "0x10 1x20"},
        "16m",
    ),
    # An hour's less than half a year is left, and a day more than that.
    ("MusterGateAuthorityEnds", {AUTHORITY: "15768000x300"}, {AUTHORITY: "15854400x300"}, "1h1m"),
    ("MusterGateNotChecked", {"up": "1x60"}, {CHECKED: "0+30x60"}, "11m"),
)


# What the alert's value is shown as, where it is not 2.
SHOWN = {"MusterGateAuthorityEnds": "182d 10h 59m 0s"}


def test_the_alerts_of_an_attached_cluster_fire_by_their_faults(promtool: Path, tmp_path: Path) -> None:
    tests = []
    for alert, wrong, fine, after in ATTACHED:
        [rule] = [one for group in monitoring.rules()["groups"] for one in group["rules"] if one["alert"] == alert]
        annotations = {
            key: re.sub(r"\{\{.*?\}\}", SHOWN.get(alert, "2"), str(text)) for key, text in rule["annotations"].items()
        }
        expected = {"exp_labels": rule["labels"], "exp_annotations": annotations}
        case = Case(alert, wrong, fine, after, annotations["summary"])
        tests += [_test(case, wrong, [expected], "wrong"), _test(case, fine, [], "fine")]
    file = tmp_path / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(monitoring.ALERTS)], "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_every_file_of_rules(promtool: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", *sorted(RULES.glob("*.yml"))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_alert_is_tested_with_all_that_it_reads() -> None:
    every = groups()
    for alert in _alerts():
        only = _only(alert, every)
        assert [rule["alert"] for group in only for rule in group["rules"] if "alert" in rule] == [alert]
        assert alerts_of(only)[alert] == alerts_of(every)[alert]


def test_no_alert_is_without_a_test_and_a_runbook() -> None:
    alerts = _alerts()
    assert {case.alert for case in cases()} == set(alerts)
    attached = {one["alert"] for group in monitoring.rules()["groups"] for one in group["rules"]}
    assert {alert for alert, *_ in ATTACHED} == attached
    sections = {
        line.removeprefix("## ").strip() for line in RUNBOOK.read_text().splitlines() if line.startswith("## Muster")
    }
    assert sections == set(alerts) | attached
    for name, rule in alerts.items():
        # It may depend on the host.
        assert set(re.sub(r"\{\{.*?\}\}", " ", rule["labels"]["severity"]).split()) <= {"page", "ticket"}
        assert rule["annotations"]["runbook"] == f"docs/operations/alerts.md#{name.lower()}"


def test_the_lab_raises_alerts_that_there_are() -> None:
    assert {fault.alert for fault in FAULTS} | ELSEWHERE | set(LEFT) | {name for name, _ in DUE} <= set(_alerts())


def test_the_xids_that_are_alerts_are_those_that_take_a_node_from_work() -> None:
    revoking = {code for code, xid in load_xids().xids.items() if xid.runtime is Runtime.REVOKE}
    [expression] = [
        rule["expr"] for group in groups() for rule in group["rules"] if rule.get("record") == "muster:xid_fatal"
    ]
    of_dcgm = " or ".join(f"DCGM_FI_DEV_XID_ERRORS == {code}" for code in sorted(revoking))
    assert expression.startswith(f'gpu_burnin_watch_xids_total{{class="revoke"}} > 0 or (({of_dcgm}) unless ')
