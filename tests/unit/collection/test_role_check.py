"""Options judged by class of hosts: the findings are those of judging each host alone, for a fraction of the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.template import Templar
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_specs import load_role_specs
from ansible_collections.muster.fleet.plugins.plugin_utils.findings import Findings
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables
from ansible_collections.muster.fleet.plugins.plugin_utils.role_check import RoleCheck
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver

SPEC = """\
argument_specs:
  main:
    options:
      demo_size: {type: int}
      demo_port: {type: int}
      demo_mode: {type: str, choices: [a, b]}
      demo_peers: {type: list, elements: str}
      demo_need: {type: str, required: true}
      demo_unset: {type: str, required: true}
      demo_name: {type: str}
      demo_lookup: {type: int}
"""
DEFAULTS = """\
demo_size: "{{ size_of_host | default(3) }}"
demo_peers: "{{ groups['some'] | map('extract', hostvars, 'ansible_host') | list }}"
demo_name: "{{ inventory_hostname }}-{{ nobody_sets_this if inventory_hostname in broken else 1 }}"
demo_lookup: "{{ lookup('vars', 'of_lookup') }}"
broken: []
of_lookup: 3
"""
HOSTS = """\
all:
  vars: {demo_need: there, ansible_host: "10.0.0.{{ inventory_hostname[-2:] | int }}"}
  children:
    some:
      hosts:
        n-[01:40]:
        n-41: {size_of_host: big}
        n-42: {size_of_host: big}
        n-43: {size_of_host: "{{ demo_port }}", demo_port: none}
        n-44: {demo_mode: c, demo_port: "{{ missing }}"}
        n-45: {of_lookup: many}
        n-46: {broken: [n-46, n-47]}
        n-47: {broken: [n-46, n-47], demo_size: "{{ 1"}
    others:
      vars: {demo_mode: d}
      hosts:
        o-[1:3]:
        n-40:
"""
SITE = """\
- {hosts: all, gather_facts: false, roles: [demo]}
- {hosts: some, gather_facts: false, roles: [demo], vars: {demo_mode: e}}
- {hosts: n-41, gather_facts: false, roles: [{role: demo, demo_port: x}]}
"""


class Alone(FleetVariables):
    """Each host by itself, with the variables that Ansible gives it."""

    def _is_known_further(self, host: Any) -> bool:
        return True


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, ansible_plugins: None) -> Path:
    root = tmp_path_factory.mktemp("fleet")
    role = root / "roles/demo"
    for path, text in (
        (root / "hosts.yml", HOSTS),
        (root / "site.yml", SITE),
        (role / "meta/argument_specs.yml", SPEC),
        (role / "defaults/main.yml", DEFAULTS),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def judge(root: Path, kind: type[FleetVariables], monkeypatch: pytest.MonkeyPatch) -> tuple[set[Problem], int, int]:
    """The problems, how many hosts were reported done, and how many templates were rendered."""
    loader = DataLoader()
    loader.set_basedir(str(root))
    inventory = InventoryManager(loader=loader, sources=[str(root / "hosts.yml")])
    manager = VariableManager(loader=loader, inventory=inventory)
    HostVars(inventory, manager, loader)
    plays = Playbook.load(str(root / "site.yml"), variable_manager=manager, loader=loader).get_plays()
    resolver, findings, done, rendered = Resolver(Templar(loader=loader)), Findings(), [], []
    real = resolver.template
    monkeypatch.setattr(resolver, "template", lambda value, raw: (rendered.append(1), real(value, raw))[1])
    check = RoleCheck(kind(manager, inventory, loader), resolver, load_role_specs([root / "roles"]), findings)
    for play in plays:
        check.add_play(play, inventory.get_hosts(play.hosts))
    check.run(done.append)
    found = {Problem(p.message, p.fix, tuple(sorted(p.hosts)), where=p.where) for p in findings.problems()}
    return found, sum(done), len(rendered)


def test_the_findings_are_those_of_each_host_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, done, _ = judge(root, FleetVariables, monkeypatch)
    alone, alone_done, _ = judge(root, Alone, monkeypatch)
    assert found == alone
    assert done == alone_done == 50
    said = {problem.message: problem.hosts for problem in found}
    assert said["role demo needs demo_unset, which is not set"] == tuple(
        sorted([*(f"n-{n:02d}" for n in range(1, 48)), "o-1", "o-2", "o-3"])
    )
    wrong = {hosts for message, hosts in said.items() if "demo_size" in message and "'big'" in message}
    assert wrong == {("n-41", "n-42")}
    assert next(hosts for message, hosts in said.items() if "demo_lookup" in message) == ("n-45",)
    assert next(hosts for message, hosts in said.items() if "nobody_sets_this" in message) == ("n-46", "n-47")


def test_equal_inputs_are_templated_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, rendered = judge(root, FleetVariables, monkeypatch)
    # demo_name and demo_lookup for each of 50 hosts (what a lookup reads cannot be known, so in each play it is anew);
    # demo_size, demo_peers and the faults for none of them twice.
    assert 50 + 50 + 47 + 1 <= rendered < 50 + 50 + 47 + 1 + 20
