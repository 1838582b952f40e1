"""Where the verify of each role runs in `make test`: in the lab, or on hosts of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.integration import role_verify
from tools.molecule import OWN_HOSTS, roles_in_lab

ROOT = Path(__file__).resolve().parents[3]
ROLES = roles_in_lab()
SCENARIOS = sorted(path.parents[2].name for path in ROOT.glob("roles/*/molecule/default/molecule.yml"))


def test_every_role_with_a_scenario_is_shown_in_the_lab_or_on_hosts_of_its_own() -> None:
    assert len(SCENARIOS) > 20
    assert sorted([*ROLES, *OWN_HOSTS]) == SCENARIOS


def test_each_role_with_hosts_of_its_own_has_a_reason() -> None:
    assert [role for role, why in OWN_HOSTS.items() if len(why.split()) < 5] == []


def test_site_brings_each_role_that_is_shown_in_the_lab() -> None:
    """A verify that finds nothing to look at could not fail."""
    site = (ROOT / "site.yml").read_text()
    brought = set(re.findall(r"name: muster\.fleet\.(\w+)$", site, re.MULTILINE))
    assert set(ROLES) - brought == set()


def values_of_the_scenario(role: str) -> set[str]:
    """Names of its hosts, and addresses and ports of its inventory: another inventory has others."""
    hosts: set[str] = set()
    numbers: set[str] = set()
    for path in (ROOT / "tests/molecule/inventory.yml", ROOT / f"roles/{role}/molecule/default/inventory.yml"):
        fleet = yaml.safe_load(path.read_text())["all"]
        groups = [fleet, *fleet.get("children", {}).values()]
        hosts |= {host for group in groups for host in (group.get("hosts") or {})}
        addresses = [one["ansible_host"] for group in groups for one in (group.get("hosts") or {}).values() if one]
        ports = [value for name, value in fleet["vars"].items() if name.endswith("_port") and isinstance(value, int)]
        numbers |= {str(number) for number in [*addresses, *ports]}
    return hosts | numbers


@pytest.mark.parametrize("role", ROLES)
def test_a_verify_of_the_lab_types_no_value_of_its_scenario(role: str) -> None:
    text = (ROOT / f"roles/{role}/molecule/default/verify.yml").read_text()
    typed = {one for one in values_of_the_scenario(role) if re.search(rf"(?<![\w.-]){re.escape(one)}(?![\w.-])", text)}
    assert typed == set()


def test_the_values_of_a_scenario_are_found() -> None:
    found = values_of_the_scenario("cluster_dns")
    assert {"api-1", "198.18.21.31", "7443", "12379"} <= found


def test_a_verify_that_fails_ends_with_what_its_task_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    fleet: Any = SimpleNamespace(lab=SimpleNamespace(state=tmp_path))
    says = "print('TASK [Look]\\nfatal: [api-1]: FAILED! =>\\nmsg: no key'); raise SystemExit({})"
    monkeypatch.setattr(role_verify, "command", lambda role: [sys.executable, "-c", says.format(2)])
    with pytest.raises(pytest.fail.Exception, match=r"^time_sync, from .*log:\nfatal: .*\nmsg: no key"):
        role_verify.verify(fleet, "time_sync")
    monkeypatch.setattr(role_verify, "command", lambda role: [sys.executable, "-c", says.format(0)])
    role_verify.verify(fleet, "time_sync")
