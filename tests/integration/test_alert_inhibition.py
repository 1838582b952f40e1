"""What explains an alert keeps it quiet, in the real Alertmanager with what the role writes.

Only here: Alertmanager itself says what keeps an alert quiet.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from tests.support.monitoring_files import render

from .kube import Part, ended, free_ports, until
from .monitoring_pair import VARIABLES, program

# What of a host in the dark would fire, beside what Prometheus says of itself.
OF_A_HOST = ("HostDown", "ExporterDown", "EtcdMemberDown", "ApiServerDown", "AdmitterDown")
# Of a host that is down alone.
EXPLAINED = ("GateNotChecked", "AuditNotRead", "AgentSilent", "AgentBlind", "GpusMissing")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("inhibition")
    receiver = {"webhook_configs": [{"url": "http://127.0.0.1:9/"}]}
    variables = {**VARIABLES, "fleet_monitoring_receiver": receiver}
    written = render(folder, {"mon-1": {"ansible_host": "127.0.0.1"}}, variables)["mon-1"]
    (port,) = free_ports(1)
    part = Part(
        [
            *program("/usr/bin/prometheus-alertmanager", written), f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=", "--config.file=/mnt/alertmanager.yml", "--storage.path=/mnt/alertmanager",
        ],
        folder / "log",
    )  # fmt: skip

    def answers() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    part.start()
    with ended(part):
        until("Alertmanager answers", answers)
        yield f"http://127.0.0.1:{port}/api/v2/alerts"


def of(alert: str, instance: str = "", **labels: str) -> dict[str, str]:
    """An alert's labels."""
    return {"alertname": f"Muster{alert}", **({"instance": instance} if instance else {}), **labels}


def loud(address: str, run: str, alerts: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """Raise these alerts; name and host of those that nothing keeps quiet. `run` is each test's own label."""
    body = json.dumps([{"labels": {**alert, "run": run}} for alert in alerts]).encode()
    urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"}), timeout=10)
    found: list[dict[str, Any]] = []

    def here() -> bool:
        with urllib.request.urlopen(f'{address}?filter=run="{run}"', timeout=10) as answer:
            found[:] = json.loads(answer.read())
        return len(found) == len(alerts)

    until("all are there", here)
    names = [(one["labels"], one["status"]["inhibitedBy"]) for one in found]
    return sorted((labels["alertname"], labels.get("instance", "")) for labels, by in names if not by)


@pytest.mark.parametrize(("place", "dark"), [("rack", "r12"), ("switch", "leaf-7"), ("feed", "a")])
def test_a_place_that_is_dark_is_one_page(address: str, place: str, dark: str) -> None:
    hosts = [of(alert, f"{place}-{n}", **{place: dark}) for n in range(100) for alert in OF_A_HOST]
    elsewhere = of("HostDown", f"{place}-elsewhere", **{place: f"{dark}-other"})
    all_ = [of("PlaceDown", place=place, **{place: dark}), *hosts, elsewhere]
    assert loud(address, place, all_) == [("MusterHostDown", f"{place}-elsewhere"), ("MusterPlaceDown", "")]


def test_a_place_explains_no_fault_of_a_gpu(address: str) -> None:
    alerts = [of("PlaceDown", place="rack", rack="r99"), of("EccUncorrected", "lit-1", rack="r99")]
    assert ("MusterEccUncorrected", "lit-1") in loud(address, "gpu", alerts)


def test_a_host_that_is_down_explains_what_is_not_told_of_it_alone(address: str) -> None:
    quiet = [of(alert, "down-1") for alert in (*OF_A_HOST[1:], *EXPLAINED)]
    other = [of(alert, "up-1") for alert in EXPLAINED]
    assert loud(address, "host", [of("HostDown", "down-1"), *quiet, *other]) == sorted(
        [("MusterHostDown", "down-1"), *((f"Muster{alert}", "up-1") for alert in EXPLAINED)]
    )


def test_an_api_server_that_is_down_cannot_be_probed(address: str) -> None:
    alerts = [of("ApiServerDown", "api-1"), of("GateNotChecked", "api-1"), of("GateNotChecked", "api-2")]
    assert loud(address, "api", alerts) == [("MusterApiServerDown", "api-1"), ("MusterGateNotChecked", "api-2")]
