"""What an operation on a running control plane refuses before it changes anything, by the real playbooks.

The hosts are this machine: one whose clock is off is a Python that adds to the time, one that is away has no SSH. Both
kinds are in one run: that each of them alone ends such a play shows test_one_after_the_other.py.

Only here: that each operation asks these groups for clock and answer, first of all, and leaves its state as it was.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_fleet as fleets
from ansible_collections.muster.fleet.plugins.module_utils.kube import upgrade_rules as rules
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair.cluster import Cluster
from tests.support.clocks import PATIENCE_S
from tests.support.etcd_snapshot import lab_snapshot
from tests.support.server_helpers import QuietHandler, listening, write_kubeconfig


def self_signed() -> str:
    """A CA's certificate."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab CA")])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + dt.timedelta(days=3650))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
DAY_S = 86_400
GROUPS = ("etcd", "etcd_events", "kube_apiserver")
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
CA = self_signed()
KEY = f"muster {base64.b64encode(bytes(32)).decode()}\n"
AUTHORITIES = ("etcd", "kubernetes", "kubelet", "front-proxy", "metrics", "alertmanager")
FLEET = {"fleet_name": "lab", "fleet_planned_nodes": 10, "fleet_api_address": "127.0.0.1", "ansible_host": "127.0.0.1"}
# Playbook, what it is asked for, and whose hosts are faulty.
OPERATIONS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "restore of main": ("etcd_restore", {"cluster": "main", "confirm": "lab-main"}, ("etcd", "kube_apiserver")),
    "restore of events": ("etcd_restore", {"cluster": "events", "confirm": "lab-events"}, ("etcd_events",)),
    "replacement": ("etcd_replace_member", {"member": "etcd-1"}, ("etcd",)),
    "new leaves": ("rotate_certificates", {"step": "leaves"}, ("etcd",)),
    "new CAs": ("rotate_certificates", {"step": "trust"}, ("kube_apiserver",)),
    "new encryption key": ("rotate_encryption_key", {"confirm": "rotate"}, ("kube_apiserver",)),
}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The fleet's state: an encryption key, and CAs as far as they are looked at."""
    path = tmp_path / "state"
    for name in AUTHORITIES:
        (path / "pki" / name).mkdir(parents=True)
        (path / "pki" / name / "ca.crt").write_text(CA)
    (path / "pki/encryption-key").write_text(KEY)
    return path


@pytest.fixture
def operate(tmp_path: Path, state: Path, ansible_playbook: Playbook) -> Callable[..., str]:
    """Runs a playbook with these variables, with other hosts for some groups; what it said, on one line.

    It must fail, and leave nothing but its lock.
    """

    def run(name: str, hosts: dict[str, dict[str, Any]], **given: str) -> str:
        groups = {group: {"hosts": hosts.get(group, {f"{group}-1": {}})} for group in GROUPS}
        variables = {"fleet_state_dir": str(state), "ansible_connection": "local", **FLEET}
        inventory = tmp_path / "hosts.yml"
        inventory.write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
        before = contents(state)
        extra = [word for key, value in given.items() for word in ("-e", f"{key}={value}")]
        done = ansible_playbook(str(ROOT / f"playbooks/{name}.yml"), *extra, inventory=str(inventory))
        assert done.returncode != 0, done.stdout
        assert contents(state) == before
        return " ".join((done.stdout + done.stderr).split())

    return run


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but locks."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock.json")
    return {str(path): path.read_bytes() for path in files}


def clock_off(folder: Path, seconds: float) -> str:
    """A Python whose clock is off."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"import time\nreal = time.time\ntime.time = lambda: real() + {seconds}\n")
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec env PYTHONPATH={folder} {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def given_to(name: str, variables: dict[str, str], tmp_path: Path) -> dict[str, str]:
    snapshot = {"snapshot": str(lab_snapshot(tmp_path, cluster=variables["cluster"]))} if name == "etcd_restore" else {}
    return {**variables, **snapshot}


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS)
def test_clocks_that_differ_and_hosts_that_do_not_answer(
    tmp_path: Path, operate: Callable[..., str], operation: str
) -> None:
    name, variables, groups = OPERATIONS[operation]
    hosts = {}
    for group in groups:
        off = clock_off(tmp_path / f"{group}-clock", DAY_S if group == "etcd" else -DAY_S)
        hosts[group] = {f"{group}-1": {"ansible_python_interpreter": off}, f"{group}-2": AWAY}
    said = operate(name, hosts, **given_to(name, variables, tmp_path))
    for group in groups:
        (seconds,) = set(re.findall(rf"{group}-1: its clock is ([0-9.]+) s", said))
        # The time on the way counts for the host: a slow one makes the difference smaller, and nothing makes it larger.
        assert DAY_S - PATIENCE_S < float(seconds) <= DAY_S
        way = "ahead of" if group == "etcd" else "behind"
        allowed = f"{group}-1: its clock is {seconds} s {way} the controller's, and 0.5 s are allowed; set the clock"
        assert allowed in said
        assert f"fatal: [{group}-2]: UNREACHABLE!" in said


@pytest.mark.slow
def test_clocks_that_agree_are_no_reason(tmp_path: Path, ansible_playbook: Playbook) -> None:
    (tmp_path / "play.yml").write_text("[{hosts: all, gather_facts: false, tasks: [{muster.fleet.clock_skew: }]}]")
    done = ansible_playbook("play.yml", "-vv")
    assert done.returncode == 0 and '"ahead_s": 0' in done.stdout, done.stdout + done.stderr


@pytest.fixture
def refusing() -> Iterator[str]:
    """An API server to which nobody's certificate is good."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.reply_json(401, {"kind": "Status", "message": "Unauthorized", "code": 401})

        do_POST = do_GET

    with listening(Handler) as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["1.37.0", "1.36.3"])
def test_an_upgrade_asks_for_pods_only_where_kubelet_changes_its_minor(state: Path, refusing: str, wanted: str) -> None:
    """As the admin, whose certificate has ended here."""
    programs = {"kubelet": {"running": "1.36.1", "wanted": wanted, "current": False}}
    said = {"sick": "", "served": True, "leads": False, "room": "", "closed": False}
    facts = {"gpu-1": {"programs": programs, **said}}
    kubeconfig = write_kubeconfig(state / "kubeconfig/admin.kubeconfig", refusing)

    def work(node: str) -> tuple[str, ...]:
        return tuple(pod.name for pod in Cluster.of(kubeconfig, "muster.dev").pods(node))

    if wanted == "1.36.3":
        fleet = fleets.fleet_of({"gpu_nodes": ["gpu-1"]}, facts, work)
        assert rules.plan(fleet, "nodes").phases["nodes"] == ("gpu-1",)
    else:
        with pytest.raises(GpuBurninError, match=r"Unauthorized.*has ended.*site\.yml renews"):
            fleets.fleet_of({"gpu_nodes": ["gpu-1"]}, facts, work)


@pytest.mark.slow
def test_an_admin_whose_certificate_has_ended_gets_no_new_encryption_key(
    state: Path, operate: Callable[..., str], refusing: str
) -> None:
    write_kubeconfig(state / "kubeconfig/admin.kubeconfig", refusing)
    said = operate("rotate_encryption_key", {}, confirm="rotate")
    assert "Unauthorized" in said
    assert "the certificate or token in the kubeconfig has ended, or is of another cluster" in said
    assert "TASK [muster.fleet.kube_apiserver : Do the step on the controller]" not in said
