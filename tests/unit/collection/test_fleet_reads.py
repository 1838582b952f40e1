"""What is made of all hosts' variables reads each host a few times, however many there are.

Each look into Ansible's hostvars puts a host's variables together anew. Counted are looks, and not seconds. The screen
at the end: test_large_fleet_summary.py. That no host does such a thing for itself: test_fleet_walks.py.
"""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager

from tests.lab.paths import REPOSITORY

NODES = 60
FILTERS = "ansible_collections.muster.fleet.plugins.filter"
# Expressions that one host evaluates for all: where they stand, and how often each host may be looked at.
LOOKS = {
    ("node_admission", "__node_admission_nodes"): 2,
    ("node_admission", "__node_admission_open"): 1,
    ("node_admission", "__node_admission_system_identities"): 0,
    # By the jobs of all hosts and of GPUs, and to know which of these have an exporter.
    ("fleet_monitoring", "__fleet_monitoring_target_files"): 3,
    ("kueue", "tasks/teams.yml muster.fleet.teams nodes"): 1,
    ("", "site.yml muster.fleet.ssh_probe hosts"): 1,
}


class Looked(HostVars):
    """Hostvars that count."""

    looks: Counter[str]

    def raw_get(self, host_name: str) -> Any:
        self.looks[host_name] += 1
        return super().raw_get(host_name)


@pytest.fixture
def hostvars(tmp_path: Path, ansible_plugins: None) -> Looked:
    def addressed(names: list[str], network: int) -> dict[str, Any]:
        return {name: {"ansible_host": f"198.18.{network}.{place}"} for place, name in enumerate(names, 1)}

    nodes = addressed([f"gpu-{number}" for number in range(1, NODES + 1)], 1)
    for place, variables in enumerate(nodes.values()):
        variables |= {"pod_network_range": f"10.1.{place}.0/24", "nvidia_dcgm_exporter_version": "4.2"}
    groups = {name: {"hosts": hosts} for name, hosts in {
        "etcd": addressed(["etcd-1"], 2), "kube_apiserver": addressed(["api-1"], 3),
        "monitoring": addressed(["mon-1"], 4), "gpu_nodes": nodes,
    }.items()}  # fmt: skip
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"children": groups}}))
    loader = DataLoader()
    loader.set_basedir(str(tmp_path))
    inventory = InventoryManager(loader=loader, sources=[str(tmp_path / "hosts.json")])
    made = Looked(inventory, VariableManager(loader=loader, inventory=inventory), loader)
    made.looks = Counter()
    return made


def expression(role: str, name: str) -> str:
    """The text of the expression: a variable of the role, or what a task gives its module (FILE MODULE OPTION)."""
    if " " not in name:
        return f"{{{{ {name} }}}}"
    file, module, option = name.split()
    parts = yaml.safe_load((REPOSITORY / ("roles" if role else "") / role / file).read_text())
    tasks = [task for part in parts for task in part.get("tasks", [part])]
    (text,) = (task[module][option] for task in tasks if option in task.get(module, {}))
    return str(text)


@pytest.mark.slow
@pytest.mark.parametrize(("role", "name"), LOOKS)
def test_each_host_is_looked_at_a_few_times(hostvars: Looked, role: str, name: str) -> None:
    loader, inventory = hostvars._loader, hostvars._inventory
    variables = hostvars._variable_manager.get_vars(host=inventory.get_host("localhost"))
    for part in ("defaults", "vars"):
        for one in ("fleet", role):
            file = REPOSITORY / "roles" / one / part / "main.yml"
            if one and file.is_file():
                variables |= loader.load_from_file(str(file), trusted_as_template=True)
    variables |= {"hostvars": hostvars, "inventory_hostname": "localhost", "fleet_state_dir": "/state"}
    templar = Templar(loader=loader, variables=variables)
    # Other tests have imported them as plain modules, and Ansible's loader does not find them then.
    for file in (REPOSITORY / "collections" / Path(*FILTERS.split("."))).glob("[a-z]*.py"):
        for short, function in importlib.import_module(f"{FILTERS}.{file.stem}").FilterModule().filters().items():
            templar._engine.environment.filters[f"muster.fleet.{short}"] = function
    templar.template(trust_as_template(expression(role, name)))
    nodes = {host: looks for host, looks in hostvars.looks.items() if host.startswith("gpu-")}
    assert len(nodes) == (NODES if LOOKS[role, name] else 0)
    assert max(nodes.values(), default=0) <= LOOKS[role, name], hostvars.looks.most_common(3)
