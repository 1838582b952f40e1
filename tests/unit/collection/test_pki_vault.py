"""Commands of docs/operations/certificates.md that need no host: CA keys under Ansible Vault, ends of certificates.

Only here: that the page's commands and Ansible Vault together keep a CA's key from who lacks the password.
"""

from __future__ import annotations

import json
import os
import shutil
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


def words(address: str = "198.51.100.2", *, password: bool = False) -> list[str]:
    """For ansible-playbook."""
    given = ["--vault-password-file", "password"] if password else []
    return ["play.yml", "-e", f"fleet_api_address={address}", *given]


def write(folder: Path) -> None:
    """The play and the inventory of a fleet of one host: certificates, and the kubelet CA's key as a host gets it."""
    key = {"dest": str(folder / "host/kubelet-ca.key"), "src": f"{folder}/state/pki/kubelet/ca.key", "mode": "0600"}
    bring = {"directories": [{"path": str(folder / "host"), "mode": "0700"}], "files": [{**key, "sensitive": True}]}
    play = {
        "hosts": "localhost", "gather_facts": False, "roles": ["muster.fleet.fleet", "muster.fleet.pki"],
        "tasks": [{"muster.fleet.file_set": bring}],
    }  # fmt: skip
    host = {"api-1": {"ansible_host": "198.51.100.1"}}
    variables = {
        "fleet_name": "lab", "fleet_state_dir": str(folder / "state"), "fleet_service_cidr": "198.51.101.0/24",
        "fleet_pod_cidr": "198.51.102.0/24",
    }  # fmt: skip
    groups = {"etcd": {"hosts": host}, "kube_apiserver": {"hosts": host}, "etcd_events": {}}
    (folder / "play.yml").write_text(json.dumps([play]))
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    (folder / "password").write_text("correct horse")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, playbook_in: Callable[[Path], Playbook]) -> Path:
    """The folder of a fleet that has its certificates, under no vault."""
    folder = tmp_path_factory.mktemp("made")
    write(folder)
    done = playbook_in(folder)(*words(), inventory="hosts.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("encrypt", [ALL, BUT_THE_KUBELETS], ids=["all", "but the kubelets'"])
def test_ends_of_certificates_are_shown_and_keys_of_cas_may_be_under_vault(
    tmp_path: Path, made: Path, ansible_playbook: Playbook, encrypt: str
) -> None:
    def run(*address: str, password: bool = False) -> subprocess.CompletedProcess[str]:
        return ansible_playbook(*words(*address, password=password), inventory="hosts.yml")

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}

    write(tmp_path)
    for name in ("state", "host"):
        shutil.copytree(made / name, tmp_path / name)
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
