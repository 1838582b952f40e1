"""Commands of docs/operations/certificates.md that need no host: CA keys under Ansible Vault, ends of certificates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.runbooks import ROOT, commands

Playbook = Callable[..., subprocess.CompletedProcess[str]]
PAGE = [command.line for command in commands(ROOT / "docs/operations/certificates.md")]
ALL, BUT_THE_KUBELETS = (line for line in PAGE if line.startswith("ansible-vault encrypt"))
(ENDS,) = (line for line in PAGE if "openssl" in line)
VAULTED = b"$ANSIBLE_VAULT;"


def shell(line: str, folder: Path) -> str:
    """What a line of the page says, with the fleet's folder and the file of the password."""
    line = line.replace("STATE", str(folder / "state")).replace(" encrypt", " encrypt --vault-password-file password")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fleet(tmp_path: Path) -> Callable[..., list[str]]:
    """A fleet of one host, as words for ansible-playbook: certificates, and the kubelet CA's key as a host gets it."""
    key = {"dest": str(tmp_path / "host/kubelet-ca.key"), "src": f"{tmp_path}/state/pki/kubelet/ca.key", "mode": "0600"}
    bring = {"directories": [{"path": str(tmp_path / "host"), "mode": "0700"}], "files": [{**key, "sensitive": True}]}
    play = {
        "hosts": "localhost", "gather_facts": False, "roles": ["muster.fleet.fleet", "muster.fleet.pki"],
        "tasks": [{"muster.fleet.file_set": bring}],
    }  # fmt: skip
    host = {"api-1": {"ansible_host": "198.51.100.1"}}
    variables = {
        "fleet_name": "lab", "fleet_state_dir": str(tmp_path / "state"), "fleet_service_cidr": "198.51.101.0/24",
        "fleet_pod_cidr": "198.51.102.0/24",
    }  # fmt: skip
    groups = {"etcd": {"hosts": host}, "kube_apiserver": {"hosts": host}, "etcd_events": {}}
    (tmp_path / "play.yml").write_text(json.dumps([play]))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    (tmp_path / "password").write_text("correct horse")

    def words(address: str = "198.51.100.2", *, password: bool = False) -> list[str]:
        given = ["--vault-password-file", "password"] if password else []
        return ["play.yml", "-e", f"fleet_api_address={address}", *given]

    return words


@pytest.mark.slow
@pytest.mark.parametrize("encrypt", [ALL, BUT_THE_KUBELETS], ids=["all", "but the kubelets'"])
def test_ends_of_certificates_are_shown_and_keys_of_cas_may_be_under_vault(
    tmp_path: Path, fleet: Callable[..., list[str]], ansible_playbook: Playbook, encrypt: str
) -> None:
    def run(*address: str, password: bool = False) -> subprocess.CompletedProcess[str]:
        return ansible_playbook(*fleet(*address, password=password), inventory="hosts.yml")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}

    made = run()
    assert made.returncode == 0, made.stdout + made.stderr
    shown = shell(ENDS, tmp_path).splitlines()
    assert len(shown) == len(list((tmp_path / "state/pki").glob("*/*.crt"))) > 10
    assert all(line.startswith("notAfter=") and line.endswith(".crt") for line in shown)

    pki, plain = tmp_path / "state/pki", (tmp_path / "host/kubelet-ca.key").read_bytes()
    kubelet = pki / "kubelet/ca.key"
    shell(encrypt, tmp_path)
    keys = sorted(pki.glob("*/ca.key"))
    assert len(keys) >= 6
    open_ones = {path for path in keys if not path.read_bytes().startswith(VAULTED)}
    assert open_ones == (set() if encrypt == ALL else {kubelet})
    before = files()

    # Without the password: nothing where the kubelets' key is under it too; else all but to issue.
    again = run()
    assert (again.returncode == 0) is (encrypt != ALL), again.stdout + again.stderr
    refused = run("198.51.100.3")
    assert refused.returncode != 0 and "vault secrets" in refused.stdout + refused.stderr
    assert files() == before

    issued = run("198.51.100.3", password=True)
    assert issued.returncode == 0, issued.stdout + issued.stderr
    assert {path.stem for path, data in files().items() if before[path] != data} == {"apiserver-api-1"}
    shell("openssl verify -CAfile STATE/pki/kubernetes/ca.crt STATE/pki/kubernetes/apiserver-api-1.crt", tmp_path)
    assert (tmp_path / "host/kubelet-ca.key").read_bytes() == plain
