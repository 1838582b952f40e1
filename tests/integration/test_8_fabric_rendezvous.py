"""Offers that are forged, replayed, expired or of somebody else, brought to a host of the lab by SSH: all are refused.

Only here: the offers are signed by real SSH host keys on their hosts, and packets to rank 0 are counted.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.api import fabric_view, rendezvous
from gpu_burnin.api.fabric_documents import Signed
from gpu_burnin.api.rendezvous import FabricTest, Member
from gpu_burnin.fabric.model import Kind, Nic
from gpu_burnin.system import known_hosts

from .fabric_site import FIRST_PORT, LAST_PORT, install
from .fleet import Fleet

pytestmark = pytest.mark.soak
FIRST, SECOND, STRANGER = "lb-1", "mon-1", "api-2"
FOLDER = "/root/rendezvous"
SIGN = f"ssh-keygen -q -Y sign -n {{namespace}} -f {{key}} {FOLDER}/statement >/dev/null && cat {FOLDER}/statement.sig"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
NOW = timedelta(0)


@dataclass
class Two:
    """Two hosts that may meet, by offers of this test's own making."""

    fleet: Fleet
    keys: dict[str, str]
    boots: dict[str, str]

    def test(self, names: tuple[str, ...] = (FIRST, SECOND), boots: Mapping[str, str] | None = None) -> FabricTest:
        known = {**self.boots, **(boots or {})}
        members = tuple(Member(name, known[name], (Nic(0, self.fleet.addresses[name]),)) for name in names)
        return FabricTest(
            run=str(uuid.uuid4()), test=1, kind=Kind.PAIR, rails=(), members=members, seconds=1.0,
            size_bytes=1 << 20, seed=7, valid_s=60.0,
        )  # fmt: skip

    def signed(
        self, statement: bytes, by: str = FIRST, namespace: str = rendezvous.NAMESPACE, key: str = HOST_KEY
    ) -> Signed:
        self.fleet.must(by, f"mkdir -m 700 -p {FOLDER}; rm -f {FOLDER}/statement*")
        self.fleet.ssh(by, f"cat > {FOLDER}/statement", stdin=statement.decode())
        return Signed(statement, self.fleet.must(by, SIGN.format(namespace=namespace, key=key)))

    def offer(self, test: FabricTest | None = None, age: timedelta = NOW) -> bytes:
        made = rendezvous.rendezvous_of(test or self.test(), datetime.now(UTC) - age, 20077, secrets.token_bytes(32))
        return made.canonical()

    def join(self, offer: Signed, at: str = SECOND, keys: Mapping[str, str] | None = None) -> str:
        """Why a host refuses an offer."""
        self.fleet.must(at, f"mkdir -m 700 -p {FOLDER}; rm -f {FOLDER}/view; umask 077")
        self.fleet.ssh(at, f"umask 077; cat > {FOLDER}/offer", stdin=offer.document().decode())
        listed = rendezvous.keys_text(keys or {name: self.keys[name] for name in (FIRST, SECOND)})
        self.fleet.ssh(at, f"umask 077; cat > {FOLDER}/keys", stdin=listed)
        paths = " ".join(f"--{name} {FOLDER}/{name}" for name in ("offer", "keys"))
        done = self.fleet.ssh(at, f"gpu-burnin fabric join {paths} --output {FOLDER}/view --json")
        assert done.rc == 3, (done.rc, done.out, done.err)
        assert self.fleet.ssh(at, f"test -e {FOLDER}/view").rc != 0, "no view of what was refused"
        return str(json.loads(done.out)["refused"])


@pytest.fixture
def two(fleet: Fleet) -> Two:
    known = known_hosts.load(fleet.state / "known_hosts")
    names = (FIRST, SECOND, STRANGER)
    for name in names:
        install(fleet, name)
    keys = {name: known.evidence_key(fleet.addresses[name], 22) or "" for name in names}
    boots = {name: fleet.must(name, "cat /proc/sys/kernel/random/boot_id").strip() for name in names}
    return Two(fleet, keys, boots)


def test_ten_offers_that_are_not_what_they_should_be_are_refused_and_nothing_is_sent(two: Two, tmp_path: Path) -> None:
    fleet = two.fleet
    counted = f"INPUT -p tcp -s {fleet.addresses[SECOND]} --dport {FIRST_PORT}:{LAST_PORT}"
    fleet.must(FIRST, f"iptables -w -I {counted}")
    fleet.must(SECOND, f"mkdir -m 700 -p {FOLDER}; rm -f {FOLDER}/own*; ssh-keygen -q -t ed25519 -N '' -f {FOLDER}/own")
    try:
        good = two.signed(two.offer())
        changed = good.statement.replace(b'"seed":7', b'"seed":8')
        assert changed != good.statement
        a_key_less = {FIRST: two.keys[FIRST]}
        another_boot = two.test(boots={SECOND: str(uuid.uuid4())})
        refused = {
            "forged by a key of one's own": two.join(two.signed(two.offer(), by=SECOND, key=f"{FOLDER}/own")),
            "forged by another member": two.join(two.signed(two.offer(), by=SECOND)),
            "signed for another purpose": two.join(two.signed(two.offer(), namespace=fabric_view.NAMESPACE)),
            "changed": two.join(replace(good, statement=changed)),
            "of yesterday": two.join(two.signed(two.offer(age=timedelta(days=1)))),
            "of tomorrow": two.join(two.signed(two.offer(age=timedelta(days=-1)))),
            "of another boot": two.join(two.signed(two.offer(another_boot))),
            "brought to a stranger": two.join(good, at=STRANGER),
            "without a member's key": two.join(good, keys=a_key_less),
        }
        packets = fleet.must(FIRST, f"iptables -w -nvxL INPUT | grep dpts:{FIRST_PORT}:{LAST_PORT}").split()[0]
        assert packets == "0", "nothing was sent"
    finally:
        fleet.must(FIRST, f"iptables -w -D {counted}")
    # Joined once, with nobody there, it is used up.
    paths = " ".join(f"--{name} {FOLDER}/{name}" for name in ("offer", "keys"))
    short = two.signed(two.offer(replace(two.test(), valid_s=5.0)))
    fleet.ssh(SECOND, f"umask 077; cat > {FOLDER}/offer", stdin=short.document().decode())
    fleet.ssh(SECOND, f"umask 077; cat > {FOLDER}/keys",
              stdin=rendezvous.keys_text({name: two.keys[name] for name in (FIRST, SECOND)}))  # fmt: skip
    assert fleet.ssh(SECOND, f"gpu-burnin fabric join {paths} --output {FOLDER}/view").rc == 1, "rank 0 did not come"
    refused["replayed"] = two.join(short)
    assert refused == {
        "forged by a key of one's own": "signature",
        "forged by another member": "signature",
        "signed for another purpose": "signature",
        "changed": "signature",
        "of yesterday": "expired",
        "of tomorrow": "future",
        "of another boot": "boot",
        "brought to a stranger": "member",
        "without a member's key": "keys",
        "replayed": "used",
    }
