"""What a host takes from NVIDIA's repository beside its driver: by the same rules as the roles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.filter.gpu_models import gpu_models
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import beside, preflight
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.beside import Parts
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.fabric import NONE, NVLINK5, NVSWITCH, RACK, Platform
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import Models
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.offers import Offers

from tests.support.nvidia_host import NvidiaHost, h100

ROOT = Path(__file__).resolve().parents[3]
MODELS = Models(json.loads(gpu_models("all")))
DRIVER = "580.105.08"
ALL = Parts("4.5.2", "4.8.2", "13", "1.20.1", "2025.10.1")
TOOLKIT = {"nvidia-container-toolkit-base": "1.20.1"}
DCGM = {
    "datacenter-gpu-manager-4-core": "4.5.2",
    "datacenter-gpu-manager-4-cuda13": "4.5.2",
    "datacenter-gpu-manager-exporter": "4.8.2",
}
MANAGER = {"nvidia-fabricmanager": DRIVER}


@pytest.mark.parametrize(
    ("source", "parts", "kind", "expected"),
    [
        ("nvidia", Parts(), NONE, {}),
        ("nvidia", ALL, NONE, TOOLKIT | DCGM),
        ("debian", ALL, NONE, TOOLKIT | DCGM),
        ("nvidia", replace(ALL, dcgm_version=""), NONE, TOOLKIT),
        ("nvidia", Parts("4.5.2", dcgm_cuda="12"), NONE,
         {"datacenter-gpu-manager-4-core": "4.5.2", "datacenter-gpu-manager-4-cuda12": "4.5.2"}),
        # With an image only the toolkit may be of the repository.
        ("image", ALL, NVSWITCH, TOOLKIT),
        ("nvidia", Parts(), NVSWITCH, MANAGER),
        ("ubuntu", Parts(), NVSWITCH, {"nvidia-fabricmanager-580": DRIVER}),
        ("debian", Parts(), NVSWITCH, {}),
        ("nvidia", Parts(nvlsm_version="2025.10.1"), NVLINK5,
         MANAGER | {"nvlsm": "2025.10.1", "infiniband-diags": ""}),
        ("nvidia", Parts(), RACK, {}),
        ("nvidia", Parts(imex=True), RACK, {"nvidia-imex": DRIVER}),
    ],
)  # fmt: skip
def test_each_part(source: str, parts: Parts, kind: str, expected: dict[str, str]) -> None:
    assert beside.packages(source, DRIVER, parts, Platform(kind, "")) == expected


def test_no_version_of_a_driver_is_no_version_of_a_fabric_manager() -> None:
    assert beside.packages("nvidia", "", Parts(), Platform(NVSWITCH, "")) == {}


def test_the_toolkit_s_package_is_the_role_s() -> None:
    variables = yaml.safe_load((ROOT / "roles/nvidia_container_toolkit/vars/main.yml").read_text())
    assert list(variables["__nvidia_container_toolkit_packages"]) == [beside.TOOLKIT]


@pytest.mark.parametrize(
    ("version", "state", "is_missing"),
    [
        ("1.20.1-1", "installed", False),
        ("1.20.1", "installed", False),
        ("1.19.0-1", "installed", True),
        ("1.20.1-1", "half-configured", True),
    ],
)
def test_what_is_missing(tmp_path: Path, version: str, state: str, is_missing: bool) -> None:
    host = NvidiaHost(tmp_path)
    host.add_package("nvidia-container-toolkit-base", version, state=state)
    assert beside.missing(TOOLKIT, host.run) == (list(TOOLKIT) if is_missing else [])
    assert beside.missing({"nvlsm": ""}, host.run) == ["nvlsm"]


def test_nothing_asked_runs_nothing_and_an_unknown_answer_is_missing(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    assert beside.missing({}, host.run) == []
    assert host.commands == []
    host.answers["dpkg-query"] = CommandError("dpkg-query gave no answer in 30 s")
    assert beside.missing(TOOLKIT, host.run) == list(TOOLKIT)


DEAD = "http://127.0.0.1:1"


@pytest.mark.parametrize("source", ["nvidia", "debian", "ubuntu", "image"])
@pytest.mark.parametrize("lacks", [None, *(DCGM | TOOLKIT)])
def test_the_repository_is_asked_where_something_beside_the_driver_is_to_come_from_it(
    tmp_path: Path, source: str, lacks: str | None
) -> None:
    host = h100(tmp_path)
    host.answers["dpkg-query"] = Output(0, "", "")
    for name, version in (DCGM | TOOLKIT).items():
        host.add_package(name, "4.4.1-1" if name == lacks else f"{version}-1", want="hold")
    asked = preflight.Asked(source, "580.105.08", "13", DEAD, 4 * 2**30, beside=DCGM | TOOLKIT)
    offers = preflight.observe(host.root, host.run, asked, host.gather(), MODELS, 1)
    assert bool(offers.repository_fault) == (lacks is not None)
    assert (offers.versions, offers.free_bytes) == (None, {})
    # Of a fleet without the repository nothing is asked: what it lacks is of the system's own sources.
    without = replace(asked, repository_url="")
    assert preflight.observe(host.root, host.run, without, host.gather(), MODELS, 1) == Offers(None, "", {})


def test_debian_s_driver_alone_asks_for_no_repository(tmp_path: Path) -> None:
    host = NvidiaHost(tmp_path)
    asked = preflight.Asked("debian", "535.261.03", "12", DEAD, 4 * 2**30)
    assert preflight.observe(host.root, host.run, asked, host.gather(), MODELS, 1).repository_fault == ""
    with_dcgm = preflight.observe(host.root, host.run, replace(asked, beside=DCGM), host.gather(), MODELS, 1)
    assert "cannot be reached" in with_dcgm.repository_fault
