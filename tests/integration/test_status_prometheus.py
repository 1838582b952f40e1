"""What the page of a fleet asks for is recorded by the fleet's rules, and read of a real Prometheus.

Only here: the rules that record, and the reader of what they record, meet in a real Prometheus.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.monitoring import control_plane, numbers
from gpu_burnin.fleet.monitoring.line import Monitoring
from gpu_burnin.fleet.monitoring.numbers import Numbers
from tests.lab.image import ensure_image
from tests.support.server_helpers import QuietHandler, listening

from .kube import free_ports, until
from .kube_files import REPOSITORY

RULES = REPOSITORY / "roles" / "fleet_monitoring" / "files" / "rules"
# What exporters of every kind say at once; with counters that grow there are rates.
PAGE = """muster_admitter_leader 1
muster_admitter_nodes{{state="ready"}} 7
muster_admitter_nodes{{state="quarantined"}} 1
muster_admitter_overdue_tests 2
etcd_server_has_leader 1
etcd_server_leader_changes_seen_total {count}
etcd_mvcc_db_total_size_in_bytes 1e8
etcd_server_quota_backend_bytes 8e9
etcd_disk_wal_fsync_duration_seconds_bucket{{le="0.002"}} {count}
etcd_disk_wal_fsync_duration_seconds_bucket{{le="+Inf"}} {count}
apiserver_request_total{{code="200",verb="GET"}} {count}
apiserver_request_total{{code="500",verb="GET"}} {count}
apiserver_request_sli_duration_seconds_bucket{{verb="GET",le="0.1"}} {count}
apiserver_request_sli_duration_seconds_bucket{{verb="GET",le="+Inf"}} {count}
"""


@contextmanager
def exporting(page: Callable[[str], str]) -> Iterator[int]:
    """The port of one that answers each path with its page."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply(200, page(self.path).encode(), Content_Type="text/plain; version=0.0.4")

    with listening(Handler) as url:
        yield int(url.rpartition(":")[2])


def job(name: str, *targets: tuple[int, dict[str, str]], **more: str) -> dict[str, Any]:
    """A job of Prometheus: port and labels of each target."""
    static = [{"targets": [f"127.0.0.1:{at}"], "labels": labels} for at, labels in targets]
    return {"job_name": name, "static_configs": static, **more}


@contextmanager
def prometheus_with(jobs: Sequence[Mapping[str, Any]], port: int, directory: Path) -> Iterator[str]:
    """The address of Debian's Prometheus with these jobs and the fleet's rules."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{RULES}/*.yml"],
        "scrape_configs": [*jobs],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    command: list[str | Path] = [
        ensure_image() / "usr" / "bin" / "prometheus",
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        yield f"http://127.0.0.1:{port}"
        process.kill()


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """Its address; counters grow with each scrape, and a rack of two hosts does not answer."""
    scrapes = iter(range(1, 1_000_000))
    port, dead = free_ports(2)
    up, down = {"rack": "r1"}, {"rack": "r2"}
    with exporting(lambda _: PAGE.format(count=100 * next(scrapes))) as alive:
        nodes = job("node", *((alive, {"instance": f"gpu-{n}", **up}) for n in (1, 2)),
                    *((dead, {"instance": f"gpu-{n}", **down}) for n in (3, 4)))  # fmt: skip
        with prometheus_with([nodes], port, tmp_path) as address:
            yield address


@pytest.mark.slow
def test_a_real_prometheus_with_the_rules_of_the_fleet_has_all_that_the_page_asks(prometheus: str) -> None:
    found: list[Numbers] = []

    def whole() -> bool:
        found.append(numbers.read([Monitoring(prometheus, prometheus)], datetime.now(UTC)))
        now = found[-1]
        # On a busy machine rules may have been evaluated when one host of four was read.
        nodes = sum(one.value for one in now.of(numbers.STATES))
        all_read = nodes == 2 * (7 + 1) and len(now.hosts or {}) == 4 and len(now.of(numbers.PLACE_DOWN)) == 2
        return set(now.values or {}) == set(numbers.RECORDED) and bool(now.alerts) and all_read

    until("all recorded series", whole, timeout_s=60)
    last = found[-1]
    # Two hosts answer, each as an admitter that leads.
    assert {one.labels["state"]: one.value for one in last.of(numbers.STATES)} == {"ready": 14, "quarantined": 2}
    down = {one.labels["name"]: one.value for one in last.of(numbers.PLACE_DOWN)}
    assert down == {"r1": 0, "r2": 1}
    assert last.hosts is not None and {name: host.up for name, host in last.hosts.items()} == {
        "gpu-1": True, "gpu-2": True, "gpu-3": False, "gpu-4": False,
    }  # fmt: skip
    assert last.hosts["gpu-3"].place == {"rack": "r2"}
    # It is no Alertmanager, and too young for trends: no more is missing.
    missing = [problem for problem in last.problems if "no states of nodes in the last" not in problem]
    assert len(missing) == 1 and "/api/v2/alerts" in missing[0]
    assert "MusterEtcdLeaderChanges" in {one.name for one in last.active}
    assert all(one.summary and one.since.endswith("Z") and one.runbook for one in last.active)
    json.dumps(last.to_json(), allow_nan=False)


DAY_S = 86400
ETCD = """etcd_server_has_leader 1
etcd_server_is_leader 1
etcd_mvcc_db_total_size_in_bytes 1e8
etcd_server_quota_backend_bytes 8e9
"""
HOST = """muster_etcd_backup_last_success_timestamp_seconds{{cluster="main"}} {late}
muster_etcd_backup_period_seconds{{cluster="main"}} 3600
muster_certificate_expires_timestamp_seconds{{file="/good.crt"}} {good}
muster_certificate_issued_timestamp_seconds{{file="/good.crt"}} {begun}
muster_certificate_unreadable{{file="/good.crt"}} 0
muster_certificate_expires_timestamp_seconds{{file="/due.crt"}} {due}
muster_certificate_issued_timestamp_seconds{{file="/due.crt"}} {begun}
muster_certificate_unreadable{{file="/gone.crt",problem="missing"}} 1
"""


@pytest.mark.slow
def test_the_control_plane_is_read_of_a_real_prometheus(tmp_path: Path) -> None:
    now_s = datetime.now(UTC).timestamp()
    times = {"late": -3 * 3600, "good": 300 * DAY_S, "due": 4 * DAY_S, "begun": -65 * DAY_S}
    host = HOST.format(**{name: now_s + off_s for name, off_s in times.items()})
    port, dead = free_ports(2)
    found: list[control_plane.ControlPlane] = []
    with exporting({"/etcd": ETCD, "/host": host, "/api": "x 1\n"}.__getitem__) as alive:
        jobs = [
            job("etcd", (alive, {"instance": "etcd-1"}), metrics_path="/etcd"),
            job("node", *((alive, {"instance": name}) for name in ("etcd-1", "gpu-1")), metrics_path="/host"),
            job("apiserver", (alive, {"instance": "api-1"}), metrics_path="/api"),
            job("balancer", (dead, {"instance": "lb-1"})),
        ]
        with prometheus_with(jobs, port, tmp_path) as address:

            def whole() -> bool:
                found.append(control_plane.read([Monitoring(address, address)], datetime.now(UTC)))
                return len(found[-1].parts) == 3 and len(found[-1].certificates) == 5 and found[-1].parts[1].up

            until("all targets", whole, timeout_s=60)
    last = found[-1]
    assert [(part.kind, part.host, part.up) for part in last.parts] == [
        ("etcd", "etcd-1", True), ("apiserver", "api-1", True), ("balancer", "lb-1", False),
    ]  # fmt: skip
    assert last.members == (control_plane.Member("etcd-1", True, True, 1e8, 8e9),)
    assert [(one.cluster, one.late) for one in last.snapshots] == [("main", True)]
    # Of nodes those that end first; what is gone there is an alert's to tell.
    assert [(one.host, one.file, one.due) for one in last.certificates] == [
        ("etcd-1", "/gone.crt", True), ("etcd-1", "/due.crt", True), ("gpu-1", "/due.crt", True),
        ("etcd-1", "/good.crt", False), ("gpu-1", "/good.crt", False),
    ]  # fmt: skip
    assert len(last.sick) == 5 and last.problems == ()
