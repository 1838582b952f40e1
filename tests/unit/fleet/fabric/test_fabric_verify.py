"""Views that the controller takes, and those that are none: of another test, run, member, boot or round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.api import evidence, fabric_view, rendezvous
from gpu_burnin.api.fabric_documents import RendezvousError, Signed, parse_signed
from gpu_burnin.api.fabric_view import MemberView, Outcome, PeerView, RailView, WrongElement
from gpu_burnin.fabric.model import SignedView, View
from gpu_burnin.fabric.verify import Offered, Verified
from tests.support.rendezvous_hosts import (
    KEYS,
    MADE,
    NOW,
    OFFER,
    ONE,
    SECRET,
    TEST,
    THREE,
    TWO,
    Host,
    made,
    offered,
    result_of,
)

OFFERED = Offered(OFFER, MADE)
OTHER = ONE.signed(rendezvous.rendezvous_of(TEST, NOW - timedelta(seconds=90), 20001, b"o" * 32).canonical())


def verified(views: dict[str, bytes], boots: dict[str, str] | None = None) -> Verified:
    return result_of(OFFERED, views, KEYS, boots or {})


def test_views_of_all_members_are_a_result() -> None:
    rails = (RailView(0, Outcome.OK, 5e8, True), RailView(1, Outcome.WRONG, None, None))
    peers = (PeerView(0, "gpu-1", Outcome.WRONG, 3, WrongElement(17, "12.0", "13.0", "stale"), None),)
    views = {"gpu-1": ONE.view(OFFER), "gpu-2": TWO.view(OFFER, outcome=Outcome.WRONG, rails=rails, peers=peers)}
    found = verified(views, {"gpu-1": ONE.boot_id})
    assert found.refused == ()
    assert found.result.rebooted == ()
    assert [one.view for one in found.result.views] == [
        View(7, "gpu-1", "1.0", Outcome.OK, 1e9),
        View(7, "gpu-2", "1.0", Outcome.WRONG, 1e9, rails),
    ]
    assert all(one.signature.startswith("-----BEGIN SSH SIGNATURE-----") for one in found.result.views)
    assert found.found[1].peers == peers


def test_a_member_that_rebooted_meanwhile_is_named() -> None:
    found = verified({"gpu-1": ONE.view(OFFER)}, {"gpu-1": ONE.boot_id, "gpu-2": THREE.boot_id})
    assert found.result.rebooted == ("gpu-2",)
    assert [one.view.member for one in found.result.views] == ["gpu-1"]


def changed_byte(data: bytes) -> bytes:
    signed = parse_signed(data)
    return Signed(signed.statement.replace(b'"outcome":"ok"', b'"outcome":"mtu"'), signed.signature).document()


def unlike(**changes: Any) -> Callable[[], bytes]:
    return lambda: TWO.view(OFFER, **changes)


def as_signed(edit: Callable[[bytes], bytes]) -> Callable[[], bytes]:
    """A view whose text was edited before its own member signed it."""
    return lambda: TWO.signed(edit(parse_signed(TWO.view(OFFER)).statement), fabric_view.NAMESPACE).document()


PEER = PeerView(0, "gpu-1", Outcome.OK)
ATTACKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "another member's": (lambda: ONE.view(OFFER), "gpu-2: its view is not signed by its pinned host key as a view"),
    "in this name by another member": (lambda: ONE.view(OFFER, member="gpu-2"), "not signed by its pinned host key"),
    "by a new key": (lambda: Host(2).view(OFFER), "not signed by its pinned host key"),
    "of another name by its own key": (unlike(member="gpu-1"), "its view is of member gpu-1 and not gpu-2"),
    "another test's": (unlike(test=8), "its view is of test 8 and not 7"),
    "another run's": (unlike(run="6f1d9c0e-5a6b-4c3d-8e2f-000000000002"), "its view is of run 6f1d9c0e"),
    "of the last round": (lambda: TWO.view(OTHER), "its view is of rendezvous"),
    "of another boot": (unlike(boot_id=THREE.boot_id), f"its view is of boot {THREE.boot_id} and not {TWO.boot_id}"),
    "a changed byte": (lambda: changed_byte(TWO.view(OFFER)), "not signed by its pinned host key"),
    "no signature": (
        lambda: Signed(parse_signed(TWO.view(OFFER)).statement, "").document(),
        "not signed by its pinned",
    ),
    "signed as a rendezvous": (lambda: TWO.signed(parse_signed(TWO.view(OFFER)).statement).document(), "as a view"),
    "signed as evidence": (
        lambda: TWO.signed(parse_signed(TWO.view(OFFER)).statement, evidence.NAMESPACE).document(),
        "as a view",
    ),
    "the offer in its place": (lambda: OFFER.document(), "not signed by its pinned host key as a view"),
    "a key of JSON twice": (as_signed(lambda text: text[:-1] + b',"test":7}'), "a key appears twice"),
    "an unknown field": (as_signed(lambda text: text[:-1] + b',"zeal":7}'), "unknown: zeal"),
    "not canonical": (as_signed(lambda text: text[:-1] + b" }"), "not in canonical form"),
    "an outcome that is none": (as_signed(lambda text: text.replace(b'"ok"', b'"fine"')), "outcome: none of 'ok'"),
    "huge": (lambda: b" " * (1 << 20) + TWO.view(OFFER), "larger than 1048576 bytes"),
    "no JSON": (lambda: b"segmentation fault\n", "its view cannot be read"),
    "a rate that is none": (unlike(bytes_per_s=-1.0), "a bytes_per_s is no rate"),
    "an infinite rate": (as_signed(lambda text: text.replace(b"1000000000.0", b"1e999")), "a bytes_per_s is no rate"),
    "lines of text": (unlike(detail="all well\nFAIL: gpu-9"), "detail is not one line"),
    "a terminal's escapes": (unlike(detail="\x1b[2J"), "detail is not one line"),
    "of a run that writes to terminals": (unlike(run="\x1b[2J"), "run is not a UUID"),
    "a field that writes to terminals": (
        as_signed(lambda text: text[:-1] + b',"z\\u001b[2J\\n":7}'),
        "unknown: z?[2J?",
    ),
    "of another form of boot": (unlike(boot_id="x"), "boot_id is not of its form"),
    "of a version that is none": (unlike(version="1.0 or so"), "version is not of its form"),
    "of a digest that is none": (unlike(rendezvous="x"), "rendezvous is not a SHA-256"),
    "a peer's lines of text": (unlike(peers=(replace(PEER, detail="a\nb"),)), "detail is not one line"),
    "fewer than no wrong elements": (unlike(peers=(replace(PEER, wrong_elements=-1),)), "wrong_elements is no number"),
    "a wrong element before the first": (
        unlike(peers=(replace(PEER, first_wrong=WrongElement(-1, "0x1", "0x2", "stale")),)),
        "a position is none",
    ),
    "a wrong element of many words": (
        unlike(peers=(replace(PEER, first_wrong=WrongElement(1, "0x1", "0x2 \n", "stale")),)),
        "a value is none",
    ),
    "of a stranger": (unlike(peers=(PeerView(0, "gpu-9", Outcome.WRONG),)), "of peers or rails that the test does not"),
    "of itself": (unlike(peers=(PeerView(1, "gpu-2", Outcome.WRONG),)), "of peers or rails that the test does not"),
    "a peer twice": (unlike(peers=(PEER, PEER)), "the rank 0 stands twice"),
    "a rail twice": (unlike(rails=(RailView(0, Outcome.OK), RailView(0, Outcome.WRONG))), "the rail 0 stands twice"),
    "of a rail that is not tested": (unlike(rails=(RailView(5, Outcome.OK),)), "of peers or rails that the test does"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_does_not_verify_is_no_view_and_is_named(name: str) -> None:
    attempt, words = ATTACKS[name]
    found = verified({"gpu-1": ONE.view(OFFER), "gpu-2": attempt()})
    assert [one.view.member for one in found.result.views] == ["gpu-1"]
    (refused,) = found.refused
    assert refused.member == "gpu-2"
    assert refused.why.startswith("gpu-2: ")
    assert words in refused.why
    assert refused.why.isprintable()


def test_who_is_no_member_or_has_no_key_has_no_view() -> None:
    found = result_of(OFFERED, {"gpu-3": THREE.view(OFFER), "gpu-2": TWO.view(OFFER)}, {"gpu-3": THREE.key}, {})
    assert found.result.views == ()
    assert [one.why for one in found.refused] == [
        "gpu-3: is no member of test 7; leave its view out",
        "gpu-2: has no pinned host key; pin it (muster probe), and test again",
    ]


def test_the_offer_is_rank_0s_for_exactly_this_test() -> None:
    assert offered(OFFER.document(), TEST, KEYS, NOW) == OFFERED


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "gpu-1: its offer cannot be read"),
        (TWO.signed(MADE.canonical()).document(), "gpu-1: the offer is not signed by its pinned host key"),
        (ONE.signed(made(seed=6).canonical()).document(), "gpu-1: its offer is of another test than 7 of run"),
        (ONE.signed(made(members=(ONE.member, THREE.member)).canonical()).document(), "its offer is of another test"),
        (
            ONE.signed(rendezvous.rendezvous_of(TEST, NOW - timedelta(hours=1), 20001, SECRET).canonical()).document(),
            "gpu-1: the offer expired at 2026-11-28T11:02:00.000Z",
        ),
        (
            ONE.signed(rendezvous.rendezvous_of(TEST, NOW + timedelta(hours=1), 20001, SECRET).canonical()).document(),
            "gpu-1: the offer is 3600 s in the future",
        ),
    ],
)
def test_an_offer_that_is_not_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(RendezvousError, match=words):
        offered(data, TEST, KEYS, NOW)


def test_a_signed_view_is_kept_with_its_signature() -> None:
    data = TWO.view(OFFER)
    (kept,) = verified({"gpu-2": data}).result.views
    assert kept == SignedView(kept.view, parse_signed(data).signature)
    assert isinstance(verified({"gpu-2": data}).found[0], MemberView)
