"""playbooks/rotate_encryption_key.yml as far as it goes without a host: what it asks for and refuses; its order.

Only here: that the playbook itself refuses each wrong call before it leaves anything.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpu_burnin.fleet.driver_upgrade import book, lock

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PLAYBOOK = ROOT / "playbooks/rotate_encryption_key.yml"
LOCKED = book.Lock("anna", "2026-11-22T17:00:00Z", lock.Owner("elsewhere", "1b4e", 40, 400), "restores etcd")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """One API server, which must not be asked."""
    host = {"ansible_host": "198.51.100.1", "ansible_connection": "local"}
    variables = {"fleet_name": "lab", "fleet_state_dir": str(tmp_path / "state")}
    path = tmp_path / "hosts.yml"
    children = {"kube_apiserver": {"hosts": {"api-1": host}}}
    path.write_text(yaml.safe_dump({"all": {"children": children, "vars": variables}}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-e", "confirm=yes"],
        ["-e", "confirm=rotate", "--check"],
        ["-e", "confirm=rotate", "--limit", "api-1,localhost"],
    ],
)
def test_what_it_refuses(inventory: Path, tmp_path: Path, ansible_playbook: Playbook, options: list[str]) -> None:
    done = ansible_playbook(str(PLAYBOOK), *options, inventory=str(inventory))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0, done.stdout
    assert "add `-e confirm=rotate`, and leave out `--check` and `--limit`" in said and "Nothing was done." in said
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
def test_while_another_operation_runs_nothing_is_done(
    inventory: Path, tmp_path: Path, ansible_playbook: Playbook
) -> None:
    folder = tmp_path / "state/etcd-lock-main"
    folder.mkdir(parents=True)
    book.write_lock(folder, LOCKED)
    done = ansible_playbook(str(PLAYBOOK), "-e", "confirm=rotate", inventory=str(inventory))
    assert done.returncode != 0
    assert "anna restores etcd since 2026-11-22T17:00:00Z" in " ".join((done.stdout + done.stderr).split())
    assert book.read_lock(folder) == LOCKED


def test_the_steps_are_in_kubernetes_order_and_no_server_restarts() -> None:
    plays = [play for play in yaml.safe_load(PLAYBOOK.read_text()) if play["hosts"] == "kube_apiserver"]
    assert [task["name"] for task in plays[0]["tasks"][:-1]] == [
        "Refuse a clock that differs",
        "See that it can be done to its end",
    ]
    tasks = [(play["tasks"][-1]["ansible.builtin.import_role"]["tasks_from"], play["tasks"][-1]) for play in plays]
    done = [task.get("vars", {}).get("kube_apiserver_rotate_step", name) for name, task in tasks]
    assert done == [
        "add", "rotate_read", "lead", "rotate_read", "rotate_rewrite", "drop", "rotate_read",
    ]  # fmt: skip
    brought = [play["tasks"] for play, (name, _) in zip(plays, tasks, strict=True) if name == "rotate_read"]
    assert all(first["ansible.builtin.import_role"]["tasks_from"] == "rotate_bring" for first, _ in brought)
    # How it ends with the first failure: test_one_after_the_other.py.
    assert all(play["any_errors_fatal"] for play in plays)
    # A server reads the file anew by itself; its change is no reason to restart it.
    (run,) = yaml.safe_load((ROOT / "roles/kube_apiserver/tasks/run.yml").read_text())
    assert "/etc/kubernetes/encryption.yaml" not in run["muster.fleet.kube_health"]["restart_after"]
    unit = (ROOT / "roles/kube_apiserver/templates/kube-apiserver.service.j2").read_text()
    assert "--encryption-provider-config-automatic-reload=true" in unit


def test_the_page_names_what_there_is() -> None:
    page = (ROOT / "docs/operations/encryption-key.md").read_text()
    assert set(re.findall(r"-e (\w+)=", page)) == {"confirm", "however_young"}
    for path in re.findall(r"(?:playbooks|tests/\w+(?:/\w+)?)/\w+\.\w+", page):
        assert (ROOT / path).exists(), path
