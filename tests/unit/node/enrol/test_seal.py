"""An image made of a machine that the roles have built: no secret is in it, and its first boot finds its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpu_burnin.api.enrolment import Decision, EnrolmentError
from gpu_burnin.cli.main import cli
from gpu_burnin.node.enrol import settle
from gpu_burnin.node.enrol.course import Enrolled
from gpu_burnin.node.enrol.seal import seal, stop
from gpu_burnin.settings.config import PublishConfig
from tests.support.admission_helpers import new_host_key
from tests.support.command_line import called

NODE, ADDRESS, RANGE = "image-1", "198.18.0.9", "198.19.9.0/24"
UNIT = "etc/systemd/system/kubelet.service"
FILES = {
    UNIT: f"ExecStart=/usr/local/bin/kubelet --hostname-override={NODE} --node-ip={ADDRESS}\n",
    "etc/pod-network/config.json": json.dumps(
        {"range": RANGE, "addresses": {NODE: ADDRESS, "a": "198.18.0.90"}},
    ),
    "etc/gpu-burnin/config.yaml": f"node_name: {NODE}\nallow: {NODE}-b {NODE}.example.com x{NODE}\n",
    "etc/hosts": f"127.0.1.1 {NODE}\n",
    "etc/hostname": f"{NODE}\n",
    "etc/machine-id": f"{'1' * 32}\n",
    "etc/kubernetes/bootstrap-kubelet.kubeconfig": "client-key-data: QUJD\n",
    "etc/kubernetes/pki/ca.crt": "-----BEGIN CERTIFICATE-----\n",
    "etc/kubernetes/pki/kube-proxy.key": "-----BEGIN EC PRIVATE KEY-----\n",
    "etc/muster-metrics/server.crt.key": f"-----BEGIN PRIVATE KEY-----\n{NODE}\n",
    "etc/muster/enrol": f"{NODE}:abcdef.0123456789abcdef\n",
    "root/.ssh/authorized_keys": "ssh-ed25519 AAAA controller\n",
    "root/.ssh/id_ed25519": "-----BEGIN OPENSSH PRIVATE KEY-----\n",
    "var/lib/kubelet/pki/kubelet-client-current.pem": "-----BEGIN EC PRIVATE KEY-----\n",
    "var/lib/gpu-burnin/runs/1/report.json": "{}",
    "var/lib/gpu-burnin/sequence": "7\n",
    "var/lib/cloud/instance/user-data.txt": f"content: {NODE}:abcdef.0123456789abcdef\n",
    "var/lib/muster-enrol/kubelet.key": "-----BEGIN PRIVATE KEY-----\n",
    "var/lib/containerd/layer/test.key": "-----BEGIN PRIVATE KEY-----\n",
    "var/lib/dhcp/dhclient.eth0.leases": "lease {}",
    "var/log/journal/x/system.journal": "x",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine as site.yml leaves it."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "etc/ssh").mkdir()
    new_host_key(tmp_path / "etc/ssh/ssh_host_ed25519_key")
    return tmp_path


def test_no_secret_is_left_and_nothing_of_this_machine(root: Path) -> None:
    found = seal(root, NODE, ADDRESS, RANGE)
    secrets = "PRIVATE KEY|client-key-data|[a-z0-9]{6}[.][a-z0-9]{16}"
    left = subprocess.run(["grep", "-rlE", secrets, str(root)], capture_output=True, text=True, check=False)
    assert left.stdout.split() == [str(root / "var/lib/containerd/layer/test.key")]
    assert "etc/ssh/ssh_host_ed25519_key" in found.removed
    assert (root / "etc/machine-id").read_text() == ""
    assert list((root / "var/lib/gpu-burnin").iterdir()) == []
    assert not (root / "var/lib/cloud").exists()
    # Without its folder journald would keep nothing, and dhclient could not write its lease.
    assert [list((root / name).iterdir()) for name in ("var/log/journal", "var/lib/dhcp")] == [[], []]
    # By it the controller logs in, and the API servers are known.
    assert (root / "root/.ssh/authorized_keys").exists() and (root / "etc/kubernetes/pki/ca.crt").exists()
    assert found.files == (
        "etc/gpu-burnin/config.yaml",
        "etc/hosts",
        "etc/pod-network/config.json",
        UNIT,
    )


def test_no_two_machines_share_the_key_of_systemd_creds(root: Path) -> None:
    secret = root / "var/lib/systemd/credential.secret"
    secret.parent.mkdir(parents=True)
    secret.write_bytes(os.urandom(64))
    assert "var/lib/systemd/credential.secret" in seal(root, NODE, ADDRESS, RANGE).removed
    assert not secret.exists()


def test_cloud_init_keeps_the_host_key_when_its_data_source_is_gone(root: Path) -> None:
    seal(root, NODE, ADDRESS, RANGE)
    assert not (root / "etc/cloud").exists()
    (root / "etc/cloud/cloud.cfg.d").mkdir(parents=True)
    seal(root, NODE, ADDRESS, RANGE)
    lines = (root / "etc/cloud/cloud.cfg.d/99-muster.cfg").read_text().splitlines()
    assert "ssh_deletekeys: false" in lines


def test_it_is_the_same_a_second_time(root: Path) -> None:
    first = seal(root, NODE, ADDRESS, RANGE)
    second = seal(root, NODE, ADDRESS, RANGE)
    assert second.files == first.files
    assert set(second.removed) <= {"etc/kubernetes/pki/kube-proxy.crt", "etc/kubernetes/pki/kube-proxy.key"}


def test_a_state_folder_that_is_a_disk_of_its_own_is_emptied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_mount", lambda path: path == root / "var/lib/cloud")
    found = seal(root, NODE, ADDRESS, RANGE)
    assert "var/lib/cloud" in found.removed and list((root / "var/lib/cloud").iterdir()) == []


def test_what_would_write_again_is_stopped_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""#!/bin/sh
echo "$@" >> {tmp_path}/calls
[ "$1" != list-units ] || echo "kubelet.service loaded active running kubelet"
[ "$1" != stop ] || [ ! -e {tmp_path}/fails ] || {{ echo "a job is pending" >&2; exit 1; }}
"""
    (tmp_path / "systemctl").write_text(script)
    (tmp_path / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    stop()
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["stop kubelet.service"]
    (tmp_path / "fails").touch()
    with pytest.raises(EnrolmentError, match=r"cannot be stopped \(a job is pending\); stop kubelet\.service, "):
        stop()


def test_the_first_boot_makes_of_it_what_the_roles_would_write(root: Path) -> None:
    """For another node: every place, and nothing that only begins or ends so."""
    seal(root, NODE, ADDRESS, RANGE)
    state = root / "var/lib/muster-enrol"
    state.mkdir(parents=True)
    decision = Decision(True, "alice", "seen", "x", "0" * 64, "198.18.7.70", "198.19.70.0/24")
    settle.settle(
        Enrolled("gpu-70", decision, b"CERTIFICATE\n"), b"KEY\n", PublishConfig(), state, root, lambda _: None
    )
    for name in (UNIT, "etc/hosts"):
        wanted = FILES[name].replace(NODE, "gpu-70").replace(ADDRESS, "198.18.7.70")
        assert (root / name).read_text() == wanted
    assert (root / "etc/gpu-burnin/config.yaml").read_text() == (
        f"node_name: gpu-70\nallow: {NODE}-b {NODE}.example.com x{NODE}\n"
    )
    assert json.loads((root / "etc/pod-network/config.json").read_text()) == {
        "range": "198.19.70.0/24",
        "addresses": {"gpu-70": "198.18.7.70", "a": "198.18.0.90"},
    }


def test_what_needs_the_nodes_name_waits_and_the_first_boot_does_not(root: Path) -> None:
    seal(root, NODE, ADDRESS, RANGE)
    units = root / "etc/systemd/system"
    for name in ("muster-enrol.service", "muster-host-keys.service"):
        assert (units / "multi-user.target.wants" / name).resolve() == units / name
        assert (units / name).stat().st_mode & 0o777 == 0o644
    for name in ("kubelet", "kube-proxy", "gpu-burnin-boot", "gpu-burnin-watch", "pod-network-routes"):
        text = (units / f"{name}.service.d/20-enrolled.conf").read_text()
        assert "ConditionPathExists=/var/lib/muster-enrol/enrolled\n" in text
    assert "ConditionPathExists=!/var/lib/muster-enrol/enrolled\n" in (units / "muster-enrol.service").read_text()


@pytest.mark.parametrize("name", ["cloud-init", "cloud-init-network"])
def test_host_keys_and_enrolment_come_after_what_cloud_init_writes(root: Path, name: str) -> None:
    """By its unit of each version, or none of its keys would be the one that is approved."""
    seal(root, NODE, ADDRESS, RANGE)
    for unit in ("muster-host-keys", "muster-enrol"):
        text = (root / f"etc/systemd/system/{unit}.service").read_text()
        [after] = [line for line in text.splitlines() if line.startswith("After=")]
        assert f"{name}.service" in after.partition("=")[2].split()


def test_what_waited_begins_by_a_service_that_is_tried_again(root: Path) -> None:
    seal(root, NODE, ADDRESS, RANGE)
    units = root / "etc/systemd/system"
    assert "OnSuccess=muster-enrolled.service\n" in (units / "muster-enrol.service").read_text()
    text = (units / "muster-enrolled.service").read_text()
    assert "Type=oneshot\n" in text and "Restart=on-failure\n" in text and "StartLimitIntervalSec=0\n" in text
    # It begins with the enrolment, and not with each boot.
    assert not (units / "multi-user.target.wants/muster-enrolled.service").is_symlink()


def test_a_power_cut_costs_no_host_key(root: Path) -> None:
    seal(root, NODE, ADDRESS, RANGE)
    units = root / "etc/systemd/system"
    text = (units / "muster-enrol.service").read_text()
    assert "ExecStartPre=/usr/bin/sync\nExecStart=/usr/local/bin/gpu-burnin enrol\n" in text
    assert "\nWants=network-online.target muster-host-keys.service\n" in text
    assert " systemd-machine-id-commit.service " in text, "an id that is in memory only is another one afterwards"
    assert "ConditionFileNotEmpty=!/etc/ssh/ssh_host_ed25519_key\n" in (units / "muster-host-keys.service").read_text()


def test_kube_proxy_has_the_certificate_of_the_node(root: Path) -> None:
    seal(root, NODE, ADDRESS, RANGE)
    for name in ("kube-proxy.crt", "kube-proxy.key"):
        link = root / "etc/kubernetes/pki" / name
        assert str(link.readlink()) == str(PublishConfig().client_cert)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("etc/ssl/private/site.key", "-----BEGIN RSA PRIVATE KEY-----\n"),
        ("home/ops/.ssh/id_rsa", "-----BEGIN OPENSSH PRIVATE KEY-----\n"),
        ("etc/default/grub", 'GRUB_CMDLINE_LINUX="muster.enrol=gpu-1:abcdef.0123456789abcdef quiet"\n'),
        ("etc/kernel/cmdline", "muster.enrol=gpu-1:abcdef.0123456789abcdef"),
        ("etc/default/grub", 'GRUB_CMDLINE_LINUX="quiet muster.enrol=gpu-1:abcdef.0123456789abcdef"\n'),
        ("root/user-data", '    content: "gpu-1:abcdef.0123456789abcdef\\n"\n'),
        ("srv/admin.kubeconfig", "    client-key-data: QUJD\n"),
    ],
)
def test_a_secret_that_nobody_thought_of_stops_it(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    with pytest.raises(EnrolmentError, match=f"{name}: a private key or a token is still on this disk"):
        seal(root, NODE, ADDRESS, RANGE)


@pytest.mark.parametrize("values", [("image-2", ADDRESS, RANGE), (NODE, "198.18.0.8", RANGE), (NODE, ADDRESS, "x/24")])
def test_a_value_that_is_not_this_machines_changes_nothing(root: Path, values: tuple[str, str, str]) -> None:
    with pytest.raises(EnrolmentError, match=r"is in no file of .* build this machine with site.yml first"):
        seal(root, *values)
    assert (root / "etc/ssh/ssh_host_ed25519_key").exists()


def test_the_name_of_the_machine_is_given_so_that_no_other_is_sealed(root: Path) -> None:
    config = root / "etc/gpu-burnin/config.yaml"
    config.write_text(f"node_name: {NODE}\n")
    given = ("--address", ADDRESS, "--pod-range", RANGE, "--config", config, "--root", root)
    done = called(cli, "seal", "gpu-1", *given)
    assert done.returncode == 2 and f"this machine is {NODE}, not gpu-1: nothing was changed" in done.stderr
    assert (root / "etc/ssh/ssh_host_ed25519_key").exists()
    done = called(cli, "seal", NODE, *given)
    assert done.returncode == 0 and "switch it off and copy its disk" in done.stdout
