"""Two monitoring hosts: both read everything and tell both Alertmanagers, one message is sent, nobody else is heard.

Only here: two Alertmanagers agree who tells, one of them dies, and Prometheus itself meets each limit and a full disk.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import yaml

from tests.support.authority import Authority
from tests.support.server_helpers import QuietHandler, listening

from .kube import until
from .monitoring_pair import HOSTS, Host, Pair, pair

pytestmark = pytest.mark.slow
ALWAYS = {"name": "test", "rules": [{"alert": "Always", "expr": "vector(1)", "labels": {"severity": "page"}}]}
# The role's own rules of the monitoring, and one that is there from the first second.
OWN = Path(__file__).resolve().parents[2] / "roles/fleet_monitoring/files/rules/monitoring.yml"
RULES = json.dumps({"groups": [ALWAYS, *yaml.safe_load(OWN.read_text())["groups"]]})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pair(tmp_path_factory.mktemp("pair"), RULES) as running:
        yield running


def _number(host: Host, name: str) -> float:
    """Sum of a metric of the host's Alertmanager; 0 while it does not answer."""
    try:
        lines = host.ask(9093, "/metrics").splitlines()
    except OSError:
        return 0
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def _is(host: Host, name: str, least: float) -> bool:
    return _number(host, name) >= least


def _holds(host: Host, expression: str, count: int) -> bool:
    try:
        return len(host.query(expression)) == count
    except OSError:
        return False


def test_an_alert_of_two_prometheus_is_told_once(both: Pair) -> None:
    for host in both.hosts.values():
        until("the Alertmanagers know each other", partial(_is, host, "alertmanager_cluster_members", 2), 60)
        read = "prometheus_notifications_alertmanagers_discovered == 2"
        until("each Prometheus reads the numbers of both", partial(_holds, host, read, 2), 60)
        until("and of both Alertmanagers", partial(_holds, host, 'up{job="alertmanager"} == 1', 2), 60)
        until("the alert is there", partial(_is, host, "alertmanager_alerts_received_total", 1), 60)
    # Both have come to the step where what a peer has sent is looked up; only then one message is the last.
    for host in both.hosts.values():
        until("it decided", partial(_is, host, "alertmanager_nflog_queries_total", 1), 120)
    until("it is told", lambda: bool(both.told), 60)
    assert both.told == ["Always"]
    for host in both.hosts.values():
        assert _holds(host, "prometheus_notifications_errors_total > 0", 0)


@pytest.mark.parametrize(
    ("who", "method", "path", "status"),
    [
        ("mon-2", "POST", "/alertmanager/api/v2/alerts", 200),
        ("mon-2", "GET", "/alertmanager/api/v2/alerts", 405),
        ("mon-2", "POST", "/alertmanager/api/v2/silences", 405),
        ("mon-2", "GET", "/alertmanager/api/v2/silences", 404),
        ("gpu-1", "POST", "/alertmanager/api/v2/alerts", 403),
        ("gpu-1", "GET", "/prometheus", 403),
    ],
)
def test_the_port_of_metrics_takes_alerts_from_the_peer_alone(
    both: Pair, who: str, method: str, path: str, status: int
) -> None:
    until("the port answers", lambda: _status(both, "mon-2", "GET", "/alertmanager") == 200)
    assert _status(both, who, method, path) == status


def _status(both: Pair, who: str, method: str, path: str) -> int:
    connection = http.client.HTTPSConnection(
        HOSTS["mon-1"][0], 9443, timeout=10, context=both.client(who, signed=both.metrics, to=both.metrics)
    )
    try:
        body = "[]" if method == "POST" else None
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _is_let_in(both: Pair, signed: Authority) -> bool:
    """Whether an Alertmanager talks with who has such a certificate: by TLS 1.2, which ends its greeting with that."""
    address, context = HOSTS["mon-1"][0], both.client("mon-2", signed=signed, to=both.alertmanager)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((address, 9444), 60) as plain:
        try:
            context.wrap_socket(plain, server_hostname=address).close()
        except (ssl.SSLError, ConnectionError):
            return False
    return True


def test_who_may_read_or_show_numbers_cannot_join_the_alertmanagers(both: Pair) -> None:
    until("they know each other", partial(_is, both.hosts["mon-1"], "alertmanager_cluster_members", 2), 60)
    assert not _is_let_in(both, both.metrics)
    assert _is_let_in(both, both.alertmanager)


def test_one_alertmanager_that_is_gone_is_told_by_the_other_side(both: Pair) -> None:
    first, second = both.hosts["mon-1"], both.hosts["mon-2"]
    first.parts["alertmanager"].kill()
    try:
        until("mon-2 sees it", lambda: _holds(second, 'up{job="alertmanager",instance="mon-1"} == 0', 1), 60)
        errors = "prometheus_notifications_errors_total > 0"
        until("alerts that did not arrive are counted for both", lambda: _holds(second, errors, 2), 120)
        assert _number(second, "alertmanager_alerts") >= 1
    finally:
        first.parts["alertmanager"].start()
    until("they know each other again", partial(_is, second, "alertmanager_cluster_members", 2), 120)


@contextmanager
def _exporter(page: str, answer: threading.Event) -> Iterator[None]:
    """A node_exporter of mon-1 that shows this page, once it may."""

    class Page(QuietHandler):
        def do_GET(self) -> None:
            answer.wait()
            self.reply(200, page.encode())

    with listening(Page, HOSTS["mon-1"][1], 9100):
        try:
            yield
        finally:
            answer.set()


@pytest.mark.parametrize(
    ("limit", "page"),
    [
        ("sample_limit", "".join(f'node_load1{{many="{number}"}} 1\n' for number in range(1001))),
        ("body_size_limit", "# a\n" * 1_100_000),
        ("label limits or format", f'node_load1 1\nnode_load1{{long="{"x" * 1025}"}} 1\n'),
        ("label limits or format", "node_load1 1\nno number\n"),
    ],
)
def test_a_target_that_is_over_a_limit_is_named_with_it(both: Pair, limit: str, page: str) -> None:
    watcher = both.hosts["mon-2"]
    alert = 'ALERTS{alertname="MusterTargetOverLimit",alertstate="firing",job="node",instance="mon-1"'
    with _exporter("node_load1 1\n", _answering()):
        until("it is read", partial(_holds, watcher, 'up{job="node",instance="mon-1"} == 1', 1), 60)
        until("there is no alert", partial(_holds, watcher, alert + "}", 0), 60)
    with _exporter(page, _answering()):
        until("the alert says which limit", partial(_holds, watcher, f'{alert},limit="{limit}"}}', 1), 60)
        assert _holds(watcher, f'{alert},limit!="{limit}"}}', 0)


def _answering() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


def test_an_exporter_that_lies_hangs_or_shows_too_much_harms_its_own_host_alone(both: Pair) -> None:
    watcher = both.hosts["mon-2"]
    node = 'up{job="node",instance="mon-1"}'
    # Another host's labels stay what they are: a claim of this one.
    with _exporter('node_load1{instance="gpu-9",job="etcd",rack="r9"} 7\n', _answering()):
        claimed = 'node_load1{instance="mon-1",job="node",exported_instance="gpu-9",exported_job="etcd"} == 7'
        until("what it claims is there under its own name", partial(_holds, watcher, claimed, 1), 60)
        assert _holds(watcher, '{instance="gpu-9"}', 0)
    many = "".join(f'node_load1{{many="{number}"}} 1\n' for number in range(1001))
    for what, page, answer in (("shows too much", many, _answering()), ("hangs", "node_load1 1\n", threading.Event())):
        with _exporter("node_load1 1\n", _answering()):
            until("it is read again", partial(_holds, watcher, f"{node} == 1", 1), 60)
        with _exporter(page, answer):
            until(f"an exporter that {what} is not read", partial(_holds, watcher, f"{node} == 0", 1), 60)
            assert _holds(watcher, 'node_load1{many=~".+"}', 0)
            until("the others are read", partial(_holds, watcher, 'up{job="prometheus"} == 1', 2), 60)


@contextmanager
def _full(host: Host) -> Iterator[None]:
    """A disk of the host's Prometheus without a free byte."""
    running = host.parts["prometheus"].running
    assert running is not None
    # Its file system is mounted for this process alone.
    data = Path(f"/proc/{running.pid}/root/mnt/data")
    # With no room for the first file of chunks, after 120 samples, Prometheus ends ("panic: preallocate").
    until("its first file of chunks to be there", lambda: any((data / "chunks_head").iterdir()), 180)
    filler = data / "filler"
    try:
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filler.unlink()


def test_a_prometheus_whose_disk_is_full_is_told_by_the_other(both: Pair) -> None:
    full, watcher = both.hosts["mon-1"], both.hosts["mon-2"]
    alert = 'ALERTS{alertname="MusterMonitoringStorage",alertstate="firing",instance="mon-1"}'
    failed, age = "prometheus_tsdb_wal_writes_failed_total", 'time() - timestamp(up{job="prometheus"})'
    until("the watcher reads its numbers", partial(_holds, watcher, f'{failed}{{instance="mon-1"}} == 0', 1), 60)
    assert _holds(watcher, alert, 0)
    with _full(full):
        until("the watcher raises the alert", partial(_holds, watcher, alert, 1), 60)
        until("it is told", lambda: "MusterMonitoringStorage" in both.told, 60)
        # Nobody but the full one, which keeps nothing and so sees nothing of itself.
        assert _holds(watcher, 'ALERTS{alertname="MusterMonitoringStorage",instance!="mon-1"}', 0)
        assert _holds(full, alert, 0)
        until("what it keeps is old", partial(_holds, full, f"{age} > 5", 2), 60)
    until("it keeps again what it reads", partial(_holds, full, f"{age} < 5", 2), 60)
