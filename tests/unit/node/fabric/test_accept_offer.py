"""Which offers a member takes: one that rank 0 signed for it, in this boot, now; each attack gets one sentence."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.sshsig import signature_holds
from gpu_burnin.api import evidence, fabric_view
from gpu_burnin.api.fabric_documents import RendezvousError, Signed, Why
from gpu_burnin.api.rendezvous import Nic, keys_text, parse_keys, parse_test, rendezvous_of
from gpu_burnin.node.fabric.join import Accepted, accept
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import rfc3339
from tests.support.rendezvous_hosts import KEYS, MADE, NOW, OFFER, ONE, SECRET, TEST, THREE, TWO, Host, made

STATE = Path("/no/state")
LISTED = keys_text(KEYS).encode()


def accepted(
    offer: bytes = OFFER.document(), keys: bytes = LISTED, host: Host = TWO, now: datetime = NOW, **own: Any
) -> Accepted:
    return accept(offer, keys, replace(host.own(STATE), **own), now, signature_holds)


def text_changed(old: str, new: str) -> bytes:
    """The statement with other words, signed by rank 0 itself."""
    statement = MADE.canonical().decode()
    assert old in statement
    return ONE.signed(statement.replace(old, new).encode()).document()


def test_each_member_takes_the_offer_with_its_own_rank() -> None:
    assert [accepted(host=host).rank for host in (ONE, TWO)] == [0, 1]
    taken = accepted()
    assert taken.rendezvous == MADE
    assert taken.rendezvous.secret == SECRET
    assert taken.signed.statement == MADE.canonical()
    assert MADE.id not in repr(MADE)


RSA = b"\0\0\0\x07ssh-rsa\0\0\0\x01\x01"
ROGUE = Host(1)  # the name of rank 0, with another key
FLIPPED = Signed(OFFER.statement.replace(b'"port":20001', b'"port":20002'), OFFER.signature)
ATTACKS: dict[str, tuple[Callable[[], Accepted], Why, str]] = {
    "forged": (lambda: accepted(ROGUE.signed(MADE.canonical()).document()), Why.SIGNATURE, "not signed by its pinned"),
    "signed by another member": (lambda: accepted(TWO.signed(MADE.canonical()).document()), Why.SIGNATURE, "gpu-1: "),
    "evidence in its place": (
        lambda: accepted(ONE.signed(MADE.canonical(), evidence.NAMESPACE).document()),
        Why.SIGNATURE,
        "as a rendezvous",
    ),
    "a view's signature in its place": (
        lambda: accepted(ONE.signed(MADE.canonical(), fabric_view.NAMESPACE).document()),
        Why.SIGNATURE,
        "as a rendezvous",
    ),
    "no signature": (lambda: accepted(Signed(OFFER.statement, "").document()), Why.SIGNATURE, "fetch it anew"),
    "a changed byte": (lambda: accepted(FLIPPED.document()), Why.SIGNATURE, "not signed"),
    "expired": (lambda: accepted(now=NOW + timedelta(seconds=181)), Why.EXPIRED, "expired at 2026-11-28T12:02:00"),
    "from the future": (lambda: accepted(now=NOW - timedelta(seconds=61)), Why.FUTURE, "61 s in the future"),
    "of this node's boot before": (lambda: accepted(boot_id=ONE.boot_id), Why.BOOT, "make it anew"),
    "for others": (lambda: accepted(host=THREE), Why.MEMBER, "is no member of test 7; give the offer to gpu-1, gpu-2"),
    "of a node that took this one's name": (lambda: accepted(key=THREE.key), Why.MEMBER, "is not the host key here"),
    "rank 0 unknown": (
        lambda: accepted(keys=keys_text({"gpu-2": TWO.key}).encode()),
        Why.KEYS,
        "gpu-1: made the offer, and its host key is not among the keys",
    ),
    "another member unknown": (
        lambda: accepted(keys=keys_text({"gpu-1": ONE.key}).encode()),
        Why.KEYS,
        "gpu-2: is a member",
    ),
    "a key under two names": (
        lambda: accepted(keys=keys_text({**KEYS, "gpu-4": ONE.key}).encode()),
        Why.KEYS,
        "gpu-1 and gpu-4 have the same key",
    ),
    "a name with two keys": (
        lambda: accepted(keys=LISTED + f"gpu-1 {ROGUE.key}\n".encode()),
        Why.KEYS,
        "gpu-1 stands twice",
    ),
    "a key of another kind": (
        lambda: accepted(keys=f"gpu-1 ssh-rsa {b64encode(RSA).decode()}\n".encode()),
        Why.KEYS,
        "line 1 is not NAME",
    ),
    "a key that is none": (lambda: accepted(keys=b"gpu-1 ssh-ed25519 AAAA\n"), Why.KEYS, "line 1 is not NAME"),
    "a key of no node": (lambda: accepted(keys=f"../1 {ONE.key}\n".encode()), Why.KEYS, "line 1 is not NAME"),
    "an option before a key": (
        lambda: accepted(keys=f"gpu-1 cert-authority {ONE.key}\n".encode()),
        Why.KEYS,
        "line 1 is not NAME",
    ),
    "a member twice": (
        lambda: accepted(ONE.signed(made(members=(ONE.member, TWO.member, TWO.member)).canonical()).document()),
        Why.FORM,
        "the member gpu-2 stands twice",
    ),
    "an address twice": (
        lambda: accepted(
            ONE.signed(made(members=(ONE.member, replace(TWO.member, nics=ONE.member.nics))).canonical()).document()
        ),
        Why.FORM,
        "the address 198.51.0.1 stands twice",
    ),
    "a key of JSON twice": (lambda: accepted(text_changed('"test":7', '"test":7,"test":8')), Why.FORM, "appears twice"),
    "a key of the envelope twice": (
        lambda: accepted(OFFER.document().replace(b'{"signature"', b'{"statement":"","signature"')),
        Why.FORM,
        "appears twice",
    ),
    "an unknown field": (lambda: accepted(text_changed('"test":7', '"test":7,"then":1')), Why.FORM, "unknown: then"),
    "an unknown field that writes to terminals": (
        lambda: accepted(text_changed('"test":7', f'"test":7,"\\u001b[2J\\nok{"x" * 9000}":1')),
        Why.FORM,
        "unknown: ?[2J?okxxx",
    ),
    "a number without end": (lambda: accepted(text_changed('"seed":5', f'"seed":{"9" * 5000}')), Why.FORM, "integer"),
    "a statement that is no text": (lambda: accepted(b'{"statement":1,"signature":""}'), Why.FORM, "must be texts"),
    "a signature without end": (
        lambda: accepted(Signed(OFFER.statement, "x" * 4097).document()),
        Why.FORM,
        "the signature is too long",
    ),
    "a field beside the statement": (
        lambda: accepted(canonical_json({**json.loads(OFFER.document()), "more": 1})),
        Why.FORM,
        "not exactly a statement and a signature",
    ),
    "huge": (lambda: accepted(b" " * (1 << 20) + OFFER.document()), Why.FORM, "larger than 1048576 bytes"),
    "nested deep": (lambda: accepted(b'{"statement":' + b"[" * 100_000), Why.FORM, "nested too deep"),
    "not canonical": (lambda: accepted(text_changed('"test":7', '"test": 7')), Why.FORM, "not in canonical form"),
    "of another version": (
        lambda: accepted(text_changed("muster-fabric-rendezvous/v1", "muster-fabric-rendezvous/v2")),
        Why.FORM,
        "other versions of gpu-burnin do not meet",
    ),
    "a number that is none": (lambda: accepted(text_changed('"seconds":1.0', '"seconds":NaN')), Why.FORM, "seconds"),
    "an infinite time": (lambda: accepted(text_changed('"seconds":1.0', '"seconds":"inf"')), Why.FORM, "seconds"),
    "a port of the system": (lambda: accepted(text_changed("20001", "22")), Why.FORM, "port is not from 20000 to"),
    "the same id in other base64": (
        lambda: accepted(ONE.signed(made(id=f"{MADE.id[:-2]}9=").canonical()).document()),
        Why.FORM,
        "id is not base64",
    ),
    "an id that is no base64": (lambda: accepted(ONE.signed(made(id="~").canonical()).document()), Why.FORM, "base64"),
    "a time of another zone": (
        lambda: accepted(text_changed("2026-11-28T12:00:00.000Z", "2026-11-28T12:00:00.000+00:00")),
        Why.FORM,
        "does not end in Z",
    ),
    "a short id": (lambda: accepted(ONE.signed(made(id="AAAA").canonical()).document()), Why.FORM, "id is not 32"),
    "longer valid than it says": (
        lambda: accepted(ONE.signed(made(expires_at=rfc3339(NOW + timedelta(days=1))).canonical()).document()),
        Why.FORM,
        "does not expire valid_s after",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_in_one_sentence(name: str) -> None:
    attempt, why, words = ATTACKS[name]
    with pytest.raises(RendezvousError) as caught:
        attempt()
    assert (caught.value.why, caught.value.exit_code) == (why, 3), str(caught.value)
    message = str(caught.value)
    assert words in message
    # One line, with what to do behind a semicolon, and without the secret.
    assert message.isprintable()
    assert len(message) < 400
    assert ";" in message
    assert MADE.id not in message


def test_clocks_may_differ_by_a_minute() -> None:
    assert accepted(now=NOW - timedelta(seconds=60)).rank == accepted(now=NOW + timedelta(seconds=180)).rank == 1


def test_every_changed_byte_of_the_statement_is_seen() -> None:
    """Of both halves of what is signed: whichever stands in the file, the signature is of the other."""
    whole = OFFER.statement
    for at in range(0, len(whole), 7):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(RendezvousError):
            accepted(Signed(changed, OFFER.signature).document())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"run": "../etc"}, "run is not a UUID"),
        ({"members": (ONE.member,)}, "from 2 to 1024 members"),
        ({"members": (ONE.member, replace(TWO.member, name="../gpu"))}, "not the name of a node"),
        ({"members": (ONE.member, replace(TWO.member, boot_id="x"))}, "the boot_id of gpu-2"),
        ({"members": (ONE.member, replace(TWO.member, nics=()))}, "no rail has a NIC of every member"),
        ({"members": (ONE.member, replace(TWO.member, nics=(Nic(0, "gpu-2.example"),)))}, "no NIC on one of the rails"),
        (
            {"members": (ONE.member, replace(TWO.member, nics=(Nic(0, "198.51.0.9"), Nic(1, "gpu-2.example"))))},
            "'gpu-2.example' of gpu-2 is not the IP address of a host",
        ),
        (
            {"members": (ONE.member, replace(TWO.member, nics=(Nic(0, "198.51.0.9"), Nic(0, "198.51.1.9"))))},
            "gpu-2 has two NICs on one rail",
        ),
        (
            {"members": (ONE.member, replace(TWO.member, nics=(*TWO.member.nics, Nic(64, "198.51.2.9"))))},
            "gpu-2 has a rail that is not from 0 to 63",
        ),
        (
            {"members": (ONE.member, replace(TWO.member, nics=(Nic(0, "0.0.0.0"), Nic(1, "198.51.1.9"))))},
            "'0.0.0.0' of gpu-2 is not the IP address",
        ),
        ({"members": tuple(Host(number).member for number in range(1026))}, "from 2 to 1024 members"),
        ({"test": -1}, "test is not"),
        ({"rails": (0, 0)}, "the rail 0 stands twice"),
        ({"seconds": 0.0}, "seconds is not over 0"),
        ({"size_bytes": 0}, "size_bytes"),
        ({"seed": -1}, "seed"),
        ({"valid_s": 4000.0}, "valid_s is not from 1 to 3600"),
    ],
)
def test_a_test_that_cannot_be_run_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_test(replace(TEST, **changes).canonical())


def test_documents_come_back_as_they_were() -> None:
    assert parse_test(TEST.canonical()) == TEST
    assert parse_keys(keys_text(KEYS)) == KEYS
    assert rendezvous_of(TEST, NOW, 20001, SECRET).same_terms(TEST)
    assert not made(seed=6).same_terms(TEST)
