"""muster.fleet.inventory_check through the real ansible-playbook: every kind of bad input, all at once.

Only here: what the check sees through Ansible: variables by their place, limits, tags and vaults.
"""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret

Playbook = Callable[..., subprocess.CompletedProcess[str]]

SITE = """\
- hosts: localhost
  gather_facts: false
  tasks:
    - muster.fleet.inventory_check:
        playbook: "{{ playbook_dir }}/site.yml"
- hosts: etcd
  gather_facts: false
  vars: {demo_size: "{{ demo_wanted_size }}", __kept: 1}
  roles: [muster.fleet.fleet, demo]
- hosts: gpu_nodes
  gather_facts: false
  tasks:
    - ansible.builtin.import_role: {name: demo, tasks_from: other}
"""
SPEC = """\
argument_specs:
  main:
    options:
      demo_size: {type: int, required: true}
      demo_wanted_size: {type: raw}
      demo_urls: {type: dict}
      demo_domain: {type: str}
      demo_token: {type: int, no_log: true}
  other:
    options:
      demo_need: {type: str, required: true}
      demo_choice: {type: str, choices: [a, b]}
"""
DEFAULTS = """\
demo_urls: "{{ groups['etcd'] | muster.fleet.addresses(hostvars) }}"
demo_domain: "{{ fleet_dns_domain }}"
"""
HOSTS: dict[str, dict[str, dict[str, str]]] = {
    "etcd": {f"etcd-{n}": {"ansible_host": f"10.20.0.1{n}"} for n in (1, 2, 3)},
    "etcd_events": {"events-1": {"ansible_host": "10.20.0.21"}},
    "kube_apiserver": {f"api-{n}": {"ansible_host": f"10.20.0.3{n}"} for n in (1, 2)},
    "api_loadbalancer": {"lb-1": {"ansible_host": "10.20.0.41"}},
    "gpu_nodes": {"gpu-1": {"ansible_host": "10.20.0.61", "pod_network_range": "10.64.1.0/24"}},
}
VARIABLES = {
    "fleet_name": "test",
    "fleet_planned_nodes": 10,
    "fleet_state_dir": "/nowhere",
    "fleet_api_address": "10.20.0.41",
    "fleet_pod_cidr": "10.64.0.0/16",
    "fleet_service_cidr": "10.96.0.0/16",
    "demo_wanted_size": "{{ 3 }}",
    "demo_need": "there",
}


class Inventory:
    """A clean inventory to spoil, and the files around it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hosts: dict[str, dict[str, dict[str, str]]] = copy.deepcopy(HOSTS)
        self.variables: dict[str, Any] = dict(VARIABLES)

    def write(self) -> None:
        role = self.root / "roles/demo"
        for folder in ("tasks", "meta", "defaults"):
            (role / folder).mkdir(parents=True)
        for name in ("main", "other"):
            (role / f"tasks/{name}.yml").write_text("- ansible.builtin.meta: noop\n")
        (role / "meta/argument_specs.yml").write_text(SPEC)
        (role / "defaults/main.yml").write_text(DEFAULTS)
        (self.root / "site.yml").write_text(SITE)
        (self.root / "inv/group_vars").mkdir(parents=True)
        groups = {name: {"hosts": hosts} for name, hosts in self.hosts.items()}
        (self.root / "inv/hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
        (self.root / "inv/group_vars/all.yml").write_text(yaml.safe_dump(self.variables))


def test_all_problems_at_once_with_place_and_fix(tmp_path: Path, ansible_playbook: Playbook) -> None:
    bad = Inventory(tmp_path)
    del bad.hosts["etcd"]["etcd-3"]
    bad.hosts["etcd"]["etcd-2"]["fleet_planned_nodes"] = "20"
    bad.hosts["gpu_nodes"]["etcd-1"] = {"pod_network_range": "10.64.2.0/24"}
    bad.hosts["etcd"]["etcd-2"]["ansible_sshcommon_args"] = "-v"
    del bad.variables["demo_need"]
    bad.variables |= {
        "demo_token": "hunter2",
        "demo_choice": "c",
        "demo_wanted_size": "big",
        "demo_domain": "{{ nobody_sets_this }}",
        "fleet_naem": "test",
        "kubelet_never_heard": 1,
        "kubelt_max_pods": 1,
        "rack": 1,
    }
    bad.write()
    (tmp_path / "roles/kubelet/meta").mkdir(parents=True)
    (tmp_path / "roles/kubelet/meta/argument_specs.yml").write_text("argument_specs: {main: {}}")
    done = ansible_playbook("site.yml", "-v", inventory="inv")
    assert done.returncode == 2
    assert re.search(r'"foreign_variables": \{"rack": "inv/group_vars/all.yml:\d+"\}', done.stdout), done.stdout
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("- ")]
    expected = [
        ("", "etcd-1, etcd-2: the group etcd has 2 hosts"),
        (
            "inv/hosts.yml:",
            "etcd-1: is in the exclusive groups etcd and gpu_nodes; a host may be in one of them only: take it",
        ),
        ("inv/hosts.yml:", "etcd-2: fleet_planned_nodes differs from its value on "),
        ("inv/group_vars/all.yml:", "fleet_naem is not a variable of role fleet; did you mean fleet_name?"),
        ("inv/group_vars/all.yml:", "kubelet_never_heard is not a variable of role kubelet"),
        (
            "inv/group_vars/all.yml:",
            "kubelt_max_pods is not a variable of role kubelet; did you mean kubelet_max_pods? If it is",
        ),
        (
            "inv/hosts.yml:",
            "ansible_sshcommon_args is not a variable of Ansible; did you mean ansible_ssh_common_args?",
        ),
        ("site.yml:", "role demo: argument 'demo_size' is of type str and we were unable to convert to int"),
        ("", "demo_domain (inv/group_vars/all.yml:"),
        ("inv/group_vars/all.yml:", "demo_token does not fit its type int (value withheld: it is a secret)"),
        ("", ": role demo needs demo_need, which is not set; set demo_need in the inventory"),
        ("inv/group_vars/all.yml:", "value of demo_choice must be one of: a, b, got: c; correct demo_choice"),
    ]
    for place, text in expected:
        assert any(line.startswith(f"- {place}") and text in line for line in lines), (text, lines)
    assert "'nobody_sets_this' is undefined" in done.stdout + done.stderr
    assert len(lines) == len(expected), lines
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    # Nothing else has run.
    assert done.stdout.count("PLAY [") == 1


@pytest.mark.slow
def test_a_clean_inventory_passes_and_variables_of_the_command_line_count(
    tmp_path: Path, ansible_playbook: Playbook
) -> None:
    inventory = Inventory(tmp_path)
    del inventory.variables["demo_need"]
    inventory.write()
    done = ansible_playbook("site.yml", "--check", "-e", "demo_need=x", inventory="inv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout
    wrong = ("demo_need=x", "demo_ned=x", "fleet_planned_nodes=many")
    done = ansible_playbook("site.yml", *(word for text in wrong for word in ("-e", text)), inventory="inv")
    assert done.returncode == 2
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("- ")]
    assert len(lines) == 2, lines
    assert "demo_ned is not a variable of role demo" in lines[0] and "CLI option" in lines[0], lines
    assert "fleet_planned_nodes" in lines[1] and "many" in lines[1], lines


@pytest.mark.slow
def test_a_limit_leaves_out_only_the_role_options_of_other_hosts(tmp_path: Path, ansible_playbook: Playbook) -> None:
    bad = Inventory(tmp_path)
    bad.hosts["gpu_nodes"]["gpu-1"] |= {"pod_network_range": "nonsense", "demo_choice": "c", "demo_ned": "x"}
    bad.hosts["etcd"]["etcd-1"]["demo_size"] = "big"
    bad.hosts["etcd"]["etcd-2"]["demo_token"] = "two"
    bad.write()
    site, count = re.subn(r"^  vars: .*demo_size.*\n", "", (tmp_path / "site.yml").read_text(), flags=re.MULTILINE)
    assert count == 1
    (tmp_path / "site.yml").write_text(site)
    said = {}
    for limit in ("localhost,etcd-1", "all:localhost"):
        done = ansible_playbook("site.yml", "-l", limit, inventory="inv")
        assert done.returncode == 2
        said[limit] = done.stdout + done.stderr
        assert "gpu-1: pod_network_range 'nonsense' is not an IP range" in said[limit]
        assert "demo_ned is not a variable of role demo" in said[limit]
        assert "etcd-1: role demo: argument 'demo_size' is of type str" in said[limit]
    others = ("value of demo_choice must be one of: a, b, got: c", "demo_token does not fit its type int")
    assert [[text in said[limit] for text in others] for limit in said] == [[False, False], [True, True]]


def test_a_broken_playbook_is_one_sentence(tmp_path: Path, ansible_playbook: Playbook) -> None:
    Inventory(tmp_path).write()
    play = (tmp_path / "site.yml").read_text().replace("/site.yml", "/absent.yml")
    (tmp_path / "site.yml").write_text(play)
    done = ansible_playbook("site.yml", inventory="inv")
    assert done.returncode == 2
    assert "absent.yml cannot be loaded" in done.stdout + done.stderr


@pytest.mark.slow
def test_a_file_that_cannot_be_read_is_the_only_problem(tmp_path: Path, ansible_playbook: Playbook) -> None:
    """What it would have said is missing, which is not said."""
    bad = Inventory(tmp_path)
    del bad.hosts["etcd"]["etcd-3"]
    bad.write()
    (tmp_path / "inv/group_vars/gpu_nodes.yml").write_text("a: {{ b }}\n")
    done = ansible_playbook("site.yml", inventory="inv")
    assert done.returncode == 2
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("- ")]
    assert lines == [
        "- inv/group_vars/gpu_nodes.yml:1: this line has a value that begins with {{ without quotes; "
        'write NAME: "{{ ... }}"'
    ]


@pytest.mark.slow
def test_an_encrypted_value_is_checked_and_not_shown(tmp_path: Path, ansible_playbook: Playbook) -> None:
    inventory = Inventory(tmp_path)
    del inventory.variables["demo_need"]
    inventory.write()
    secret = VaultSecret(b"right")
    (tmp_path / "password").write_text("right")
    withheld = "role demo: demo_size does not fit its type int (value withheld: it is a secret)"
    for text, expected in (("8", ""), ("hunter2", withheld)):
        lines = VaultLib([("default", secret)]).encrypt(text, secret).decode().splitlines()
        value = "demo_need: there\ndemo_wanted_size: !vault |\n" + "".join(f"  {line}\n" for line in lines)
        (tmp_path / "inv/group_vars/etcd.yml").write_text(value)
        done = ansible_playbook("site.yml", "--vault-password-file", "password", "-e", "demo_need=x", inventory="inv")
        said = done.stdout + done.stderr
        assert done.returncode == (2 if expected else 0), said
        assert expected in said
        assert "hunter2" not in said
    done = ansible_playbook("site.yml", "-e", "demo_need=x", inventory="inv")
    assert "demo_wanted_size is encrypted with Ansible Vault, and no password was given" in done.stdout + done.stderr
