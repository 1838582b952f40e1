"""The chart as Helm itself renders it: the same objects as `muster attach --render`, and the refusals of its schema.

Only here: what Helm makes of the templates. Cold Helm is built from its module in three minutes.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpu_burnin.admission.webhook.certificate import Pair, usable
from gpu_burnin.cli.muster.main import cli as muster
from tests.lab.helm import ensure_helm
from tools.dist.chart.__main__ import write

pytestmark = pytest.mark.soak
IMAGE = "registry.example.com/muster:1"
WITH_POLICIES = ("admissionregistration.k8s.io/v1/MutatingAdmissionPolicy",)
WITH_OPERATOR = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")


@dataclass(frozen=True)
class Case:
    """Values of the chart, the same as options of attach, and what the cluster has."""

    values: Mapping[str, Any]
    options: Sequence[str]
    has: Sequence[str] = ()


LABELLED = {"image": IMAGE, "gpuNodes": {"label": "example.com/gpu", "value": "yes"}}
CASES = {
    "the least": Case(LABELLED, ["--gpu-nodes", "example.com/gpu=yes"]),
    "names alone, enforcing": Case(
        {"image": IMAGE, "gpuNodes": {"names": ["gpu-1", "gpu-2.example.com"]}, "enforce": True},
        ["--gpu-nodes", "gpu-1", "--gpu-nodes", "gpu-2.example.com", "--enforce"],
    ),
    "all of it, by policy": Case(
        {
            "image": f"{IMAGE}@sha256:{'0' * 64}",
            "gpuNodes": {"label": "gpu", "value": "", "names": ["gpu-1"]},
            "enforce": True,
            "level": "quick",
            "driverRoot": "/run/nvidia/driver",
            "cluster": 'prod "1"',
            "sshHostKeys": True,
        },
        [
            *("--gpu-nodes", "gpu=", "--gpu-nodes", "gpu-1", "--enforce", "--level", "quick", "--monitoring"),
            *("--driver-root", "/run/nvidia/driver", "--cluster", 'prod "1"', "--taint-by", "policy"),
            "--ssh-host-keys",
        ],
        (*WITH_POLICIES, *WITH_OPERATOR),
    ),
    "a webhook all the same": Case(
        {**LABELLED, "enforce": True, "taintBy": "webhook", "monitoring": "on"},
        ["--gpu-nodes", "example.com/gpu=yes", "--enforce", "--taint-by", "webhook", "--monitoring"],
        WITH_POLICIES,
    ),
}


@pytest.fixture(scope="module")
def helm() -> Path:
    return ensure_helm()


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("chart"))


def run(helm: Path, chart: Path, verb: str, values: Mapping[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    """Helm, with values as a user's file has them."""
    file = chart.parent / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    place = [str(chart)] if verb == "lint" else ["muster", str(chart)]
    command = [str(helm), verb, *place, "--namespace", "muster-system", "--values", str(file), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def templated(helm: Path, chart: Path, case: Case, authority: Mapping[str, str]) -> list[dict[str, Any]]:
    """What Helm would install, definitions included."""
    of = {"webhook": {"authority": authority}} if authority else {}
    versions = [word for version in case.has for word in ("--api-versions", version)]
    done = run(helm, chart, "template", {**case.values, **of}, "--include-crds", *versions)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def by_name(objects: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each with its texts of JSON parsed: spaces in them say nothing."""
    found = {f"{one['kind']}/{one['metadata']['name']}": one for one in objects}
    assert len(found) == len(objects)
    for one in found.values():
        if one["kind"] == "ConfigMap":
            data = one["data"].items()
            one["data"] = {key: json.loads(text) if key.endswith(".json") else text for key, text in data}
    return found


@pytest.mark.parametrize("name", CASES)
def test_helm_makes_the_objects_that_attach_renders(name: str, helm: Path, chart: Path, tmp_path: Path) -> None:
    case = CASES[name]
    words = ["attach", "--image", case.values["image"], *case.options, "--render", str(tmp_path / "rendered")]
    done = CliRunner().invoke(muster, words)
    assert done.exit_code == 0, done.output
    files = sorted((tmp_path / "rendered").glob("*.yaml"))
    rendered = by_name([one for path in files for one in yaml.safe_load_all(path.read_text())])
    keys = {"certificate": "ca.crt", "key": "ca.key"}
    authority = {key: (tmp_path / "rendered" / file).read_text() for key, file in keys.items()} if _ca(rendered) else {}
    # The namespace is `helm install --create-namespace`'s.
    del rendered["Namespace/muster-system"]
    assert by_name(templated(helm, chart, case, authority)) == rendered
    linted = run(helm, chart, "lint", case.values, "--strict")
    assert linted.returncode == 0, linted.stdout + linted.stderr


def _ca(rendered: Mapping[str, Any]) -> bool:
    return "Secret/muster-webhook-ca" in rendered


def test_an_authority_that_helm_makes_is_one_and_can_be_used(helm: Path, chart: Path) -> None:
    found = by_name(templated(helm, chart, Case({**LABELLED, "enforce": True, "taintBy": "webhook"}, []), {}))
    data = found["Secret/muster-webhook-ca"]["data"]
    [hook] = found["MutatingWebhookConfiguration/muster-preflight-taint"]["webhooks"]
    [seen] = [
        one["webhooks"][0]["clientConfig"]["caBundle"]
        for one in found["ConfigMap/muster-gate"]["data"]["gate.json"]["objects"]
        if "webhooks" in one
    ]
    assert data["ca.crt"] == hook["clientConfig"]["caBundle"] == seen
    pair = Pair(*(_decoded(data[key]) for key in ("ca.crt", "ca.key")))
    assert usable(pair, datetime.now(UTC))


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": ""}, "image"),
        ({"gpuNodes": {"label": "", "names": []}}, "gpuNodes"),
        ({"gpuNodes": {"label": "a'b", "value": "yes"}}, "gpuNodes"),
        ({"gpuNodes": {"names": ["a', 'b"]}}, "gpuNodes"),
        ({"driverRoot": "/run/../etc"}, "driverRoot"),
        ({"level": "deep"}, "level"),
        ({"enforced": True}, "enforced"),
        ({"webhook": {"authority": {"certificate": "a"}}}, "give both, or neither"),
    ],
)
def test_values_that_attach_would_refuse_are_refused(
    changes: Mapping[str, Any], words: str, helm: Path, chart: Path
) -> None:
    done = run(helm, chart, "template", {**LABELLED, **changes})
    assert done.returncode != 0 and words in done.stderr


def test_another_namespace_is_refused(helm: Path, chart: Path) -> None:
    done = run(helm, chart, "template", LABELLED, "--namespace", "default")
    assert done.returncode != 0 and "--namespace muster-system" in done.stderr


def notes(helm: Path, chart: Path, values: Mapping[str, Any]) -> str:
    """What Helm says after an install, for which it would need a cluster: the same text as a template's."""
    copy = chart.parent / "with-notes"
    shutil.copytree(chart, copy, dirs_exist_ok=True)
    shutil.copy(chart / "templates/NOTES.txt", copy / "notes.txt")
    (copy / "templates/notes.yaml").write_text('notes: {{ tpl (.Files.Get "notes.txt") . | toJson }}')
    done = run(helm, copy, "template", values, "--show-only", "templates/notes.yaml")
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["notes"])


def test_the_notes_say_what_to_do_next(helm: Path, chart: Path) -> None:
    observing = notes(helm, chart, LABELLED)
    assert "muster attach approve" in observing and "--set enforce=true" in observing
    assert "--gpu-nodes example.com/gpu=yes" in observing and "observing" in observing
    assert "--set enforce=true" not in notes(helm, chart, {**LABELLED, "enforce": True})
