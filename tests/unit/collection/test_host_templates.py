"""Templates of thousands of hosts: compiled once, with the values that Ansible gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible._internal._templating._jinja_bits import AnsibleEnvironment
from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from ansible_collections.muster.fleet.plugins.filter.host_options import host_options
from ansible_collections.muster.fleet.plugins.module_utils.host import endpoints
from ansible_collections.muster.fleet.plugins.plugin_utils.templates import Resolver

HOSTS = """\
all:
  vars:
    ansible_host: "10.0.0.{{ number }}"
    number: "{{ inventory_hostname[2:] | int }}"
    deep: {"list": ["{{ number }}", {"key": "{{ ansible_host }}"}]}
  hosts:
    n-[1:50]:
    n-51: {ansible_host: 10.9.9.9}
"""
FIELDS = {"address": "ansible_host", "what": "deep.list", "none": "nowhere.to.be.found"}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that Ansible compiled."""
    found: list[str] = []
    real = AnsibleEnvironment._compile
    monkeypatch.setattr(AnsibleEnvironment, "_compile", lambda self, *a: (found.append(a[0]), real(self, *a))[1])
    return found


@pytest.fixture
def hostvars(tmp_path: Path, ansible_plugins: None) -> HostVars:
    (tmp_path / "hosts.yml").write_text(HOSTS)
    loader = DataLoader()
    inventory = InventoryManager(loader=loader, sources=[str(tmp_path / "hosts.yml")])
    return HostVars(inventory, VariableManager(loader=loader, inventory=inventory), loader)


@pytest.mark.slow
def test_a_look_at_many_hosts_compiles_each_template_once(hostvars: HostVars, compiled: list[str]) -> None:
    hosts = [f"n-{n}" for n in range(1, 52)]
    plain = endpoints.host_options(hosts, hostvars, FIELDS)
    assert len(compiled) > 4 * 50
    compiled.clear()
    assert host_options(hosts, hostvars, **FIELDS) == plain
    assert len(compiled) == len(set(compiled)) == 4
    assert plain[6] == {"name": "n-7", "address": "10.0.0.7", "what": [7, {"key": "10.0.0.7"}]}
    assert plain[50]["address"] == "10.9.9.9"


def test_a_resolver_gives_each_host_its_own_value_and_error(hostvars: HostVars, compiled: list[str]) -> None:
    resolver = Resolver(Templar(loader=DataLoader()))

    def resolve(**variables: Any) -> Any:
        return resolver.resolve("a", {name: trust_as_template(value) for name, value in variables.items()})

    assert [resolve(a="{{ b }}{{ c }}", b=str(n), c="{{ b }}!") for n in range(9)] == [f"{n}{n}!" for n in range(9)]
    assert len(compiled) == 2
    for _ in range(2):
        with pytest.raises(AnsibleError, match="'c' is undefined"):
            resolve(a="{{ b }}{{ c }}", b="1")
    assert resolve(a="{{ b }}{{ c }}", b="1", c="2") == "12"
    assert len(compiled) == 2


def test_an_overlays_own_syntax_is_not_taken_for_the_usual(hostvars: HostVars) -> None:
    resolver = Resolver(Templar(loader=DataLoader()))
    text = "#jinja2: variable_start_string:'[[', variable_end_string:']]'\n[[ b ]]{{ b }}"
    assert resolver.resolve("a", {"a": trust_as_template("[[ b ]]{{ b }}"), "b": 1}) == "[[ b ]]1"
    assert resolver.resolve("a", {"a": trust_as_template(text), "b": 1}) == "1{{ b }}"
