"""What the probe makes of Kueue, JobSet and the queues of teams."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.gate_probe import numbers
from gpu_burnin.admission.gate_probe.ask import Gate, NotAsked, probe
from gpu_burnin.admission.gate_probe.jobs import Jobs, Queue, look, queue_of, ready
from gpu_burnin.admission.gate_probe.state import State
from gpu_burnin.api.jobs import whole
from tests.support.gate_answers import HASH, OTHER, REFUSED, Api, line

POLICIES = line("ValidatingAdmissionPolicy", HASH)


def queue(**status: Any) -> dict[str, Any]:
    resources = [{"name": "nvidia.com/gpu", "nominalQuota": "2k"}, {"name": "cpu", "nominalQuota": "1"}]
    flavors = [{"name": "h100", "resources": resources}, {"name": "h200", "resources": resources[:1]}]
    spec = {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]}
    return {"metadata": {"name": "vision"}, "spec": spec, "status": status}


def test_a_queue_in_figures() -> None:
    usage = [{"name": "h100", "resources": [{"name": "nvidia.com/gpu", "total": "2040", "borrowed": "40"}]}]
    assert queue_of(queue(pendingWorkloads=3, flavorsUsage=usage)) == Queue("vision", 3, 4000, 2040, 40)
    assert queue_of(queue()) == Queue("vision", 0, 4000, 0, 0)


@pytest.mark.parametrize(("text", "number"), [("0", 0), (8, 8), ("2k", 2000), ("-1k", -1000), ("1M", 10**6)])
def test_whole_numbers(text: str | int, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize("text", ["500m", "1Gi", "", "k", "1.5"])
def test_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        whole(text)


class Queues(Api):
    """An API server with these objects."""

    def __init__(self, found: object) -> None:
        super().__init__(None, "")
        self._found = found

    def find(self, path: str, what: str) -> Any:
        if "/leases/" in path:
            return (
                {"spec": {"renewTime": "2026-11-01T00:00:00Z"}}
                if path.endswith("/muster-system/leases/kueue")
                else None
            )
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


def looked(found: object, etc: Path) -> Jobs:
    return look(cast(KubeApi, Queues(found)), etc)


def test_services_that_are_not_there_are_not_ready(tmp_path: Path) -> None:
    jobs = looked({"items": [queue()]}, tmp_path)
    assert (jobs.ready, [one.name for one in jobs.queues]) == ({"kueue": False, "jobset": False}, ["vision"])
    assert jobs.leases == {"kueue": 1793491200.0, "jobset": 0.0}


@pytest.mark.parametrize(
    "found", [ApiError("forbidden", 403), {"items": [{"metadata": {}}]}, {"items": [queue(pendingWorkloads="x")]}]
)
def test_what_cannot_be_read_is_no_queue(found: object, tmp_path: Path) -> None:
    with pytest.raises(NotAsked):
        looked(found, tmp_path)


class Answer(http.server.BaseHTTPRequestHandler):
    """Ready, unless the server says otherwise."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_service_that_answers_where_it_is_configured_is_ready(address: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"health: {{healthProbeBindAddress: '{address}'}}\n")
    assert ready(tmp_path)


@pytest.mark.parametrize("text", ["", "health: 3", "{", "health: {healthProbeBindAddress: nowhere}", "[]"])
def test_a_service_without_an_address_is_not_ready(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert not ready(tmp_path)


def gate_of(folder: Path, metrics: str, webhooks: str | None) -> Gate:
    (folder / "policy.hash").write_text(f"{HASH}\n")
    if webhooks is not None:
        (folder / "webhooks.hash").write_text(webhooks)
    return probe(cast(KubeApi, Api(ApiError(REFUSED, 403), POLICIES + metrics)), folder)


MUTATING, VALIDATING = "MutatingAdmissionWebhook", "ValidatingAdmissionWebhook"
BOTH = f"{MUTATING} {HASH}\n{VALIDATING} {OTHER}\n"


@pytest.mark.parametrize(
    ("metrics", "webhooks", "changed"),
    [
        ("", None, []),
        (line(MUTATING, HASH) + line(VALIDATING, OTHER), BOTH, []),
        (line(MUTATING, HASH) + line(VALIDATING, HASH), BOTH, [VALIDATING]),
        # A folder without a file: no hash, and no error.
        (line(MUTATING, "") + line(VALIDATING, OTHER), BOTH, [MUTATING]),
        ("", BOTH, [MUTATING, VALIDATING]),
        # Some that nobody installed.
        (line(MUTATING, HASH), None, [MUTATING]),
    ],
)
def test_webhooks_are_those_that_were_installed(
    tmp_path: Path, metrics: str, webhooks: str | None, changed: list[str]
) -> None:
    gate = gate_of(tmp_path, metrics, webhooks)
    assert gate.in_force and gate.changed_webhooks == changed


@pytest.mark.parametrize("webhooks", ["", f"{MUTATING} {HASH}\n", f"{MUTATING} x\n{VALIDATING} {HASH}\n"])
def test_without_what_was_installed_webhooks_are_not_compared(tmp_path: Path, webhooks: str) -> None:
    with pytest.raises(NotAsked, match=r"webhooks\.hash: holds no hashes"):
        gate_of(tmp_path, "", webhooks)


def test_numbers_of_a_fleet_with_teams() -> None:
    jobs = Jobs({"kueue": True, "jobset": False}, {"kueue": 5.0}, (Queue("vision", 3, 16, 8, 0),))
    page = numbers.text(Gate(True, HASH, HASH, {MUTATING: False}), {"kube-scheduler": 1.0}, State(), jobs)
    for text in (
        f'muster_gate_webhooks_right{{plugin="{MUTATING}"}} 0',
        'muster_jobs_service_ready{service="jobset"} 0',
        'muster_lease_renewed_timestamp_seconds{lease="kueue"} 5',
        'muster_lease_renewed_timestamp_seconds{lease="kube-scheduler"} 1',
        'muster_queue_pending_jobs{queue="vision"} 3',
        'muster_queue_quota_gpus{queue="vision"} 16',
    ):
        assert f"\n{text}\n" in page


def test_numbers_of_a_fleet_without_teams_are_those_of_before() -> None:
    page = numbers.text(Gate(True, HASH, HASH), {"kube-scheduler": 1.0}, State())
    assert "webhooks" not in page and "muster_jobs" not in page and "muster_queue" not in page
