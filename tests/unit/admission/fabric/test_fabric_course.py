"""How a test goes on, from what is on its members' Nodes: each step, and each way to come to nothing."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from gpu_burnin.admission.fabric.course import ANSWER_S, Seen, Step, planned, step
from gpu_burnin.admission.sshsig import signature_holds
from gpu_burnin.api import fabric_view, rendezvous
from gpu_burnin.api.fabric_note import NO_ADDRESS, FabricAnswer, FabricRequest, Part
from gpu_burnin.api.fabric_view import Outcome
from gpu_burnin.api.rendezvous import parse_test
from tests.support.rendezvous_hosts import KEYS, ONE, RUN, SECRET, THREE, TWO, Host

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)
SETTLE_S = 5.0
HOSTS = {"gpu-1": ONE, "gpu-2": TWO}
REQUEST = planned(
    [(one.name, one.boot_id, one.member.nics) for one in HOSTS.values()],
    {name: KEYS[name] for name in HOSTS},
    NOW,
    seconds=10.0,
    size_bytes=1 << 20,
    settle_s=SETTLE_S,
    run=RUN,
)
TEST = parse_test(REQUEST.test.encode())
OFFER = ONE.signed(rendezvous.rendezvous_of(TEST, NOW, 20001, SECRET).canonical())
OFFERED = OFFER.document().decode()


@dataclass
class Nodes:
    """What is on the Nodes of the two members, and the step that follows."""

    seen: dict[str, Seen] = field(
        default_factory=lambda: {
            name: Seen(REQUEST, ready(one), (one.boot_id, one.boot_id), closed=True) for name, one in HOSTS.items()
        }
    )

    def change(self, name: str, **changes: object) -> Nodes:
        self.seen[name] = replace(self.seen[name], **changes)  # type: ignore[arg-type]
        return self

    def step(self, after_s: float = SETTLE_S, request: FabricRequest = REQUEST) -> Step:
        now = NOW + timedelta(seconds=after_s)
        return step(request, TEST, self.seen, now, settle_s=SETTLE_S, holds=signature_holds)


def ready(one: Host) -> FabricAnswer:
    return FabricAnswer(RUN, Part.READY, one.boot_id, offer=OFFERED if one is ONE else "")


def view(one: Host, outcome: Outcome = Outcome.OK) -> str:
    return one.view(OFFER, test=0, outcome=outcome).decode()


def given() -> FabricRequest:
    found = Nodes().step().give
    assert found is not None
    return found


def at_work(**views: str) -> Nodes:
    """After the offer was brought to both; members with a view are done."""
    nodes = Nodes()
    for name, one in HOSTS.items():
        text = views.get(name.replace("-", "_"), "")
        part = Part.DONE if text else Part.RUNNING
        nodes.change(name, request=given(), answer=FabricAnswer(RUN, part, one.boot_id, view=text))
    return nodes


def test_the_request_has_the_terms_and_the_keys_and_an_end() -> None:
    assert TEST.names == ("gpu-1", "gpu-2") and REQUEST.keys == {"gpu-1": ONE.key, "gpu-2": TWO.key}
    assert datetime.fromisoformat(REQUEST.until) - NOW < timedelta(minutes=4)
    assert SECRET.hex() not in repr(given()) and "offer" not in repr(given())


def test_the_offer_is_brought_to_both_when_both_are_closed_and_ready() -> None:
    found = Nodes().step().give
    assert found is not None and (found.offer, found.test, found.keys) == (OFFERED, REQUEST.test, REQUEST.keys)
    # Where one has it already, the other gets it.
    nodes = Nodes().change("gpu-1", request=found)
    assert nodes.step(request=found).give == found


@pytest.mark.parametrize(
    "changes",
    [
        {"closed": False},
        {"answer": None},
        {"answer": replace(ready(TWO), id="another test")},
    ],
)
def test_it_waits_for_the_taint_and_for_answers_and_then_comes_to_nothing(changes: dict[str, object]) -> None:
    nodes = Nodes().change("gpu-2", **changes)
    assert (nodes.step().give, nodes.step().result) == (None, None)
    late = nodes.step(SETTLE_S + ANSWER_S).result
    assert late is not None and list(late.absent) == ["gpu-2"] and late.views == ()


def test_it_waits_until_pods_that_were_placed_before_have_come() -> None:
    assert Nodes().step(SETTLE_S - 1).give is None


def test_a_member_that_was_not_asked_is_asked() -> None:
    assert Nodes().change("gpu-2", request=None, answer=None).step(0.0).give == REQUEST


@pytest.mark.parametrize("name", HOSTS)
def test_work_that_came_ends_it_before_the_offer_and_not_after(name: str) -> None:
    found = Nodes().change(name, hindrance="a pod with GPUs is on it").step()
    assert found.result is not None and found.result.absent == {name: "a pod with GPUs is on it"}
    assert at_work().change(name, hindrance="a pod with GPUs is on it").step(request=given()).result is None


@pytest.mark.parametrize("offered", [False, True])
@pytest.mark.parametrize("which", [0, 1])
def test_a_reboot_makes_it_inconclusive_whoever_tells_of_it(which: int, *, offered: bool) -> None:
    boots = [TWO.boot_id, TWO.boot_id]
    boots[which] = THREE.boot_id
    nodes, request = (at_work(), given()) if offered else (Nodes(), REQUEST)
    found = nodes.change("gpu-2", boots=tuple(boots)).step(request=request).result
    assert found is not None and found.rebooted == ("gpu-2",) and found.views == ()


def test_a_member_that_refuses_makes_it_inconclusive() -> None:
    refused = FabricAnswer(RUN, Part.REFUSED, TWO.boot_id, why="busy: a burn-in is under way")
    found = at_work().change("gpu-2", answer=refused).step(request=given()).result
    assert found is not None and found.absent == {"gpu-2": "busy: a burn-in is under way"}
    # What an agent says is one line, however much it is.
    found = at_work().change("gpu-2", answer=replace(refused, why="x\n" * 40000)).step(request=given()).result
    assert found is not None and len(found.absent["gpu-2"]) < 1000 and "\n" not in found.absent["gpu-2"]


def test_a_member_without_its_address_is_told_from_one_that_is_busy() -> None:
    refused = FabricAnswer(RUN, Part.REFUSED, TWO.boot_id, why="no interface has it", fault=NO_ADDRESS)
    found = at_work().change("gpu-2", answer=refused).step(request=given())
    assert found.faults == {"gpu-2": "no interface has it"} and found.result is not None
    assert at_work().change("gpu-2", answer=replace(refused, fault="")).step(request=given()).faults == {}


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        ("{}", "its offer cannot be read"),
        (TWO.signed(OFFER.statement).document().decode(), "not signed by its pinned host key"),
        (ONE.signed(OFFER.statement, fabric_view.NAMESPACE).document().decode(), "not signed by its pinned host key"),
        (
            ONE.signed(rendezvous.rendezvous_of(replace(TEST, test=1), NOW, 20001, SECRET).canonical())
            .document()
            .decode(),
            "its offer is of another test",
        ),
        (
            ONE.signed(rendezvous.rendezvous_of(TEST, NOW - timedelta(hours=1), 20001, SECRET).canonical())
            .document()
            .decode(),
            "the offer expired",
        ),
    ],
)
def test_an_offer_that_is_not_rank_0s_for_this_test_is_brought_to_nobody(offer: str, why: str) -> None:
    nodes = Nodes().change("gpu-1", answer=replace(ready(ONE), offer=offer))
    found = nodes.step()
    assert found.give is None and found.result is not None and why in found.result.refused["gpu-1"]


def test_both_views_are_the_result() -> None:
    assert at_work(gpu_1=view(ONE)).step(request=given()).result is None
    found = at_work(gpu_1=view(ONE), gpu_2=view(TWO, Outcome.WRONG)).step(request=given())
    assert found.result is not None and found.result.refused == {}
    assert [one.view.outcome for one in found.result.views] == [Outcome.OK, Outcome.WRONG]
    assert found.found == {"gpu-1": "ok", "gpu-2": "wrong"}


def test_a_view_that_another_key_signed_is_none() -> None:
    forged = Host(2).view(OFFER, test=0).decode()
    found = at_work(gpu_1=view(ONE), gpu_2=forged).step(request=given()).result
    assert found is not None and [one.view.member for one in found.views] == ["gpu-1"]
    assert "not signed by its pinned host key" in found.refused["gpu-2"]


def test_who_has_begun_and_says_nothing_is_silent_and_who_has_not_is_absent() -> None:
    nodes = at_work(gpu_1=view(ONE))
    found = nodes.step(600.0, given()).result
    assert found is not None and [one.view.member for one in found.views] == ["gpu-1"] and not found.absent
    found = nodes.change("gpu-2", answer=ready(TWO)).step(600.0, given()).result
    assert found is not None and list(found.absent) == ["gpu-2"]
