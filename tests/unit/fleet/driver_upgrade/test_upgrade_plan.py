"""Who gets another driver, in which batches, who is left; when the run stops, and what it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_burnin.admission.view import Pod
from gpu_burnin.api.record import Accepted, Ask, NodeAdmission, Spec, State, Status
from gpu_burnin.fleet.driver_upgrade import text
from gpu_burnin.fleet.driver_upgrade.book import Asked, Entry, Outcome, Run, Step
from gpu_burnin.fleet.driver_upgrade.plan import HostView, UpgradeRefused, plan, refuse_elsewhere

OLD, NEW = "575.57.08", "580.105.08"
DIFFERS = f"asks for driver {NEW}, {OLD} is loaded, and kubelet runs"
COMMAND = "ansible-playbook -i inventory/prod playbooks/driver_upgrade.yml"


def host(name: str, **more: object) -> HostView:
    record = NodeAdmission(name, status=Status(State.READY, code="PASS"))
    view = HostView(name, "nvidia", NEW, OLD, DIFFERS, record=record)
    return replace(view, **more)  # type: ignore[arg-type]


def entry(name: str, outcome: Outcome, run: str = "r0", **more: object) -> Entry:
    return replace(Entry(name, run, OLD, NEW, "t", outcome=outcome), **more)  # type: ignore[arg-type]


def planned(hosts: Sequence[HostView], *entries: Entry, most: int = 8, paused: str = "") -> Run:
    return plan(hosts, {one.node: one for one in entries}, paused, most, "r1")


def test_what_is_out_comes_first_then_what_failed_then_hosts_without_work() -> None:
    job = (Pod("ml", "train", "u"),)
    hosts = [host("gpu-1", pods=job), host("gpu-2"), host("gpu-3"), host("gpu-4", differs="")]
    run = planned(
        hosts, entry("gpu-4", Outcome.UNDER_WAY), entry("gpu-3", Outcome.FAILED), entry("gpu-2", Outcome.DONE)
    )
    assert run.hosts == ("gpu-4", "gpu-3", "gpu-2", "gpu-1")
    assert run.batches == (1, 1, 2)


def test_a_version_that_nobody_has_ends_the_run_and_one_host_without_a_source_is_left() -> None:
    """A mistake of the inventory is refused before work is asked to leave; of one host it stops no other."""
    lacks = "no package source of the host has nvidia-driver-cuda 580.99.01"
    with pytest.raises(UpgradeRefused, match=rf"^gpu-1, gpu-2: {lacks}; nothing was done$"):
        planned([host("gpu-1", lacks=lacks), host("gpu-2", lacks=lacks), host("gpu-3", differs="")])
    run = planned([host("gpu-1", lacks=lacks), host("gpu-2")])
    assert run.hosts == ("gpu-2",) and [(left.node, left.why) for left in run.left] == [("gpu-1", lacks)]
    with pytest.raises(UpgradeRefused, match=r"^gpu-1: no package source"):
        planned([host("gpu-1", lacks=lacks)], entry("gpu-1", Outcome.FAILED))


def stands(name: str, state: State, code: str, accepted: bool = False) -> HostView:
    proof = Accepted(1, "b", "s", "h", "quick", "t", "t", "t") if accepted else None
    status = Status(state, code=code, message=f"{name}: so it is", accepted=proof)
    return host(name, record=NodeAdmission(name, status=status))


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (host("g", differs=""), f"driver {NEW} is loaded"),
        (host("g", cannot="no GPU is on the PCI bus"), "no GPU is on the PCI bus"),
        (host("g", record=None), "the cluster does not know it: `site.yml -l g`"),
        (stands("g", State.QUARANTINED, "XID_FATAL"), "it is quarantined and does no work (XID_FATAL: so it is)"),
        (stands("g", State.SUSPECT, "GPU_BUSY"), "it is suspect"),
        (stands("g", State.NEW, "NODE_ABSENT"), "it is new"),
        (stands("g", State.TESTING, "EVIDENCE_MISSING"), "it is testing"),
        (stands("g", State.TESTING, "TEST_DUE", accepted=True), ""),
        (stands("g", State.QUARANTINED, "QUARANTINED_BY_PERSON"), ""),
        (stands("g", State.HELD, "HELD_BY_PERSON"), ""),
        (stands("g", State.EXPIRING, "EVIDENCE_EXPIRED"), ""),
        (stands("g", State.READY, "PASS"), ""),
    ],
)
def test_who_is_left_as_it_is(view: HostView, why: str) -> None:
    run = planned([view])
    assert bool(run.hosts) == (not why)
    assert [left.why[: len(why)] for left in run.left] == ([why] if why else [])
    assert all(left.as_asked == (not view.differs) for left in run.left)


@pytest.mark.parametrize("outcome", [Outcome.UNDER_WAY, Outcome.FAILED])
def test_one_that_a_run_of_before_keeps_out_is_taken_whatever_it_is(outcome: Outcome) -> None:
    faulty = stands("g", State.QUARANTINED, "XID_FATAL")
    assert planned([replace(faulty, differs="")], entry("g", outcome)).hosts == ("g",)


@pytest.mark.parametrize(
    ("hosts", "entries", "paused", "why"),
    [
        ([host("g", source="image"), host("h")], [], "", "g: fleet_nvidia_source is image"),
        ([host("g"), host("h", source="debian")], [], "", "not the same on all hosts (nvidia on g, debian on h)"),
        (
            [host("g"), host("h", wanted=OLD)],
            [],
            "",
            f"fleet_nvidia_driver_version is not the same on all hosts ({NEW}",
        ),
        ([host("g")], [], "bob: power works", "the fleet is paused (bob: power works)"),
        ([host("g")], [entry("h", Outcome.UNDER_WAY)], "", "h: a run that was lost on the way"),
    ],
)
def test_what_is_refused_as_a_whole(hosts: list[HostView], entries: list[Entry], paused: str, why: str) -> None:
    with pytest.raises(UpgradeRefused) as refused:
        planned(hosts, *entries, paused=paused)
    assert why in str(refused.value) and ";" in str(refused.value)


def test_one_that_is_out_and_cannot_be_reached_is_told_and_keeps_nobody() -> None:
    run = planned([host("g", cannot="no answer"), host("h")], entry("g", Outcome.UNDER_WAY))
    assert run.hosts == ("h",)
    assert run.left[0].why == "no answer; an earlier run keeps it out of work"


def test_a_failure_elsewhere_does_not_stop_others() -> None:
    assert planned([host("g")], entry("h", Outcome.FAILED), entry("i", Outcome.DONE)).hosts == ("g",)


def test_what_check_mode_shows() -> None:
    # Each line is read in the playbook that the note names.
    noted = f"{DIFFERS}; playbooks/driver_upgrade.yml -l HOST drains it and changes that"
    hosts = [host("gpu-1", differs=noted), host("gpu-2", pods=(Pod("ml", "train", "u"),)), host("gpu-3", differs="")]
    assert text.planned(planned(hosts), hosts) == [
        f"gpu-1  batch 1  driver {OLD} -> {NEW}: {DIFFERS}; work on it: none",
        f"gpu-2  batch 2  driver {OLD} -> {NEW}: {DIFFERS}; work on it: ml/train",
        f"gpu-3  left as it is: driver {NEW} is loaded",
    ]


def test_it_stops_at_so_many_that_stay_out() -> None:
    run = Run("r1", NEW, ("a", "b", "c", "d"), (1, 2, 1))
    ends = (Outcome.DONE, Outcome.GIVEN_BACK, Outcome.FAILED, Outcome.UNDER_WAY)
    entries = {name: entry(name, outcome, "r1") for name, outcome in zip("abcd", ends, strict=True)}
    stopped = text.stop(run, entries, 2)
    assert stopped.startswith(
        "2 failed (c, d) and driver_upgrade_max_failures is 2: no further batch begins; mend what"
    )
    assert text.stop(run, entries, 3) == ""
    of_before = {name: replace(one, run="r0") for name, one in entries.items()}
    assert text.stop(run, of_before, 1) == ""


def test_the_summary_says_what_became_of_each_and_what_to_do() -> None:
    run = Run(
        "r1", NEW, ("gpu-1", "gpu-2", "gpu-4", "gpu-5", "gpu-6"), (1, 2, 2), planned([host("gpu-3", differs="")]).left
    )
    entries = {
        one.node: one
        for one in (
            entry("gpu-1", Outcome.DONE, "r1"),
            entry("gpu-2", Outcome.GIVEN_BACK, "r1", why="work is still on it"),
            entry("gpu-4", Outcome.FAILED, "r1", why="burn-in FAIL: GPU 1"),
            entry("gpu-5", Outcome.UNDER_WAY, "r1", step=Step.TEST),
        )
    }
    assert text.summary(run, entries, COMMAND) == [
        f"gpu-1  done  driver {OLD} -> {NEW}",
        f"gpu-2  NOT DONE  driver {OLD} -> {NEW}: work is still on it",
        f"gpu-4  FAILED  driver {OLD} -> {NEW}: burn-in FAIL: GPU 1; it stays out of work",
        f"gpu-5  FAILED  driver {OLD} -> {NEW}: it was lost at the step test; it stays out of work",
        "gpu-6  untouched: the run ended before it",
        f"gpu-3  left as it is: driver {NEW} is loaded",
        f"to go on: mend what gpu-4, gpu-5 failed of, then {COMMAND} -l gpu-2,gpu-4,gpu-5,gpu-6",
        f"to go back: set fleet_nvidia_driver_version: {OLD} for gpu-1,gpu-4,gpu-5, then {COMMAND} "
        "-l gpu-1,gpu-4,gpu-5",
    ]
    done = Run("r1", NEW, ("gpu-1",), (1,))
    assert text.summary(done, entries, COMMAND) == [f"gpu-1  done  driver {OLD} -> {NEW}"]


def test_what_another_controller_has_begun_is_seen_in_the_ledger() -> None:
    def record_in_repair(who: str, why: str, since: str) -> NodeAdmission:
        return NodeAdmission("n", spec=Spec(repair=Ask(who, why, since)))

    records = {
        "gpu-1": record_in_repair("anna", "driver upgrade to 580.105.08", "2026-11-22T15:00:00Z"),
        "gpu-2": record_in_repair("bob", "driver upgrade to 580.105.08", "2026-11-22T14:00:00Z"),
        "gpu-3": record_in_repair("carl", "a new GPU", "2026-11-22T13:00:00Z"),
        "gpu-4": NodeAdmission("gpu-4"),
    }
    mine = records["gpu-1"].spec.repair
    assert mine is not None
    entries = {"gpu-1": Entry("gpu-1", "r", "1", "2", "t", asks=(Asked("repair", mine),))}
    with pytest.raises(UpgradeRefused, match=r"^gpu-2: bob upgrades drivers from another controller since .*T14"):
        refuse_elsewhere(records, entries)
    refuse_elsewhere({**records, "gpu-2": records["gpu-4"]}, entries)
