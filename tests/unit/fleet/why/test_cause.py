"""The first cause: a table of what was seen, and what set it off."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gpu_burnin.fleet.why.cause import BEFORE, CAUSES, ORDER, first_cause, in_order
from gpu_burnin.fleet.why.entry import Entry, Source, What, kind_of_finding

START = datetime(2026, 11, 22, 10, 0, tzinfo=UTC)
HOUR, DAY = 3600.0, 86400.0


def entry(after_s: float, what: What, message: str = "", *, node: str = "gpu-1", pod: str = "", who: str = "") -> Entry:
    at = START + timedelta(seconds=after_s)
    return Entry(at, Source.EVENT, what, message or f"{what} at {after_s:g}", who=who, node=node, pod=pod)


def end(after_s: float, pod: str = "a/p") -> Entry:
    return entry(after_s, What.ENDED, pod=pod)


E, X = What.ENDED, What.XID


@pytest.mark.parametrize(
    ("seen", "chain"),
    [
        pytest.param(
            [(0, X), (3, What.QUARANTINED), (5, What.DRAINED), (40, E)], [0, 3, 5, 40], id="XID 79 to eviction"
        ),
        pytest.param(
            [(0, X), (3, What.QUARANTINED), (5, What.DRAINED), (5 * DAY, E)], [0, 3, 5, 5 * DAY], id="held for days"
        ),
        pytest.param([(0, X), (1, E), (3, What.QUARANTINED)], [0, 1], id="it died of the XID before anybody said so"),
        pytest.param([(0, E), (2, X)], [2, 0], id="the XID is told a moment late"),
        pytest.param([(-300, X), (0, X), (2, What.AFTERMATH), (5, E)], [-300, 0, 5], id="the first of a burst"),
        pytest.param([(-3 * HOUR, X), (0, X), (5, E)], [0, 5], id="an XID of hours before is not of the burst"),
        pytest.param([(0, What.DRAINED), (19, What.AFTERMATH), (20, E)], [0, 20], id="a killed process' own XID"),
        pytest.param([(19, What.AFTERMATH), (20, E)], [19, 20], id="which counts when nothing else does"),
        pytest.param([(0, X), (8, What.OUT_OF_MEMORY), (8, E)], [8, 8], id="memory is what kubelet says itself"),
        pytest.param([(0, What.PREEMPTED), (1, What.DRAINED), (5, E)], [0, 5], id="preemption"),
        pytest.param([(0, What.PRESSURE), (5, E)], [0, 5], id="disk pressure"),
        pytest.param([(0, What.PERSON), (4, What.DRAINED), (30, E)], [0, 4, 30], id="a person's drain"),
        pytest.param([(0, What.PERSON), (30, E)], [0, 30], id="a person deleted the pod"),
        pytest.param([(-HOUR, What.PERSON), (30, E)], [30], id="what a person did an hour before is none"),
        pytest.param(
            [(0, What.MAINTENANCE), (300, What.BOOTED), (60, What.LOST), (60, E)], [0, 300, 60, 60], id="a window"
        ),
        pytest.param([(0, What.LOST), (400, What.BOOTED), (300, E)], [400, 300], id="a reboot is told when it is over"),
        pytest.param([(0, What.REBOOT), (60, What.BOOTED), (70, E)], [0, 60, 70], id="a play rebooted it"),
        pytest.param([(0, What.PLAY), (60, What.BOOTED), (70, E)], [60, 70], id="a play did something else before"),
        pytest.param(
            [(0, What.REBOOT), (50, What.PLAY), (60, What.BOOTED), (70, E)], [0, 60, 70], id="one rebooted it, one not"
        ),
        pytest.param([(0, What.REBOOT), (40, What.LOST), (70, E)], [0, 40, 70], id="gone since a play rebooted it"),
        pytest.param([(0, What.PLAY), (40, What.LOST), (70, E)], [40, 70], id="gone after a play"),
        pytest.param([(0, What.PERSON), (60, What.BOOTED), (70, E)], [60, 70], id="a person's cordon reboots nothing"),
        pytest.param([(0, X), (60, What.BOOTED)], [0, 60], id="an XID before a boot"),
        pytest.param([(0.9, What.PERSON), (0, What.DRAINED)], [0.9, 0], id="an event has full seconds"),
        pytest.param([(0, X), (0.4, X), (5, E)], [0, 0.4, 5], id="of two alike the earlier one is the cause"),
        pytest.param([(0, What.MAINTENANCE), (600, What.DRAINED), (630, E)], [0, 600, 630], id="drained for a window"),
        pytest.param([(0, X), (1800, What.FAULT), (1803, What.QUARANTINED)], [0, 1800, 1803], id="a burn-in found it"),
        pytest.param([(-60, What.BOOTED), (3, What.DOUBTED)], [-60, 3], id="a doubt after a boot"),
        pytest.param([(-60, What.LOST), (3, What.DOUBTED), (9, E)], [-60, 3, 9], id="a doubt after a silence"),
        pytest.param([(0, What.TOLD), (5, E)], [5], id="nothing known"),
        pytest.param([(0, What.FAULT), (-20, E)], [0, -20], id="a fault is told late"),
        pytest.param([(2 * HOUR, X), (0, E)], [0], id="what came after is no cause"),
        pytest.param([(39, What.EXITED), (40, E)], [39, 40], id="its program ended itself"),
        pytest.param([(0, X), (39, What.EXITED), (40, E)], [0, 40], id="for an XID that came before"),
        pytest.param([(0, What.EVICTED), (5, E)], [0, 5], id="Kueue took it off its nodes"),
        pytest.param([(0, What.DEADLINE), (0, What.EXITED), (5, E)], [0, 5], id="its own deadline"),
    ],
)  # fmt: skip
def test_the_chain_begins_with_what_set_it_off(seen: list[tuple[float, What]], chain: list[float]) -> None:
    timeline = [entry(at, what, pod="a/p" if what is E else "") for at, what in seen]
    effect = next((one for one in timeline if one.what is E), timeline[-1])
    found = first_cause(timeline, effect)
    assert [(one.at - START).total_seconds() for one in found.chain] == chain
    assert found.first is (found.chain[0] if len(chain) > 1 else None)


def test_what_nothing_links_lies_before_and_is_no_cause() -> None:
    play, boot, lost = entry(0, What.PLAY), entry(60, What.BOOTED), end(70)
    found = first_cause([play, boot, lost], lost)
    assert found.first is boot and found.before is play
    assert first_cause([play, lost], lost).before is play and first_cause([play, lost], lost).first is None
    reboot = entry(50, What.REBOOT)
    found = first_cause([play, reboot, boot, lost], lost)
    assert found.first is reboot and found.before is None


@pytest.mark.parametrize(
    ("told", "order"),
    [
        ([What.DOUBTED, What.BOOTED, What.REBOOT], [What.REBOOT, What.BOOTED, What.DOUBTED]),
        ([What.ENDED, What.TOLD, What.DRAINED, What.QUARANTINED, X], [X, What.QUARANTINED, What.DRAINED, What.TOLD, E]),
    ],
)
def test_within_a_second_causes_stand_before_effects(told: list[What], order: list[What]) -> None:
    """Sources are in their own order, and tell fractions or none."""
    entries = [entry(number / 10, what) for number, what in enumerate(told)]
    assert [one.what for one in in_order([*entries, *entries])] == order
    later = entry(1, X)
    assert in_order([later, *entries])[-1] is later


def test_the_admitter_s_own_order_is_kept() -> None:
    steps = [
        replace(entry(0, what, f"{number}"), source=Source.ADMISSION)
        for number, what in enumerate((What.LOST, What.TOLD, What.BOOTED, What.TOLD, What.QUARANTINED))
    ]
    evicted = entry(0, What.DRAINED)
    assert in_order([evicted, *steps]) == (*steps, evicted)


def test_a_finding_that_the_admitter_names_is_its_own_cause() -> None:
    effect = entry(3, What.QUARANTINED)
    found = first_cause([entry(-60, What.LOST), entry(-30, What.PLAY), effect], effect)
    assert found.chain == (effect,) and found.first is effect


def test_what_is_of_another_node_or_pod_is_no_cause() -> None:
    effect = end(10)
    for stranger in (entry(9, X, node="gpu-2"), entry(9, What.OUT_OF_MEMORY, pod="a/q")):
        assert first_cause([stranger, effect], effect).chain == (effect,)
    everywhere = entry(9, What.MAINTENANCE, node="")
    assert first_cause([everywhere, effect], effect).first == everywhere


def test_clocks_that_differ_widen_the_reach() -> None:
    effect, late = end(0), entry(200, X)
    assert first_cause([effect, late], effect).first is None
    assert first_cause([effect, late], effect, skew_s=150).first == late


def test_a_finding_explains_itself_and_an_end_does_not() -> None:
    fault = entry(0, What.QUARANTINED, "HBM_BIT_ERROR")
    assert first_cause([fault], fault).first == fault
    assert first_cause([end(0)], end(0)).first is None
    assert first_cause([], None).effect is None


def test_no_rule_leads_in_a_circle_for_ever() -> None:
    """Whatever kinds come in whatever order at one time, the chain ends."""
    timeline = [entry(number % 3, what, f"{number}", pod="") for number in range(3) for what in What]
    for effect in timeline:
        chain = first_cause(timeline, effect, skew_s=5).chain
        assert len(set(chain)) == len(chain)
    assert set(CAUSES) | set(BEFORE) < set(What) and sorted(ORDER) == sorted(What)


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("XID_FATAL", "XID 79 on GPU 3: GPU has fallen off the bus", X),
        ("XID_SUSPECT", "NVRM: Xid (PCI:0000:1b:00): 45, pid=1", What.AFTERMATH),
        ("XID_UNKNOWN", "Xid 9999", X),
        ("XID_FATAL", "", X),
        ("HBM_BIT_ERROR", "a bit flipped on GPU 3", What.FAULT),
        ("GPU_LOST", "after XID 79", X),
    ],
)
def test_a_finding_is_an_xid_where_it_says_so(code: str, message: str, kind: What) -> None:
    assert kind_of_finding(code, message) is kind


def test_a_wait_is_explained_by_what_took_the_job_off_its_nodes_and_that_by_its_image() -> None:
    wait = entry(100, What.WAITS, node="")
    evicted = entry(99, What.EVICTED, node="")
    image = entry(60, What.IMAGE, node="gpu-7", pod="a/p")
    assert first_cause([image, evicted, wait], wait).chain == (image, evicted, wait)
    unplaced = replace(image, what=What.UNPLACED)
    assert first_cause([unplaced, image, evicted, wait], wait).chain[0] == image, "an image is the more certain cause"
    assert first_cause([unplaced, evicted, wait], wait).chain[0] == unplaced
    late = replace(wait, at=START + timedelta(hours=2))
    assert first_cause([evicted, late], late).chain == (late,), "what it waits for now is something else"


def test_a_node_of_the_gang_explains_an_end_and_none_of_another_gang_does() -> None:
    ended, out = end(100), entry(101, What.QUARANTINED, node="gpu-2")
    program = entry(99, What.EXITED, pod="a/p")
    assert first_cause([program, out, ended], ended, gang=frozenset({"gpu-2"})).chain == (out, ended)
    assert first_cause([program, out, ended], ended, gang=frozenset({"gpu-3"})).chain == (program, ended)
    own = entry(98, What.DRAINED)
    assert first_cause([own, out, ended], ended, gang=frozenset({"gpu-2"})).chain == (own, ended), "its own node first"
    far = replace(out, at=START - timedelta(hours=1))
    assert first_cause([program, far, ended], ended, gang=frozenset({"gpu-2"})).chain == (program, ended)


def test_the_cause_of_a_node_of_the_gang_is_looked_for_on_that_node() -> None:
    ended, out = end(100), entry(101, What.QUARANTINED, node="gpu-2")
    there, here = entry(97, X, node="gpu-2"), entry(-3000, X)
    found = first_cause([here, there, out, ended], ended, gang=frozenset({"gpu-2"}))
    assert found.chain == (there, out, ended)
