"""The variables of host classes are exactly those of Ansible's VariableManager, in each play and for every host."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
from ansible import constants
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.vars.manager import VariableManager
from ansible_collections.muster.fleet.plugins.plugin_utils.host_variables import FleetVariables
from ansible_collections.muster.fleet.plugins.plugin_utils.progress import EVERY_S, Progress

HOSTS = """\
all:
  vars: {everywhere: 1, both: all}
  children:
    metal:
      vars: {both: metal, of_group: metal}
      children:
        gpu:
          vars: {ansible_host: "10.0.0.{{ inventory_hostname[-1] }}"}
          hosts:
            gpu-[1:5]:
            gpu-6: {ansible_host: 10.1.1.6, both: gpu-6, beaten: host, extra: host, role_beaten: host}
            gpu-7.example.com: {deep: {a: [1, "{{ everywhere }}"]}}
    cpu:
      hosts:
        cpu-1: {both: cpu-1}
        gpu-5: {}
"""
SITE = """\
- hosts: gpu
  gather_facts: false
  vars: {beaten: play, inventory_hostname_short: play}
  roles: [demo]
- hosts: all
  gather_facts: false
- hosts: cpu
  gather_facts: false
  vars_files: ["{{ both }}.yml"]
"""


class Fleet:
    """An inventory with every source of variables, and Ansible's managers of it."""

    def __init__(self, root: Path) -> None:
        files = {
            "inv/hosts.yml": HOSTS,
            "inv/group_vars/gpu.yml": "of_file: gpu\nboth: gpu file\n",
            "inv/host_vars/gpu-2.yml": "both: gpu-2 file\nansible_host: 10.2.2.2\n",
            "host_vars/gpu-3.yml": "both: gpu-3 beside the play\n",
            "group_vars/all.yml": "beside: play\n",
            "roles/demo/defaults/main.yml": "of_role: default\nboth: default\n",
            "roles/demo/vars/main.yml": "role_beaten: role\n",
            "cpu-1.yml": "of_vars_file: 1\n",
            "site.yml": SITE,
        }
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(textwrap.dedent(text))
        self.loader = DataLoader()
        self.loader.set_basedir(str(root))
        self.inventory = InventoryManager(loader=self.loader, sources=[str(root / "inv")])
        self.manager = VariableManager(loader=self.loader, inventory=self.inventory)
        self.manager._extra_vars = {"extra": "command line"}
        self.plays = Playbook.load(
            str(root / "site.yml"), variable_manager=self.manager, loader=self.loader
        ).get_plays()
        self.variables = FleetVariables(self.manager, self.inventory, self.loader)

    def by_class(self, play: Any) -> dict[str, dict[str, Any]]:
        hosts = self.inventory.get_hosts(play.hosts if play else "all")
        scopes = [self.variables.scope(members, play) for members in self.variables.classes(hosts, play)]
        return {host: scope.of(host) for scope in scopes for host in scope.members.hosts}

    def by_ansible(self, play: Any) -> dict[str, dict[str, Any]]:
        hosts = self.inventory.get_hosts(play.hosts if play else "all")
        return {host.name: self.manager.get_vars(play=play, host=host) for host in hosts}


@pytest.fixture
def fleet(tmp_path: Path, ansible_plugins: None) -> Fleet:
    return Fleet(tmp_path)


def test_every_host_has_what_ansible_gives_it_in_every_play(fleet: Fleet) -> None:
    fleet.manager.set_nonpersistent_facts("gpu-4", {"both": "a task", "ansible_host": "10.4.4.4"})
    fleet.manager.set_host_variable("gpu-3", "everywhere", "included")
    for play in (None, *fleet.plays):
        assert fleet.by_class(play) == fleet.by_ansible(play)
    found = fleet.by_class(fleet.plays[0])
    # The comparison has each kind of source in it.
    assert [found[host]["both"] for host in ("gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-6")] == [
        "gpu file", "gpu-2 file", "gpu-3 beside the play", "a task", "gpu-6",
    ]  # fmt: skip
    assert {name: found["gpu-6"][name] for name in ("beaten", "extra", "role_beaten", "of_role", "beside")} == {
        "beaten": "play", "extra": "command line", "role_beaten": "role", "of_role": "default", "beside": "play",
    }  # fmt: skip
    assert fleet.by_class(fleet.plays[2])["cpu-1"]["of_vars_file"] == 1


def test_hosts_that_differ_only_in_their_own_variables_are_one_class(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = fleet.variables.classes(fleet.inventory.get_hosts("gpu"))
    assert sorted(len(members.hosts) for members in classes) == [1, 6]
    asked: list[str] = []
    real = fleet.manager.get_vars

    def get_vars(**where: Any) -> Any:
        asked.append(where["host"].name)
        return real(**where)

    monkeypatch.setattr(fleet.manager, "get_vars", get_vars)
    fleet.by_class(fleet.plays[0])
    assert len(asked) == 2 * len(classes)


def test_merged_dictionaries_are_ansibles_to_merge(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DEFAULT_HASH_BEHAVIOUR", "merge")
    fleet.inventory.groups["gpu"].set_variable("deep", {"b": 2})
    found = fleet.by_class(None)
    assert found == fleet.by_ansible(None)
    assert set(found["gpu-7.example.com"]["deep"]) == {"a", "b"}


def test_progress_speaks_only_of_long_work() -> None:
    said: list[str] = []
    now = [0.0]
    progress = Progress("checked", 7500, said.append, clock=lambda: now[0])
    for second in range(15):
        now[0] = float(second)
        progress.advance(500)
    assert said == [
        "checked 3,000 of 7,500 hosts, about 8 s left",
        "checked 5,500 of 7,500 hosts, about 4 s left",
    ]
    said.clear()
    slow = Progress("probed", 7515, said.append, clock=lambda: now[0])
    for second, hosts in ((30.0, 1), (40.0, 999)):
        now[0] = second
        slow.advance(hosts)
    assert said == ["probed 1 of 7,515 hosts", "probed 1,000 of 7,515 hosts, about 3 min left"]
    said.clear()
    others = Progress("wrote", 40_000, said.append, clock=lambda: now[0], of="encrypted objects")
    now[0] += 60.0
    others.advance(10_000)
    assert said == ["wrote 10,000 of 40,000 encrypted objects, about 3 min left"]
    said.clear()
    dead = Progress("probed", 16, said.append, clock=lambda: now[0])
    now[0] += 10.0
    dead.advance(1)
    assert said == ["probed 1 of 16 hosts"]
    said.clear()
    quick = Progress("checked", 12, said.append, clock=lambda: EVERY_S / 2)
    quick.advance(6)
    quick.advance(6)
    assert said == []
