"""What explains an alert is told before it: over the role's own rules, and what it writes for Alertmanager."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

ROLE = Path(__file__).resolve().parents[3] / "roles/fleet_monitoring"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
INTERVAL_S = DEFAULTS["fleet_monitoring_interval_s"]
# Their expressions read what the host itself shows, which is gone when it does not answer.
END_WITH_THE_HOST = {"MusterAgentSilent", "MusterAgentBlind", "MusterGpusMissing"}


def _alerts() -> dict[str, dict[str, Any]]:
    groups = [
        group for path in (ROLE / "files/rules").glob("*.yml") for group in yaml.safe_load(path.read_text())["groups"]
    ]
    return {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}


def _alertmanager() -> dict[str, Any]:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    environment.filters["to_json"] = json.dumps
    environment.filters["combine"] = lambda one, other: {**one, **other}
    text = (ROLE / "templates/alertmanager.yml.j2").read_text()
    made: dict[str, Any] = yaml.safe_load(environment.from_string(text).render(DEFAULTS))
    return made


def _pairs(alertmanager: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each alert that explains, with each that it explains."""
    for rule in alertmanager["inhibit_rules"]:
        (source,) = re.findall(r'alertname="(\w+)"', " ".join(rule["source_matchers"]))
        (matcher,) = (one for one in rule["target_matchers"] if one.startswith("alertname"))
        targets = re.compile(matcher.partition("=")[2].lstrip("~").strip('"'))
        yield from ((source, name) for name in ALERTS if targets.fullmatch(name))


def _seconds(text: str) -> int:
    return sum(
        int(count) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit] for count, unit in re.findall(r"(\d+)(\w)", text)
    )


ALERTS, ALERTMANAGER = _alerts(), _alertmanager()
PAIRS = sorted(set(_pairs(ALERTMANAGER)))


def test_the_pairs_are_those_of_the_rules() -> None:
    assert {source for source, _ in PAIRS} == {"MusterPlaceDown", "MusterHostDown", "MusterApiServerDown"}
    assert {("MusterPlaceDown", "MusterHostDown"), ("MusterHostDown", "MusterEtcdMemberDown")} < set(PAIRS)
    assert {target for _, target in PAIRS} >= END_WITH_THE_HOST


@pytest.mark.parametrize(("source", "target"), [pair for pair in PAIRS if pair[1] not in END_WITH_THE_HOST])
def test_what_explains_fires_before_what_it_explains_is_told(source: str, target: str) -> None:
    """It may be read an interval later, and its rule looked at another one later."""
    waits_s = _seconds(ALERTS[target].get("for", "0s")) + _seconds(ALERTMANAGER["route"]["group_wait"])
    assert _seconds(ALERTS[source].get("for", "0s")) + 2 * INTERVAL_S <= waits_s


@pytest.mark.parametrize("name", sorted(END_WITH_THE_HOST))
def test_what_ends_with_the_host_does_not_read_whether_it_answers(name: str) -> None:
    assert not re.search(r"\bup\b|absent", ALERTS[name]["expr"])


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_no_page_is_held_back_by_what_waits_until_morning(source: str, target: str) -> None:
    if "page" in ALERTS[target]["labels"]["severity"]:
        assert "page" in ALERTS[source]["labels"]["severity"]
