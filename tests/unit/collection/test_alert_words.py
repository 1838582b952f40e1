"""What alerts say, also while they are pending, so that none may claim the time for which it waits; what they read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[3] / "roles/fleet_monitoring/files/rules"
GROUPS = [
    group
    for path in sorted(RULES.glob("*.yml"))
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}
WORDS = {"m": r"(a|one|{n}) minutes?", "h": r"(an|one|{n}) hours?", "d": r"(a|one|{n}) days?"}


@pytest.mark.parametrize("name", [name for name, rule in ALERTS.items() if "for" in rule])
def test_a_pending_alert_does_not_say_that_it_has_lasted(name: str) -> None:
    rule = ALERTS[name]
    number, unit = re.fullmatch(r"(\d+)([smhd])", rule["for"]).groups()  # type: ignore[union-attr]
    if unit not in WORDS:
        return
    span = WORDS[unit].replace("{n}", number)
    # A time that the expression itself asks for has passed by then.
    summary = rule["annotations"]["summary"]
    assert not re.search(rf"\b(been|was|were)\b[^.:]*\b{span}\b", summary), summary


def test_a_rule_reads_records_of_its_own_group_that_stand_before_it() -> None:
    """Prometheus evaluates a group's rules in their order, and groups at times of their own: a record of another group
    may be as old as an evaluation, so that an alert would begin and end by so much late."""
    late = []
    for group in GROUPS:
        recorded: set[str] = set()
        for rule in group["rules"]:
            own = rule.get("record", "")
            late += [
                (own or rule["alert"], name)
                for name in re.findall(r"\bmuster:[\w:]+", rule["expr"])
                if name not in recorded | {own}
            ]
            recorded.add(own)
    assert late == []
