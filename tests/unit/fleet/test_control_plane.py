"""The control plane as its monitoring sees it: what needs a person, and how it is told."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from gpu_burnin.cli.muster.main import cli
from gpu_burnin.fleet.monitoring import control_plane, control_plane_text
from gpu_burnin.fleet.monitoring.control_plane import Certificate, ControlPlane, Member, Part, Snapshots
from gpu_burnin.fleet.monitoring.line import Monitoring
from tests.support.fake_prometheus import FakePrometheus

WELL = ControlPlane(
    "mon-1",
    (),
    (Part("etcd", "etcd-1", True), Part("apiserver", "api-1", True)),
    (Member("etcd-1", True, True, 3e8, 8 * (1 << 30)),),
    (Snapshots("main", "2026-11-23T12:00:00Z", 1800.0, late=False),),
    (Certificate("api-1", "/etc/kubernetes/pki/apiserver.crt", 364.2, "2027-11-22T00:00:00Z", due=False),),
)
SICK = [
    ({"parts": (Part("apiserver", "api-1", False),)}, "api-1: API server does not answer its monitoring"),
    ({"members": (Member("etcd-1", False, False),)}, "etcd-1: etcd has no leader"),
    (
        {"snapshots": (Snapshots("events", "2026-11-20T12:00:00Z", 3 * 86400.0, late=True),)},
        "etcd events: the newest verified snapshot is of 2026-11-20T12:00:00Z; run playbooks/etcd_backup.yml",
    ),
    (
        {"certificates": (Certificate("gpu-1", "/x.pem", 1.5, "2026-11-24T12:00:00Z", due=True),)},
        "gpu-1: /x.pem ends 2026-11-24T12:00:00Z; run site.yml, which renews it",
    ),
    (
        {"certificates": (Certificate("gpu-1", "/x.pem", None, "", due=True),)},
        "gpu-1: /x.pem is gone or cannot be read; run site.yml for that host",
    ),
]


def test_what_is_well_needs_nobody() -> None:
    assert WELL.sick == ()
    text = control_plane_text.render(WELL)
    assert text.startswith("Control plane by mon-1: nothing to mend\n")
    assert "leads" in text and "0.28 GiB" in text and "3.5%" in text and "30 min ago" in text and "364 " in text


@pytest.mark.parametrize(("changes", "sentence"), SICK)
def test_what_needs_a_person_is_told_first(changes: dict[str, object], sentence: str) -> None:
    found = replace(WELL, **changes)  # type: ignore[arg-type]
    assert found.sick == (sentence,)
    first, second, *_ = control_plane_text.render(found, 200).splitlines()
    assert first == "Control plane by mon-1: 1 to mend" and second == f"- {sentence}"
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["sick"] == [sentence]


def test_lines_are_as_wide_as_the_screen() -> None:
    assert max(map(len, control_plane_text.render(WELL, 80).splitlines())) <= 80


def test_without_an_answer_it_says_so() -> None:
    fake = FakePrometheus()
    fake.hosts = {}
    found = control_plane.read([Monitoring(fake.address, fake.address)], fake.at)
    fake.close()
    assert found.source == "" and "Prometheus knows no host of the control plane" in found.problems[0]
    assert control_plane_text.render(found).startswith("MISSING: ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "give --monitoring HOST or --prometheus URL"),
        (["--prometheus", "http://127.0.0.1:9", "--watch"], "leave --watch and --html out"),
    ],
)
def test_wrong_options_are_usage_errors(options: list[str], says: str) -> None:
    done = CliRunner().invoke(cli, ["status", "--control-plane", *options])
    assert done.exit_code == 2 and says in done.output


def test_the_command_asks_monitoring_and_not_the_api() -> None:
    options = ["--prometheus", "http://127.0.0.1:9", "--kubeconfig", "/nowhere", "--json"]
    done = CliRunner().invoke(cli, ["status", "--control-plane", *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["control_plane"]["source"] == ""
