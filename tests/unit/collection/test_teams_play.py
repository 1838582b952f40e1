"""What the roles make of teams and users: certificates, kubeconfigs, the admitter's configuration. On no host.

Only here: the expressions in the roles' variables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.paths import REPOSITORY
from tests.support.playbook_fixtures import Playbook

TEAMS = {"vision": {"gpus": 16, "members": ["alice"]}, "audio": {"gpus": 8, "dedicated": True}}
PRINTED = {
    "leaves": "{{ __pki_leaves | selectattr('o', 'defined') | selectattr('o', 'equalto', 'muster:users') }}",
    "files": "{{ __kube_apiserver_user_kubeconfigs }}",
    "former": "{{ __kube_apiserver_former_kubeconfigs }}",
    "jobs": "{{ __admitter_jobs }}",
}


@pytest.fixture
def read(ansible_playbook: Playbook, tmp_path: Path) -> Any:
    """The values of these expressions with the roles' variables and some of the fleet's."""
    state = tmp_path / "state"
    (state / "kubeconfig").mkdir(parents=True)
    for name in ("admin", "user-alice", "user-eve"):
        (state / f"kubeconfig/{name}.kubeconfig").touch()
    inventory = tmp_path / "hosts.yml"
    gpu = {"ansible_connection": "local", "gpu_burnin_expect": {"gpus": 8, "model": "h100-sxm5-80gb"}}
    groups = {"kube_apiserver": {"hosts": {"api-1": {}}}, "gpu_nodes": {"hosts": {"gpu-1": gpu, "gpu-2": gpu}}}
    inventory.write_text(yaml.safe_dump({"all": {"children": groups}}))

    def run(**fleet: Any) -> dict[str, Any]:
        out = tmp_path / "out.json"
        files = [str(REPOSITORY / f"roles/{role}/vars/main.yml") for role in ("pki", "kube_apiserver", "admitter")]
        own = {
            "fleet_name": "site",
            "fleet_state_dir": str(state),
            "fleet_api_address": "10.0.0.1",
            "fleet_api_port": 6443,
            "fleet_dns_domain": "cluster.local",
            "fleet_service_cidr": "10.1.0.0/16",
            "pki_leaf_days": 90,
            "kube_apiserver_pki_dir": str(state / "pki"),
            "kube_apiserver_kubeconfig_dir": str(state / "kubeconfig"),
            "admitter_jobs": {},
        }
        task = {"ansible.builtin.copy": {"content": "{{ printed | to_json }}", "dest": str(out), "mode": "0600"}}
        play = {
            "hosts": "api-1",
            "gather_facts": False,
            "vars_files": files,
            "vars": {**own, **fleet, "printed": PRINTED},
            "tasks": [task],
        }
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play], width=1000))
        done = ansible_playbook("play.yml", inventory=str(inventory))
        assert done.returncode == 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    return run


@pytest.mark.slow
def test_users_get_certificates_and_kubeconfigs_and_the_admitter_knows_the_teams(read: Any, tmp_path: Path) -> None:
    found = read(fleet_users=["alice", "bob"], fleet_teams=TEAMS)
    (leaf,) = found["leaves"]
    assert (leaf["name"], leaf["ca"], leaf["cn"], leaf["usages"]) == (
        "user-{host}",
        "kubernetes",
        "{host}",
        ["clientAuth"],
    )
    assert leaf["for_each"] == {"alice": "", "bob": ""}
    folder = tmp_path / "state"
    assert [one["dest"] for one in found["files"]] == [
        f"{folder}/kubeconfig/user-{name}.kubeconfig" for name in ("alice", "bob")
    ]
    assert {one["mode"] for one in found["files"]} == {"0600"}
    user = yaml.safe_load(found["files"][0]["content"])["users"][0]
    assert user == {
        "name": "alice",
        "user": {
            "client-certificate": f"{folder}/pki/kubernetes/user-alice.crt",
            "client-key": f"{folder}/pki/kubernetes/user-alice.key",
        },
    }
    assert found["former"] == [f"{folder}/kubeconfig/user-eve.kubeconfig"]
    assert found["jobs"] == {
        "jobs": {
            "queues": {name: {"level": "standard", "gang_test": False} for name in TEAMS},
            "dedicated": {"audio": {"h100-sxm5-80gb": 8}},
        }
    }


@pytest.mark.slow
def test_without_teams_and_users_there_is_nothing_of_them(read: Any) -> None:
    found = read()
    assert (found["leaves"][0]["for_each"], found["files"], found["jobs"]) == ({}, [], {})
    assert read(fleet_users=[], fleet_teams={})["jobs"] == {}
