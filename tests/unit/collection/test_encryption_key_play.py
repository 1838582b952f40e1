"""playbooks/rotate_encryption_key.yml: its order, and its page; what it asks for: test_operations_ask.py."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = ROOT / "playbooks/rotate_encryption_key.yml"


def test_the_steps_are_in_kubernetes_order_and_no_server_restarts() -> None:
    plays = [play for play in yaml.safe_load(PLAYBOOK.read_text()) if play["hosts"] == "kube_apiserver"]
    assert [task["name"] for task in plays[0]["tasks"][:-1]] == [
        "Refuse a clock that differs",
        "Check that the rotation can be completed",
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
