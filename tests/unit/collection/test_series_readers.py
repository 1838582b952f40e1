"""Prometheus keeps what somebody reads, and nothing else: a rule, a panel, `muster status`, who follows a runbook."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.series_budget import expanded

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "roles/fleet_monitoring/files"
KEPT: Mapping[str, Sequence[Mapping[str, Any]]] = yaml.safe_load((FILES / "series.yaml").read_text())
# Families of which each member has its reason elsewhere.
WHOLE = {"muster_admitter_.*", "muster_scaler_.*", "DCGM_FI_.*"}
# How exporters begin the names of their series; those that rules record have a colon.
SERIES = re.compile(
    r"(?<![\w:])(?:node|gpu_burnin|muster|etcd|apiserver|prometheus|alertmanager|haproxy|coredns|process|DCGM_FI)_\w+"
)
# Values of labels, also in JSON.
_STRING = re.compile(r'\\"[^"]*\\"|"[^"]*"|`[^`]*`')


def _texts(folder: Path, pattern: str) -> str:
    found = "\n".join(path.read_text() for path in sorted(folder.rglob(pattern)))
    assert found
    return found


RULES = [
    rule
    for path in sorted((FILES / "rules").glob("*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
DASHBOARDS = _texts(FILES / "dashboards", "*.json")
READERS = "\n".join(
    [
        *(rule["expr"] for rule in RULES),
        DASHBOARDS,
        _texts(ROOT / "gpu_burnin/fleet", "*.py"),
        _texts(ROOT / "docs/operations", "*.md"),
    ]
)


def _unknown_alerts(kept: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[str]:
    whys = " ".join(entry["why"] for entries in kept.values() for entry in entries)
    return set(re.findall(r"\bMuster[A-Z]\w*", whys)) - ALERTS


def _unread(kept: Mapping[str, Sequence[Mapping[str, Any]]]) -> set[str]:
    names = {
        name
        for entries in kept.values()
        for entry in entries
        if entry["names"] not in WHOLE
        for name in expanded(entry["names"])
    }
    return names - set(re.findall(r"\w+", READERS))


def _read() -> Iterator[str]:
    """Each series that a rule or a panel asks for."""
    expressions = [rule["expr"] for rule in RULES] + re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', DASHBOARDS)
    for expression in expressions:
        yield from SERIES.findall(_STRING.sub("", expression))


def test_each_alert_that_is_a_reason_is_there() -> None:
    assert _unknown_alerts(KEPT) == set()


def test_each_kept_name_has_a_reader() -> None:
    assert _unread(KEPT) == set()


def test_a_name_without_a_reader_and_a_reason_that_is_no_alert_are_found() -> None:
    odd = {"dns": [{"names": "coredns_(dns_responses_total|panics_total)", "why": "MusterDnsErrors, MusterHostDown"}]}
    assert (_unread(odd), _unknown_alerts(odd)) == ({"coredns_panics_total"}, {"MusterDnsErrors"})


@pytest.mark.parametrize("name", sorted(set(_read())))
def test_what_is_read_is_kept(name: str) -> None:
    """As Prometheus does: the expressions of a job as one, which the whole name has to match."""
    assert any(re.fullmatch("|".join(entry["names"] for entry in entries), name) for entries in KEPT.values())
