"""The slow scenarios of one playbook each: a member replaced, certificates rotated, etcd restored."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509

from tests.integration.fleet import Fleet, run, wait_until
from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY

from .clients import Clients
from .health import NODES, follower, ready_nodes, wait_for_health
from .table import Cost

VAULT = "mon-1"
PLACE = "/srv/etcd-backup"
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: default}}
spec:
  replicas: 1
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 0
      nodeSelector: {{muster.node-restriction.kubernetes.io/ready: "true"}}
      containers: [{{name: tool, image: "lab.muster.dev/tool:1", imagePullPolicy: Never, args: [pause]}}]
"""


def member_replaced(clients: Clients) -> str:
    """A member is killed, its disk wiped, and the playbook replaces it."""
    host = follower(clients.fleet)
    wipe(clients.fleet, host)
    done = clients.fleet.playbook("playbooks/etcd_replace_member.yml", log="replace", member=host)
    assert done.rc == 0, done.failures
    return f"{host}, the playbook took {done.seconds:.0f} s"


def wipe(fleet: Fleet, host: str) -> None:
    """Kill a member and remove all that is on its disk."""
    fleet.must(host, "systemctl kill --signal KILL etcd; systemctl stop etcd; find /var/lib/etcd -mindepth 1 -delete")


def leaves_rotated(clients: Clients) -> str:
    """Each certificate of the fleet is issued anew by the same CAs and brought to the hosts."""
    before = _leaves(clients.fleet)
    words = rotation(clients.fleet)
    started_s = time.monotonic()
    play(words, "leaves")
    took_s = time.monotonic() - started_s
    after = _leaves(clients.fleet)
    same = sorted(name for name in before if before[name] == after.get(name))
    assert not same, f"still of before: {', '.join(same)}"
    return f"{len(after)} certificates, the playbooks took {took_s:.0f} s"


def rotation(fleet: Fleet) -> list[str]:
    """Words of the runbook's command. The lab is younger than a day, so what makes leaves due is a shorter lifetime: by
    more than the day that is let pass, and the one that has begun."""
    both = ["playbooks/rotate_certificates.yml", "site.yml"]
    return [*both, "-e", "step=leaves", "-e", f"pki_leaf_days={_leaf_days(fleet) - 3}"]


def restored(clients: Clients) -> Cost:
    """Snapshots are set up as the runbook says, one is made, and the main cluster is put back to it.

    What was acknowledged before the snapshot began and after the playbook had ended has to be there.
    """
    fleet = clients.fleet
    place = second_place(fleet)
    play(["site.yml", "--limit", "etcd", *place], "backup-set-up")
    uids = {node: fleet.get("node", node)["metadata"]["uid"] for node in NODES}
    try:
        with clients:
            _deploy(fleet, "kept")
            clients.write_on(100)
            before = clients.acknowledged()
            play(["playbooks/etcd_backup.yml", "--limit", "etcd", *place], "backup")
            _deploy(fleet, "late")
            clients.write_on(50)
            began_s = time.monotonic()
            play(["playbooks/etcd_restore.yml", *newest_snapshot(fleet), "-e", "confirm=lab-main"], "restore")
            during = clients.acknowledged()
            wait_for_health(fleet)
            _scale(fleet, "kept", 2)
            took_s = time.monotonic() - began_s
            clients.write_on(50)
        wanted = before | (clients.acknowledged() - during)
        assert "late" not in _deployments(fleet), "what came after the snapshot is still there"
        now = {node: fleet.get("node", node)["metadata"]["uid"] for node in NODES}
        assert now == uids and ready_nodes(fleet) >= set(NODES), "the nodes are others"
        return clients.cost(len(wanted - clients.there()), took_s)
    finally:
        clients.remove()
        fleet.kubectl("delete", "deployment", "kept", "late", "--ignore-not-found")


def play(words: Sequence[str], name: str) -> None:
    """Run ansible-playbook on the lab; fails with the end of what it said."""
    done = run([*ansible_playbook(), *words], cwd=REPOSITORY)
    log = Fleet().lab.state / f"logs/bench-{name}.log"
    log.write_text(done.out + done.err)
    assert done.rc == 0, f"{words[0]} ended with {done.rc}, see {log}: {done.out[-2000:]}"


def ansible_playbook() -> list[str]:
    """The command, with the lab's inventory."""
    return [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(LAB_INVENTORY)]


def _leaf_days(fleet: Fleet) -> int:
    certificate = x509.load_pem_x509_certificate((fleet.state / "pki/kubernetes/admin.crt").read_bytes())
    return (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days


def _leaves(fleet: Fleet) -> dict[str, bytes]:
    pki = fleet.state / "pki"
    return {str(one.relative_to(pki)): one.read_bytes() for one in pki.glob("*/*.crt") if one.name != "ca.crt"}


def second_place(fleet: Fleet) -> list[str]:
    """A user on a host of the lab who may do SFTP alone; the variables that name it, as words for ansible-playbook."""
    vault = fleet.lab.state / "vault"
    vault.mkdir(mode=0o700, exist_ok=True)
    key, identity = vault / "id", vault / "identity"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        # Made on a host, which has age; kept here, where the restore needs it.
        identity.touch(mode=0o600)
        identity.write_text(fleet.must(VAULT, "age-keygen 2>/dev/null"))
    allowed = f'restrict,command="internal-sftp" {key.with_suffix(".pub").read_text()}'
    user = f"useradd --system --create-home --home-dir {PLACE} --shell /bin/bash etcd-backup"
    fleet.must(VAULT, f"id etcd-backup >/dev/null 2>&1 || {user}")
    fleet.must(VAULT, f"install -d -m 0700 -o etcd-backup -g etcd-backup {PLACE}/.ssh {PLACE}/snapshots")
    done = fleet.ssh(
        VAULT, f"install -m 0600 -o etcd-backup -g etcd-backup /dev/stdin {PLACE}/.ssh/authorized_keys", stdin=allowed
    )
    assert done.rc == 0, done.err
    host_key = " ".join(fleet.must(VAULT, "cat /etc/ssh/ssh_host_ed25519_key.pub").split()[:2])
    recipient = next(line.split()[-1] for line in identity.read_text().splitlines() if line.startswith("# public key:"))
    named = vault / "place.yml"
    named.write_text(
        f"etcd_backup_recipients: [{recipient}]\n"
        f"etcd_backup_sftp: {{host: {fleet.addresses[VAULT]}, directory: snapshots, host_key: {host_key}}}\n"
        f"etcd_backup_sftp_key: \"{{{{ lookup('ansible.builtin.file', '{key}') }}}}\"\n"
    )
    return ["-e", f"@{named}"]


def newest_snapshot(fleet: Fleet) -> list[str]:
    """The newest snapshot, fetched to the controller, as words for the restore."""
    folder = fleet.lab.state / f"hosts/{VAULT}/merged{PLACE}/snapshots"
    newest = max(folder.glob("lab-main-*.tar.age"))
    fetched = fleet.lab.state / "vault" / newest.name
    fetched.write_bytes(newest.read_bytes())
    return ["-e", "cluster=main", "-e", f"snapshot={fetched}", "-e", f"identity={fleet.lab.state}/vault/identity"]


def _deploy(fleet: Fleet, name: str) -> None:
    made = fleet.kubectl("create", "-f", "-", stdin=DEPLOYMENT.format(name=name))
    assert made.rc == 0, made.err
    _wait_for_pods(fleet, name, 1)


def _scale(fleet: Fleet, name: str, replicas: int) -> None:
    done = fleet.kubectl("scale", "deployment", name, f"--replicas={replicas}")
    assert done.rc == 0, done.err
    _wait_for_pods(fleet, name, replicas)


def _wait_for_pods(fleet: Fleet, name: str, replicas: int) -> None:
    def ready() -> bool:
        status = fleet.get("deployment", name)["status"]
        return bool(status.get("readyReplicas") == replicas and status["observedGeneration"] >= 1)

    wait_until(f"{replicas} pods of {name}", ready, timeout_s=180)


def _deployments(fleet: Fleet) -> set[str]:
    return {one["metadata"]["name"] for one in fleet.get("deployments")["items"]}
