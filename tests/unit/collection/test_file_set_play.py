"""muster.fleet.file_set through the real ansible-playbook.

Only here: that module and action together hide secrets, restart what changed and change nothing twice.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Playbook = Callable[..., subprocess.CompletedProcess[str]]

SECRET = "hunter2-very-secret"
TEMPLATE = """\
# {{ ansible_managed }}
{% for item in x_list %}
item {{ item }}
{% endfor %}
{% include 'part.j2' %}
"""


def write_role(root: Path, arguments: dict[str, object], module: str = "file_set") -> None:
    for folder in ("tasks", "templates", "files"):
        (root / "roles/x" / folder).mkdir(parents=True, exist_ok=True)
    (root / "roles/x/templates/a.j2").write_text(TEMPLATE)
    (root / "roles/x/templates/part.j2").write_text("host {{ inventory_hostname }}\n")
    (root / "roles/x/files/b.bin").write_bytes(b"\x00\xff" * 200_000)
    (root / "roles/x/files/key").write_text(SECRET)
    task = {"name": "Place", f"muster.fleet.{module}": arguments}
    (root / "roles/x/tasks/main.yml").write_text(yaml.safe_dump([task]))
    variables = {"x_list": [1, 2], "x_secret": SECRET}
    play = {"hosts": "all", "gather_facts": False, "vars": variables, "roles": ["x"]}
    (root / "play.yml").write_text(yaml.safe_dump([play]))


def arguments_for(out: Path) -> dict[str, object]:
    return {
        "directories": [{"path": str(out), "mode": "0750"}],
        "files": [
            {"dest": str(out / "a"), "template": "a.j2", "mode": "0644", "validate": "grep -q item %s"},
            {"dest": str(out / "b"), "src": "b.bin", "mode": "0600"},
            {"dest": str(out / "c"), "content": "{{ x_secret }}", "mode": "0600", "sensitive": True},
            {"dest": str(out / "d"), "src": "key", "mode": "0600", "sensitive": True},
        ],
        "absent": [str(out / "old")],
    }


@pytest.mark.slow
def test_converges_and_hides_secrets(tmp_path: Path, ansible_playbook: Playbook) -> None:
    out = tmp_path / "out"
    write_role(tmp_path, arguments_for(out))
    check = ansible_playbook("play.yml", "--check", "--diff")
    assert check.returncode == 0, check.stdout + check.stderr
    assert "+item 2" in check.stdout
    assert "sensitive content changed" in check.stdout
    assert not out.exists()
    # Twice in one run: the second changes nothing.
    first = ansible_playbook("play.yml", "play.yml", "--diff", "-vvv")
    assert first.returncode == 0, first.stdout + first.stderr
    assert "ok=2 " in first.stdout and "changed=1 " in first.stdout
    assert SECRET not in first.stdout + first.stderr + check.stdout
    assert (out / "a").read_text() == "# Ansible managed\nitem 1\nitem 2\nhost localhost\n"
    assert (out / "b").read_bytes() == b"\x00\xff" * 200_000
    assert (out / "c").read_text() == (out / "d").read_text() == SECRET
    assert "changed=0" in ansible_playbook("play.yml", "--check", "--diff").stdout


@pytest.mark.slow
def test_a_service_has_the_same_files(tmp_path: Path, ansible_playbook: Playbook) -> None:
    out = tmp_path / "out"
    write_role(tmp_path, {**arguments_for(out), "packages": [], "units": []}, "service")
    done = ansible_playbook("play.yml", "play.yml", "--diff", "-vvv")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok=2 " in done.stdout and "changed=1 " in done.stdout and "+item 2" in done.stdout
    assert SECRET not in done.stdout + done.stderr
    assert (out / "c").read_text() == (out / "d").read_text() == SECRET
    write_role(tmp_path, {"unit": []}, "service")
    refused = ansible_playbook("play.yml")
    known = "absent, directories, files, files_first, packages, units"
    assert f"service has no option 'unit'; known: {known}" in refused.stdout + refused.stderr


REFUSED: tuple[tuple[dict[str, object], str], ...] = (
    ({"content": "x", "mode": "0644", "validate": "false %s"}, "nothing was placed, because 'false %s'"),
    ({"template": "none.j2", "mode": "0644"}, "there is no 'none.j2' in the role's templates folder"),
    ({"src": "none", "mode": "0644"}, "there is no 'none' in the role's files folder"),
    ({"content": "x", "mode": 420}, "mode must be a quoted string"),
    ({"content": "x"}, "has no mode"),
    ({"content": "x", "src": "key", "mode": "0644"}, "give exactly one of"),
    ({"mode": "0644"}, "give exactly one of"),
    ({"content": "x", "mode": "0644", "sensitve": True}, "unknown key 'sensitve'"),
    ({"content": {"a": 1}, "mode": "0644"}, "content must be text"),
)


@pytest.mark.slow
def test_refusals_name_host_and_file(tmp_path: Path, ansible_playbook: Playbook) -> None:
    """One play in which every host has another mistake."""
    entries = {f"host-{index}": entry for index, (entry, _) in enumerate(REFUSED)}
    out = tmp_path / "out"
    write_role(tmp_path, {"files": ["{{ x_entry | combine({'dest': x_out ~ '/' ~ inventory_hostname}) }}"]})
    hosts = {name: {"x_entry": entry, "x_out": str(out)} for name, entry in entries.items()}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    done = ansible_playbook("play.yml", inventory="hosts.yml")
    assert done.returncode == 2
    said = dict(re.findall(r"^fatal: \[(\S+)\]: FAILED! => (.*)$", done.stdout, re.MULTILINE))
    assert set(said) == set(entries), done.stdout + done.stderr
    for name, (_, message) in zip(entries, REFUSED, strict=True):
        told = json.loads(said[name])["msg"]
        assert message in told, (name, told)
        # What the controller refuses names the host as the inventory does, what the host refuses as it does itself.
        assert f"{name}: {out}/{name}: " in told or f"{os.uname().nodename}: {out}/{name}: " in told, (name, told)
    assert not out.exists()
