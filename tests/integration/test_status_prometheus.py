"""What the page of a fleet asks for is recorded by the fleet's rules, and read of a real Prometheus."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.monitoring import numbers
from gpu_burnin.fleet.monitoring.line import Monitoring
from gpu_burnin.fleet.monitoring.numbers import Numbers
from tests.lab.image import ensure_image

from .kube import REPOSITORY, free_ports, until

RULES = REPOSITORY / "roles" / "fleet_monitoring" / "files" / "rules"
# What exporters of every kind say at once; counters grow with each scrape, so that there are rates.
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


@pytest.fixture
def exporter() -> Iterator[int]:
    """The port of one that answers for every job."""
    scrapes = iter(range(1, 1_000_000))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            body = PAGE.format(count=100 * next(scrapes)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def prometheus(exporter: int, tmp_path: Path) -> Iterator[str]:
    """The address of Debian's Prometheus with the fleet's rules; a rack of two hosts does not answer."""
    port, dead = free_ports(2)

    def job(name: str, *targets: tuple[int, dict[str, str]]) -> dict[str, Any]:
        return {
            "job_name": name,
            "static_configs": [{"targets": [f"127.0.0.1:{at}"], "labels": labels} for at, labels in targets],
        }

    up, down = {"rack": "r1"}, {"rack": "r2"}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{RULES}/*.yml"],
        "scrape_configs": [
            job("node", *((exporter, {"instance": f"gpu-{n}", **up}) for n in (1, 2)),
            *((dead, {"instance": f"gpu-{n}", **down}) for n in (3, 4))),
        ],
    }  # fmt: skip
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        ensure_image() / "usr" / "bin" / "prometheus",
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stderr=log, stdout=log) as process:
        yield f"http://127.0.0.1:{port}"
        process.kill()


@pytest.mark.slow
def test_a_real_prometheus_with_the_rules_of_the_fleet_has_all_that_the_page_asks(prometheus: str) -> None:
    found: list[Numbers] = []

    def whole() -> bool:
        found.append(numbers.read([Monitoring(prometheus, prometheus)], datetime.now(UTC)))
        return set(found[-1].values or {}) == set(numbers.RECORDED) and bool(found[-1].alerts)

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
