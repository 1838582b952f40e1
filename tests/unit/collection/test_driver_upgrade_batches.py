"""playbooks/driver_upgrade.yml as a whole in Ansible, over four names: its plan, its batches that double, its end.

Every host is this machine. What would be done to a host (its roles, kubelet's rest, `gpu-burnin repair look`) writes
down that it was, and for one host says that the module does not load.

Only here: that the real plays go batch after batch over several hosts, and end after the one with a failure.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.driver_upgrade.book import Outcome
from tests.support.upgrade_site import NEW, OLD, Site

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
HOSTS = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")
BROKEN = "the module 580.105.08 does not load"
WELL = {"held": "", "waits": ""}


def note(word: str) -> dict[str, Any]:
    return {"ansible.builtin.raw": f"echo {word} {{{{ inventory_hostname }}}} >> {{{{ log }}}}"}


# What the roles leave, and the driver of before.
FOUND = {
    "nvidia_driver_found": {**WELL, "driver": {"loaded": OLD}, "reboot": "", "problems": [], "steps": ["it is older"]},
    "nvidia_fabricmanager_found": WELL,
    "nvidia_dcgm_found": WELL,
    "nvidia_container_toolkit_found": WELL,
    "__gpu_burnin_result": {"verdict": "PASS"},
}
AFTER = {**WELL, "driver": {"loaded": NEW}, "held": "{{ broken if inventory_hostname == 'gpu-2' else '' }}"}
# The roles by their files of tasks. The plan looks at the driver by `driver`.
STAND_INS: dict[str, list[dict[str, Any]]] = {
    "nvidia_driver/driver": [],
    "nvidia_driver/main": [note("driver"), {"ansible.builtin.set_fact": {"nvidia_driver_found": AFTER}}],
    "nvidia_fabricmanager/main": [],
    "nvidia_dcgm/main": [],
    "nvidia_container_toolkit/main": [],
    "gpu_burnin/main": [],
    "kubelet/main": [note("kubelet")],
}


def stand_in(node: Any) -> Any:
    """Tasks or plays with the stand-ins in the place of what touches a host."""
    if isinstance(node, list):
        return [stand_in(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = {key: stand_in(value) for key, value in node.items()}
    for kind in ("import_role", "include_role"):
        if role := node.get(f"ansible.builtin.{kind}"):
            role["name"] = role["name"].removeprefix("muster.fleet.")
    if node.get("muster.fleet.driver_upgrade", {}).get("phase") == "begin":
        node["muster.fleet.driver_upgrade"]["program"] = "{{ look }}"
    for module in ("muster.fleet.node_rest", "muster.fleet.nvidia_offered"):
        if node.pop(module, None):
            node["ansible.builtin.raw"] = "true"
    return node


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, names=HOSTS)
    roles = tmp_path / "roles"
    shutil.copytree(ROOT / "roles/driver_upgrade", roles / "driver_upgrade")
    for path in (roles / "driver_upgrade/tasks").glob("*.yml"):
        path.write_text(yaml.safe_dump(stand_in(yaml.safe_load(path.read_text())), sort_keys=False))
    for name, tasks in STAND_INS.items():
        role, _, entry = name.partition("/")
        (roles / role / "tasks").mkdir(parents=True, exist_ok=True)
        (roles / role / f"tasks/{entry}.yml").write_text(yaml.safe_dump(tasks))
    plays = stand_in(yaml.safe_load((ROOT / "playbooks/driver_upgrade.yml").read_text()))
    (tmp_path / "driver_upgrade.yml").write_text(yaml.safe_dump(plays, sort_keys=False))
    look = tmp_path / "gpu-burnin"
    look.write_text("""#!/bin/sh\ntest "$*" = "repair look" && echo '{"working": []}'\n""")
    look.chmod(0o755)
    variables = {
        "look": str(look),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "fleet_name": "test",
        "fleet_state_dir": str(tmp_path),
        "driver_upgrade_kubeconfig": str(made.kubeconfig),
        "fleet_nvidia_source": "nvidia",
        "fleet_nvidia_driver_version": NEW,
        "log": str(tmp_path / "log"),
        "broken": BROKEN,
        **FOUND,
    }
    inventory = {"all": {"vars": variables, "children": {"gpu_nodes": {"hosts": dict.fromkeys(HOSTS)}}}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    yield made
    made.api.close()


@pytest.mark.slow
def test_batches_double_and_a_failure_in_one_stops_the_next(ansible_playbook: Playbook, site: Site) -> None:
    done = ansible_playbook("driver_upgrade.yml", "--limit", "gpu_nodes", "-f", "4", inventory="hosts.yml")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    for number, name in ((1, "gpu-1"), (2, "gpu-2"), (2, "gpu-3"), (3, "gpu-4")):
        assert f"{name} batch {number} driver {OLD} -> {NEW}" in said
    log = (site.folder / "log").read_text().splitlines()
    # The second batch begins when the first is let in, both its hosts together; the one that is well comes to its end.
    assert log[:2] == ["driver gpu-1", "kubelet gpu-1"]
    assert sorted(log[2:4]) == ["driver gpu-2", "driver gpu-3"]
    assert log[4:] == ["kubelet gpu-3"]
    assert {name: site.entry(name).outcome for name in HOSTS[:3]} == {
        "gpu-1": Outcome.DONE, "gpu-2": Outcome.FAILED, "gpu-3": Outcome.DONE
    }  # fmt: skip
    assert site.spec("gpu-2")["quarantine"]["why"] == f"driver upgrade to {NEW} failed: {BROKEN}"
    assert site.spec("gpu-1") == site.spec("gpu-3") == site.spec("gpu-4") == {}
    assert "This run stops before its next batch: 1 failed (gpu-2) and driver_upgrade_max_failures is 1" in said
    assert f"gpu-2 FAILED driver {OLD} -> {NEW}: {BROKEN}; it stays out of work" in said
    assert "gpu-4 untouched: the run ended before it" in said
    assert "to go on: mend what gpu-2 failed of, then ansible-playbook" in said
    assert "-l gpu-2,gpu-4" in said
    assert f"to go back: set fleet_nvidia_driver_version: {OLD} for gpu-1,gpu-2,gpu-3, then" in said
