"""The inventories of the checkout fit the roles: what site.yml checks first finds no problem in them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Playbook = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "inventory/example"
CHECK = f"""\
- hosts: localhost
  gather_facts: false
  tasks:
    - muster.fleet.inventory_check:
        playbook: {ROOT}/site.yml
"""


@pytest.fixture
def check(tmp_path: Path, ansible_playbook: Playbook, monkeypatch: pytest.MonkeyPatch) -> Playbook:
    """Runs the inventory check of site.yml alone on an inventory of the checkout."""
    (tmp_path / "check.yml").write_text(CHECK)
    # The lab's inventory reads the checksums of the lab's cache, which a fresh checkout does not have yet.
    sums = tmp_path / "cache/bin/current/SHA256SUMS"
    sums.parent.mkdir(parents=True)
    sums.write_text((EXAMPLE / "SHA256SUMS.txt").read_text() + f"{'0' * 64}  labtool.tar\n")
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MUSTER_LAB_STATE", str(tmp_path / "state"))

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return ansible_playbook("check.yml", *arguments, inventory=str(ROOT / "inventory" / name))

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["example", "lab"])
def test_the_inventory_has_no_problem(check: Playbook, name: str) -> None:
    done = check(name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed=0" in done.stdout
    # A file of the folder that Ansible takes for a part of the inventory, and cannot read, would be a warning.
    assert "parse" not in done.stderr.lower(), done.stderr


@pytest.mark.slow
def test_the_check_looks_at_the_example(check: Playbook) -> None:
    """The URLs that roles make of a wrong address fail too, and are not told again."""
    done = check("example", "-e", "fleet_planned_nodes=1", "-e", "fleet_api_address=198.51.100.41:6443")
    assert done.returncode == 2
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("- ")]
    assert len(lines) == 2, lines
    assert any("fleet_planned_nodes is 1, but the inventory has 6 nodes" in line for line in lines), lines
    assert any("fleet_api_address '198.51.100.41:6443' is neither an IP address" in line for line in lines), lines


def test_the_example_documents_every_variable_of_the_fleet() -> None:
    spec = yaml.safe_load((ROOT / "roles/fleet/meta/argument_specs.yml").read_text())
    text = "".join(path.read_text() for path in EXAMPLE.rglob("*.yml"))
    missing = [name for name in spec["argument_specs"]["variables"]["options"] if name not in text]
    assert missing == []


def test_what_the_example_has_commented_out_is_the_default() -> None:
    specs = [yaml.safe_load(path.read_text()) for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")]
    entries = [entry["options"] for spec in specs for entry in spec["argument_specs"].values()]
    options = {name: option for entry in entries for name, option in entry.items()}
    text = "".join(path.read_text() for path in (EXAMPLE / "group_vars").glob("*.yml"))
    shown = dict(re.findall(r"^# ((?!ansible_)[a-z0-9_]+): (.+)$", text, re.MULTILINE))
    assert shown
    assert sorted(set(shown) - set(options)) == []
    fixed = {name for name in shown if "{{" not in str(options[name].get("default"))}
    assert {name: yaml.safe_load(shown[name]) for name in fixed} == {name: options[name]["default"] for name in fixed}


def test_no_checksum_of_the_example_fits_a_file() -> None:
    """Somebody who forgets to replace them must be told, and not get somebody else's binaries."""
    lines = [line for line in (EXAMPLE / "SHA256SUMS.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all(line.startswith("0" * 64 + "  ") for line in lines)
