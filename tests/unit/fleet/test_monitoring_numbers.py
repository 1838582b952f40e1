"""The numbers of a fleet: what is read of Prometheus and Alertmanager, and what is said where they cannot be had."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.fleet.model import Target
from gpu_burnin.fleet.monitoring import numbers
from gpu_burnin.fleet.monitoring.line import Monitoring
from gpu_burnin.fleet.monitoring.numbers import Numbers
from gpu_burnin.system import known_hosts as kh
from tests.support.fake_prometheus import FakePrometheus, as_alertmanager, firing, series
from tests.support.ssh_server import StartServer


@pytest.fixture
def fake() -> Iterator[FakePrometheus]:
    server = FakePrometheus()
    yield server
    server.close()


_EMPTY = {"status": "success", "data": {"resultType": "matrix", "result": []}}


def where(fake: FakePrometheus) -> Monitoring:
    return Monitoring(fake.address, fake.address)


def read(fake: FakePrometheus, **changes: float) -> Numbers:
    return numbers.read([replace(where(fake), **changes)], fake.at)  # type: ignore[arg-type]


def test_all_is_read_in_few_questions(fake: FakePrometheus) -> None:
    found = read(fake)
    assert found.problems == () and found.alerts == ()
    assert {one.labels["state"]: one.value for one in found.of(numbers.STATES)} == {"ready": 4, "quarantined": 1}
    assert found.hosts is not None and found.hosts["gpu-4"].place == {"rack": "r1"} and found.hosts["gpu-4"].up
    assert [(trend.period, len(trend.states["ready"])) for trend in found.trends] == [("24 h", 289), ("30 d", 361)]
    assert len(fake.asked) == 6
    # Series of each host are asked for in one question alone: whether it answers, and where it stands.
    asked = [query["query"][0] for _, query in fake.asked if "query" in query]
    assert sum("muster:" not in query for query in asked) == 1
    json.dumps(found.to_json(), allow_nan=False)


def test_a_young_fleet_has_the_trend_of_a_day_and_nobody_says_that_there_are_no_states(
    fake: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded for less than the step of the longer trend, it has no value there."""
    answer = fake.answer
    monkeypatch.setattr(
        fake, "answer", lambda path, query: _EMPTY if query.get("step") == ["7200"] else answer(path, query)
    )
    found = read(fake)
    assert found.problems == () and [trend.period for trend in found.trends] == ["24 h"]
    monkeypatch.setattr(fake, "answer", lambda path, query: _EMPTY if "step" in query else answer(path, query))
    assert "has recorded no states of nodes in the last 30 d" in " ".join(read(fake).problems)


def test_an_alert_is_told_once_and_who_hears_nothing_of_it_is_told(fake: FakePrometheus) -> None:
    page = firing("MusterApiErrors", "page", "errors", instance="api-2")
    quiet = firing("MusterHostDown", "ticket", "gpu-1 is silent", instance="gpu-1")
    muted = firing("MusterDiskFull", "ticket", "/ is full", instance="gpu-2")
    other = firing("SiteAlert", "ticket", "of the site")
    fake.alerts = [muted, quiet, page, {**page, "state": "pending", "labels": {"alertname": "MusterWaits"}}]
    fake.told = [
        as_alertmanager(page),
        as_alertmanager(quiet, inhibited=("f",)),
        as_alertmanager(muted, silenced=("s",)),
        as_alertmanager(other),
    ]
    found = read(fake).alerts or ()
    assert [(one.name, one.quiet) for one in found] == [
        ("MusterApiErrors", ""), ("SiteAlert", ""), ("MusterDiskFull", "silenced"), ("MusterHostDown", "inhibited"),
    ]  # fmt: skip
    assert found[0].since == "2026-11-22T11:00:00Z" and found[0].runbook.endswith("#musterapierrors")


def test_without_alertmanager_alerts_are_prometheus_own_and_that_is_said(fake: FakePrometheus) -> None:
    fake.alerts = [firing("MusterApiErrors", "page", "errors", instance="api-2")]
    fake.spoil = lambda path, body: (500, b"down") if path == "/api/v2/alerts" else (200, body)
    found = read(fake)
    assert [one.name for one in found.active] == ["MusterApiErrors"]
    assert "nobody may be told of them" in found.problems[0]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (503, b"Service Unavailable", "refuses (HTTP 503): Service Unavailable"),
        (200, b"<html>login</html>", "what is not JSON"),
        (200, b"[" * 100_000, "what is not JSON"),
        (200, b"[]", "refuses query"),
        (200, b'{"status":"error","error":"query timed out"}', "query timed out"),
        (200, b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}', "not 'matrix'"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "recorded nothing for 5 minutes"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[]}]}}', "Index"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[{"values":[[1,"x"]]}]}}', "KeyError"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_missing_with_its_reason(
    status: int, body: bytes, says: str, fake: FakePrometheus
) -> None:
    fake.spoil = lambda path, _: (status, body)
    found = read(fake)
    assert found.values is None and found.alerts is None and found.hosts is None and found.trends == ()
    [problem] = found.problems
    assert says in problem
    assert len(fake.asked) == 1, "who does not answer one question is not asked the others"


@pytest.mark.parametrize(("ago_s", "says"), [(200, "stale"), (-120, "of the future")])
def test_values_that_are_not_of_now_are_not_shown(ago_s: float, says: str, fake: FakePrometheus) -> None:
    now = fake.at
    fake.at = now - timedelta(seconds=ago_s)
    found = numbers.read([where(fake)], now)
    assert found.values is None and says in found.problems[0]


def test_a_part_that_is_missing_is_named_and_the_rest_is_there(fake: FakePrometheus) -> None:
    fake.recorded = [one for one in fake.recorded if one[0]["__name__"] not in (numbers.FSYNC, numbers.OVERDUE)]
    fake.recorded += [series(numbers.OVERDUE, "NaN")]
    fake.spoil = lambda path, body: (200, b"{}") if path.endswith("query_range") else (200, body)
    found = read(fake)
    assert found.of(numbers.OVERDUE) == () and found.of(numbers.QUOTA)
    assert f"no value of {numbers.FSYNC}, {numbers.OVERDUE}" in found.problems[0]
    assert found.trends == () and len(found.problems) == 3 and found.hosts


def test_gaps_are_gaps(fake: FakePrometheus) -> None:
    whole = fake.answer

    def cut(path: str, query: dict[str, list[str]]) -> object:
        answer = whole(path, query)
        if path.endswith("query_range"):
            for row in answer["data"]["result"]:
                row["values"] = row["values"][:10] + row["values"][12:]
        return answer

    fake.answer = cut  # type: ignore[method-assign]
    ready = read(fake).trends[0].states["ready"]
    assert ready[9:13] == [4.0, None, None, 4.0]


def test_one_that_hangs_or_drips_is_left_in_its_time(fake: FakePrometheus) -> None:
    fake.drip_s = 0.05
    found = read(fake, timeout_s=0.3)
    assert found.values is None and "does not answer (not within 0.3 s)" in found.problems[0]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        found = numbers.read([Monitoring(address, address, timeout_s=0.2)], fake.at)
    assert "does not answer (not within 0.2 s)" in found.problems[0]
    found = numbers.read([Monitoring(address, address)], fake.at)
    assert "Connection refused" in found.problems[0]


def test_an_answer_that_is_cut_off_is_none(fake: FakePrometheus) -> None:
    fake.cut = True
    found = read(fake)
    assert found.values is None and "before the end of its answer" in found.problems[0]


def test_of_two_the_one_that_answers_counts_and_the_other_is_told(fake: FakePrometheus) -> None:
    found = numbers.read([Monitoring("http://127.0.0.1:1", "http://127.0.0.1:1"), where(fake)], fake.at)
    assert found.source == fake.address and found.values
    assert len(found.problems) == 1 and "127.0.0.1:1 does not answer" in found.problems[0]


@pytest.mark.parametrize("listens", [True, False])
def test_through_ssh_the_addresses_are_those_of_the_host(
    listens: bool,
    fake: FakePrometheus,
    identity: Path,
    start_server: StartServer,
    tmp_path: Path,
) -> None:
    server = start_server()
    target = Target("mon-1", "127.0.0.1", server.port, "root", identity)
    known = tmp_path / "known_hosts"
    address = fake.address if listens else "http://127.0.0.1:1"
    place = Monitoring(address, address, target, known)
    refused = numbers.read([place], fake.at)
    assert refused.values is None and "is neither in" in refused.problems[0], "a host key that nobody pinned"
    key = kh.HostKey(server.host_key.get_name(), server.host_key.get_base64())
    kh.record(kh.load(known), [("127.0.0.1", server.port, key)])
    found = numbers.read([place], datetime.now(UTC))
    assert found.source == "mon-1"
    if listens:
        assert found.problems == () and found.of(numbers.STATES)
    else:
        assert "mon-1: http://127.0.0.1:1 does not answer" in found.problems[0]
