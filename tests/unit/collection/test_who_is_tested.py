"""Which GPU nodes site.yml burns in: its own conditions, on what the roles of the stack left of made-up hosts.

Only here: that Ansible goes on with exactly the hosts that the conditions of site.yml's plays choose.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.filter.gpu_models import gpu_models
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.decide import Wanted, decide
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.models import Models
from ansible_collections.muster.fleet.plugins.modules.nvidia_driver import unfit

from tests.support.nvidia_host import KERNEL, NvidiaHost
from tests.support.site_plays import site_plays

ROOT = Path(__file__).resolve().parents[3]
NEW, OLD = "580.105.08", "575.57.08"
IMAGE = Wanted("image", NEW, "debian12", Models(json.loads(gpu_models("all"))))
PACKAGES = replace(IMAGE, source="nvidia")


def host(root: Path, version: str) -> NvidiaHost:
    """A host with an H100 that has this driver, "" for none."""
    made = NvidiaHost(root)
    made.add_device()
    made.put(f"lib/modules/{KERNEL}/build/Makefile", "")
    if not version:
        made.answer_nvml(code=12, error="no such file", driver_version=None, library_version=None, gpus=None)
        return made
    for name in ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libnvidia-ml1"):
        made.add_package(name, f"{version}-1", want="hold")
    made.add_module(version)
    made.add_library(version)
    made.load(version)
    made.services = {"nvidia-persistenced": "active"}
    made.answer_nvml(driver_version=version, library_version=version)
    return made


def found(root: Path, version: str, wanted: Wanted) -> dict[str, Any]:
    """What the role nvidia_driver leaves of such a host."""
    facts = host(root, version).gather()
    plan = decide(facts, wanted, {("install",): "apt says no"})
    return {"held": plan.held, "unfit": unfit(wanted.source, plan, facts)}


def fleet(folder: Path) -> dict[str, dict[str, Any]]:
    """The hosts by what they are, with the variables that the roles left."""
    good, plugin = found(folder / "1", NEW, IMAGE), {"nvidia_device_plugin_image": "registry/plugin@sha256:0"}
    no_cdi = {"held": "containerd knows no CDI", "devices": ["GPU-1"]}
    packaged = {"fleet_nvidia_source": "nvidia", "nvidia_driver_found": found(folder / "2", NEW, PACKAGES)}
    return {
        "tested-image": {"nvidia_driver_found": good},
        # The burn-in tells it better.
        "tested-image-without-driver": {"nvidia_driver_found": found(folder / "3", "", IMAGE)},
        "left-image-of-another-version": {"nvidia_driver_found": found(folder / "4", OLD, IMAGE)},
        "tested-packages": packaged,
        "left-packages-without-driver": {**packaged, "nvidia_driver_found": found(folder / "5", "", PACKAGES)},
        "left-fabric": {**packaged, "nvidia_fabricmanager_found": {"held": "GPU 1 is not registered"}},
        "left-dcgm": {**packaged, "nvidia_dcgm_found": {"held": "DCGM sees 1 of 2 GPUs"}},
        "tested-image-with-fabric": {"nvidia_driver_found": good, "nvidia_fabricmanager_found": {"held": "as above"}},
        "left-containers": {"nvidia_driver_found": good, "nvidia_container_toolkit_found": no_cdi, **plugin},
        "tested-no-plugin": {"nvidia_driver_found": good, "nvidia_container_toolkit_found": no_cdi},
        "tested-no-gpus": {
            "nvidia_driver_found": good,
            "nvidia_container_toolkit_found": {**no_cdi, "devices": []},
            **plugin,
        },
        "left-silent": {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1},
    }


@pytest.mark.slow
def test_who_is_tested_who_is_left_and_that_all_are_named(
    ansible_playbook: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    hosts = fleet(tmp_path)
    site = {play["name"]: play for play in site_plays()}
    burnin, told = site["Burn in the GPU nodes"], site["Report the state of the fleet"]
    plays = [
        {
            "hosts": "all",
            "gather_facts": False,
            "tasks": [{"ansible.builtin.raw": "true", "register": "__preflight_facts"}],
        },
        {**burnin, "roles": [], "tasks": [{"ansible.builtin.debug": {"msg": "is tested"}}]},
        {**told, "roles": []},
    ]
    common = {"fleet_state_dir": str(tmp_path)}
    (tmp_path / "play.yml").write_text(json.dumps(plays))
    groups = {"gpu_nodes": {"hosts": hosts, "vars": common}}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": groups}}))
    done = ansible_playbook("play.yml", "--forks=12", inventory="hosts.json")
    assert done.returncode == 4, done.stdout + done.stderr
    tested = set(re.findall(r"ok: \[(\S+)\] => \{\s+\"msg\": \"is tested\"", done.stdout))
    assert tested == {name for name in hosts if name.startswith("tested-")}
    rows = re.findall(r"(\S+) +GPU node +([^\n]*)", done.stdout.replace("\\n", "\n").replace('"msg": "', ""))
    lines = dict(rows)
    assert lines.pop("left-silent") == "LEFT OUT: does not answer SSH"
    assert set(lines) == set(hosts) - {"left-silent"}
    # Of the others the line is the burn-in's and the admitter's, which have not run here.
    assert all(re.match(r"held +no \S.* as asked", lines[name]) for name in set(lines) - tested), lines
