"""What the API server has to know of Kueue and JobSet: collected from their modules' own files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror import manifests
from gpu_burnin.fleet.mirror.golang import Build
from gpu_burnin.fleet.mirror.manifests import Beside, Manifests, reduced

MADE = Manifests(Build("queue", "queue", "."), "example.com/queue", "v2")
CONVERSION = {"strategy": "Webhook"}


def definition(name: str, *versions: str, stored: str = "v2") -> dict[str, Any]:
    listed = [{"name": version, "served": True, "storage": version == stored} for version in versions]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "annotations": {"made": "by a generator"}},
        "spec": {"group": "example.com", "versions": listed, "conversion": CONVERSION},
    }


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The components of a module; JSON is YAML."""
    components = tmp_path / "config/components"
    files: dict[str, Any] = {
        "crd/bases/b.yaml": definition("b", "v1", "v2"),
        "crd/bases/a.yaml": definition("a", "v2"),
        "rbac/role.yaml": {"kind": "ClusterRole", "metadata": {"name": "manager"}},
        "rbac/editor_role.yaml": {"kind": "ClusterRole", "metadata": {"name": "editor"}},
        "webhook/service.yaml": {"kind": "Service", "metadata": {"name": "webhook"}},
        "webhook/manifests.yaml": {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "hooks"}},
    }
    for name, content in files.items():
        (components / name).parent.mkdir(parents=True, exist_ok=True)
        (components / name).write_text(f"---\n{json.dumps(content)}\n")
    monkeypatch.setattr(manifests, "_fetched", lambda build, source: tmp_path)
    return components


def collected(part: Path) -> list[Any]:
    MADE.make(part)
    found: list[Any] = json.loads((part / "queue-manifests.json").read_text())
    return found


def test_definitions_come_first_with_the_one_version_and_nothing_to_convert(module: Path, tmp_path: Path) -> None:
    found = collected(tmp_path)
    assert [item["metadata"]["name"] for item in found] == ["a", "b", "manager", "hooks"]
    assert found[1]["spec"] == {"group": "example.com", "versions": [{"name": "v2", "served": True, "storage": True}]}
    assert found[1]["metadata"] == {"name": "b"}


def test_the_file_is_the_same_each_time(module: Path, tmp_path: Path) -> None:
    first = (collected(tmp_path), (tmp_path / "queue-manifests.json").read_bytes())[1]
    assert (collected(tmp_path), (tmp_path / "queue-manifests.json").read_bytes())[1] == first


@pytest.mark.parametrize(("versions", "stored"), [(("v1",), "v1"), (("v1", "v2"), "v1")])
def test_a_version_that_the_module_does_not_store_is_refused(versions: tuple[str, ...], stored: str) -> None:
    with pytest.raises(GpuBurninError, match="things: its module does not store v2"):
        reduced(definition("things", *versions, stored=stored), "v2")


def test_a_definition_of_another_module_comes_along(module: Path, tmp_path: Path) -> None:
    (module.parent / "crd").mkdir()
    path = module.parent / "crd/requests.yaml"
    path.write_text(json.dumps(definition("requests", "v1", stored="v1")))
    beside = replace(MADE, beside=(Beside("example.com/apis", "config/crd/requests.yaml", "v1"),))
    beside.make(tmp_path)
    found = json.loads((tmp_path / "queue-manifests.json").read_text())
    assert [item["metadata"]["name"] for item in found] == ["a", "b", "requests", "manager", "hooks"]
    assert beside.key() != MADE.key()
    path.unlink()
    with pytest.raises(GpuBurninError, match=r"example\.com/apis: its module has no config/crd/requests\.yaml"):
        beside.make(tmp_path)


def test_a_module_without_webhooks_is_another_one(module: Path, tmp_path: Path) -> None:
    (module / "webhook/manifests.yaml").unlink()
    with pytest.raises(GpuBurninError, match=r"example\.com/queue: its module has no webhook/manifests\.yaml"):
        MADE.make(tmp_path)
