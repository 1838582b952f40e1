"""`muster image`, from its arguments to its exit code."""

from __future__ import annotations

import getpass
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.api.enrolment import claim_of, enrolment_document
from gpu_burnin.api.names import Names
from gpu_burnin.cli.muster.main import cli
from gpu_burnin.node.signing import own_public_key
from tests.support.command_line import called
from tests.support.enrolments import enrolled
from tests.support.fake_api import FakeApi
from tests.support.ssh_server import StartServer

NAMES = Names()


@pytest.fixture
def state(ledger: FakeApi, tmp_path: Path) -> Path:
    (tmp_path / "state/kubeconfig").mkdir(parents=True)
    ledger.kubeconfig(tmp_path / "state/kubeconfig/provisioner.kubeconfig")
    ledger.objects["nodeenrolments"] = {}
    return tmp_path / "state"


def test_a_token_is_written_for_its_machine_alone(state: Path, tmp_path: Path) -> None:
    done = called(cli, "image", "token", "gpu-1", "nobody", "--output", tmp_path / "out", "--state", state)
    assert (done.returncode, done.stdout) == (1, f"gpu-1: {tmp_path}/out/gpu-1\n")
    assert "nobody: the ledger has no entry for it" in done.stderr
    folder = tmp_path / "out/gpu-1"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["kernel-argument", "meta-data", "user-data"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


def test_it_is_approved_by_the_fingerprint_of_its_console(ledger: FakeApi, state: Path, key: Path) -> None:
    enrolment = enrolled(key)
    ledger.put("nodeenrolments", enrolment_document("gpu-1", enrolment.spec, NAMES))
    mark = claim_of(enrolment).fingerprint
    done = called(cli, "image", "approve", "gpu-1=SHA256:other", "--state", state)
    assert done.returncode == 1
    assert f"the machine enrolled with the host key {mark}, not with SHA256:other" in done.stderr
    assert "hostKey" not in ledger.objects["nodeadmissions"]["gpu-1"]["spec"]["identity"] or (
        ledger.objects["nodeadmissions"]["gpu-1"]["spec"]["identity"]["hostKey"] == ""
    )
    done = called(cli, "image", "approve", f"gpu-1={mark}", "--reason", "its console", "--state", state)
    assert (done.returncode, done.stdout) == (0, "gpu-1: let in as 127.0.0.1, pods 198.19.9.0/24\n")
    assert ledger.objects["nodeadmissions"]["gpu-1"]["spec"]["identity"]["hostKey"] == own_public_key(key)
    decision = ledger.objects["nodeenrolments"]["gpu-1"]["spec"]["decision"]
    assert (decision["who"], decision["requestSHA256"]) == (getpass.getuser(), "0" * 64)
    shown = json.loads(called(cli, "image", "enrolments", "--json", "--state", state).stdout)
    assert [(row["node"], row["stands"]) for row in shown] == [("gpu-1", "approved")]


def test_one_whose_token_has_ended_is_not_approved(ledger: FakeApi, state: Path, key: Path) -> None:
    spec = replace(enrolled(key).spec, ends="2020-01-01T00:00:00Z")
    ledger.put("nodeenrolments", enrolment_document("gpu-1", spec, NAMES))
    done = called(cli, "image", "approve", f"gpu-1={claim_of(enrolled(key)).fingerprint}", "--state", state)
    assert done.returncode == 1 and "its token ended at 2020-01-01T00:00:00Z" in done.stderr


def test_all_that_wait_are_approved_by_their_address(
    ledger: FakeApi, state: Path, key: Path, start_server: StartServer
) -> None:
    """And none of them whose key does not answer there."""
    ledger.put("nodeenrolments", enrolment_document("gpu-1", enrolled(key).spec, NAMES))
    port = str(start_server().port)
    done = called(cli, "image", "approve", "--all", "--answers", "--port", port, "--state", state)
    assert done.returncode == 1 and "showed the ssh-ed25519 host key" in done.stderr
    assert "decision" not in ledger.objects["nodeenrolments"]["gpu-1"]["spec"]


def test_it_is_refused_and_its_token_taken_back(ledger: FakeApi, state: Path, tmp_path: Path) -> None:
    called(cli, "image", "token", "gpu-1", "--output", tmp_path / "out", "--state", state)
    done = called(cli, "image", "refuse", "gpu-1", "gpu-2", "--reason", "lost", "--state", state)
    assert (done.returncode, done.stdout) == (1, "gpu-1: refused\n")
    assert "gpu-2: it was given no token" in done.stderr
    assert ledger.objects["secrets"] == {}
    assert ledger.objects["nodeenrolments"]["gpu-1"]["spec"]["decision"]["approved"] is False


def test_a_machine_that_has_come_reads_why_it_is_refused(ledger: FakeApi, state: Path, key: Path) -> None:
    ledger.put("nodeenrolments", enrolment_document("gpu-1", enrolled(key).spec, Names()))
    secret = {"kind": "Secret", "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}}
    ledger.put("secrets", secret)
    assert called(cli, "image", "refuse", "gpu-1", "--reason", "lost", "--state", state).returncode == 0
    assert len(ledger.objects["secrets"]) == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ("approve", "gpu-1"),
            "gpu-1: give the fingerprint that its console shows (gpu-1=SHA256:...), or --answers",
        ),
        (("approve",), "name the nodes, or give --all --answers"),
        (("approve", "--all"), "--all goes with --answers"),
        (("approve", "--all", "--answers", "gpu-1"), "--all goes with --answers"),
        (("token", "gpu-1", "--output", "x", "--lifetime", "25h"), "a token is good for 24h at the most"),
        (("refuse", "gpu-1", "--reason", " "), "it is empty"),
    ],
)
def test_mistakes_are_exit_code_2(state: Path, arguments: tuple[str, ...], says: str) -> None:
    done = called(cli, "image", *arguments, "--state", state)
    assert done.returncode == 2 and says in done.stderr


def test_another_folder_than_a_fleets_is_named(tmp_path: Path) -> None:
    done = called(cli, "image", "enrolments", "--state", tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}/kubeconfig/provisioner.kubeconfig does not exist; give the fleet_state_dir" in done.stderr
