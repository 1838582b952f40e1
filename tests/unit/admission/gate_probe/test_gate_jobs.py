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
from gpu_burnin.admission.gate_probe import probe as module
from gpu_burnin.admission.gate_probe.ask import Gate, NotAsked, leases, probe
from gpu_burnin.admission.gate_probe.jobs import SERVICES, Jobs, Queue, queue_of, queues, ready
from gpu_burnin.admission.gate_probe.state import State
from gpu_burnin.api.jobs import whole
from gpu_burnin.api.names import SYSTEM_NAMESPACE
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


def test_queues_and_who_leads() -> None:
    api = cast(KubeApi, Queues({"items": [queue()]}))
    assert [one.name for one in queues(api)] == ["vision"]
    assert leases(api, SERVICES, SYSTEM_NAMESPACE) == {"kueue": 1793491200.0, "jobset": 0.0}


@pytest.mark.parametrize(
    "found", [ApiError("forbidden", 403), {"items": [{"metadata": {}}]}, {"items": [queue(pendingWorkloads="x")]}]
)
def test_what_cannot_be_read_is_no_queue(found: object) -> None:
    with pytest.raises(NotAsked):
        queues(cast(KubeApi, Queues(found)))


class Refusing(Api):
    """It refuses Nodes without the taint, and answers nothing about these paths."""

    def __init__(self, *silent: str) -> None:
        super().__init__(ApiError(REFUSED, 403) if "nodes" not in silent else ApiError("no answer"), POLICIES)
        self.silent, self.asked = silent, list[str]()

    def find(self, path: str, what: str) -> Any:
        self.asked.append(path)
        if any(one in path for one in self.silent):
            raise ApiError(f"{path}: no answer")
        return {"items": [queue()]} if "clusterqueues" in path else {"spec": {"renewTime": "2026-11-01T00:00:00Z"}}


NUMBERS = {
    "gate": "muster_gate_refused ",
    "leader": 'muster_lease_renewed_timestamp_seconds{lease="kube-scheduler"}',
    "kueue leads": 'muster_lease_renewed_timestamp_seconds{lease="kueue"}',
    "queues": "muster_queue_quota_gpus{",
    "ready": 'muster_jobs_service_ready{service="kueue"} 0',
}


@pytest.mark.parametrize(
    ("silent", "hidden"),
    [
        ((), set()),
        (("muster-system/leases",), {"kueue leads"}),
        (("clusterqueues",), {"queues"}),
        (("nodes",), {"gate"}),
        (("kube-system/leases",), {"leader"}),
        # It does not answer at all.
        (("nodes", "leases", "clusterqueues"), {"gate", "leader", "kueue leads", "queues"}),
    ],
)
def test_what_is_not_answered_hides_no_other_number(
    silent: tuple[str, ...], hidden: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, page, said = Refusing(*silent), tmp_path / "gate.prom", list[str]()
    monkeypatch.setattr(module, "KubeApi", lambda *_, **__: api)
    (tmp_path / "policy.hash").write_text(f"{HASH}\n")
    (tmp_path / "webhooks.hash").write_text(BOTH)
    (tmp_path / "audit.log").touch()
    place = module.Place(tmp_path / "k", tmp_path, tmp_path / "audit.log", tmp_path, page, etc=tmp_path)
    module.once(place, said.append, 7.0)
    text = page.read_text()
    assert {name for name, number in NUMBERS.items() if number not in text} == hidden, text
    assert len(silent) < 2 or len(api.asked) == 1, "who answers nothing is asked no more"


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
