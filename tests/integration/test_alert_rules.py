"""Each alert fires by its fault, in the words that people read, and is quiet without it (the real promtool)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.hardware.xid import Runtime, load_xids
from tests.lab.image import ensure_image

from .alert_cases.case import Case
from .alert_faults import ELSEWHERE, FAULTS

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "roles" / "fleet_monitoring" / "files" / "rules"
RUNBOOK = REPOSITORY / "docs" / "operations" / "alerts.md"


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Debian's, from the root file system of the lab's hosts."""
    return ensure_image() / "usr" / "bin" / "promtool"


def cases() -> Iterator[Case]:
    """Those of each file of rules with alerts, from the module of its name."""
    for path in RULES.glob("*.yml"):
        if "alert:" not in path.read_text():
            continue
        yield from import_module(f"{__package__}.alert_cases.{path.stem.replace('-', '_')}").CASES


def _alerts() -> dict[str, dict[str, Any]]:
    groups = [group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def _test(case: Case, series: Mapping[str, str], expected: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return {
        "name": f"{case.alert}: {name}",
        "interval": "30s",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [{"alertname": case.alert, "eval_time": case.after, "exp_alerts": expected}],
    }


def test_each_alert_fires_by_its_fault_and_not_without_it(promtool: Path, tmp_path: Path) -> None:
    alerts = _alerts()
    tests = []
    for case in cases():
        rule = alerts[case.alert]
        expected = {
            "exp_labels": {**rule["labels"], **case.labels},
            "exp_annotations": {"summary": case.says, "runbook": rule["annotations"]["runbook"]},
        }
        tests += [_test(case, case.wrong, [expected], "wrong"), _test(case, case.fine, [], "fine")]
    (tmp_path / "tests.yml").write_text(
        json.dumps({"rule_files": [str(path) for path in sorted(RULES.glob("*.yml"))], "tests": tests})
    )

    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yml"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_no_alert_is_without_a_test_and_a_runbook() -> None:
    alerts = _alerts()
    assert {case.alert for case in cases()} == set(alerts)
    sections = {
        line.removeprefix("## ").strip() for line in RUNBOOK.read_text().splitlines() if line.startswith("## Muster")
    }
    assert sections == set(alerts)
    for name, rule in alerts.items():
        # It may depend on the host.
        assert set(re.sub(r"\{\{.*?\}\}", " ", rule["labels"]["severity"]).split()) <= {"page", "ticket"}
        assert rule["annotations"]["runbook"] == f"docs/operations/alerts.md#{name.lower()}"


def test_the_lab_raises_alerts_that_there_are() -> None:
    assert {fault.alert for fault in FAULTS} | ELSEWHERE <= set(_alerts())


def test_the_xids_that_are_alerts_are_those_that_take_a_node_from_work() -> None:
    revoking = {code for code, xid in load_xids().xids.items() if xid.runtime is Runtime.REVOKE}
    expression = _alerts()["MusterXidFatal"]["expr"]
    of_dcgm = " or ".join(f"DCGM_FI_DEV_XID_ERRORS == {code}" for code in sorted(revoking))
    assert expression.startswith(f'gpu_burnin_watch_xids_total{{class="revoke"}} > 0 or (({of_dcgm}) unless ')
