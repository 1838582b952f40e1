"""What the scaler does with a small site, from a job that waits to machines that are off again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_burnin.api.machine_power import Power
from gpu_burnin.api.names import LEAF_LABEL, RACK_LABEL
from gpu_burnin.api.record import Ask, State
from gpu_burnin.scaler.decide import IN_DOUBT, PAUSED, UNREADABLE, decide
from gpu_burnin.scaler.model import Answer, Asked, Close, Observe, Rules, SetWish, Switch, Verdict
from gpu_burnin.system.clock import rfc3339
from tests.support.scaler_site import RULES, Site, names_of, powers, site


def test_a_gang_of_two_gets_two_of_three_machines_and_they_go_when_idle() -> None:
    made = site(off=3)
    job = made.ask("vision/train", 2)
    made.run(1200)
    assert job.begun is not None and sum(powers(made).values()) == 2
    made.run(3600)
    assert made.done == [job] and sum(powers(made).values()) == 2
    made.run(2400)
    assert not any(powers(made).values())
    assert all(unit.power.off for unit in made.units.values() if unit.cycles)
    assert [unit.cycles for unit in made.units.values()] == [1, 1, 0]


def test_a_wish_is_written_before_the_order_and_the_order_names_no_other() -> None:
    made = site(off=1)
    made.ask("a/b", 1)
    first = made.plan()
    assert [type(act) for act in first.acts if not isinstance(act, Answer)] == [SetWish]
    made.carry_out(next(act for act in first.acts if isinstance(act, SetWish)))
    assert [act for act in made.plan().acts if isinstance(act, Switch)] == [Switch("off-0", Power.ON)]


def test_free_nodes_serve_and_nothing_is_put_on() -> None:
    made = site(off=2, on=2)
    job = made.ask("a/b", 2)
    made.settle()
    assert job.state is Asked.PROVISIONED and sum(powers(made).values()) == 2


def test_a_job_that_ran_before_its_queue_had_the_check_is_left_alone() -> None:
    """Kueue asks for it like for any other, and ends it when it is refused; there is no machine beside its own."""
    made = site(off=1, on=2)
    job = made.ask("a/b", 2)
    made.settle()
    assert job.begun is not None and sorted(job.on) == ["on-0", "on-1"]
    job.state, job.message = Asked.OPEN, ""
    made.settle()
    assert (job.state, job.message) == (Asked.PROVISIONED, "its job runs already, on 2 nodes")
    assert sum(powers(made).values()) == 2, "nothing is put on for it"


def test_it_is_told_who_comes() -> None:
    made = site(off=5)
    job = made.ask("a/b", 5)
    made.settle()
    assert job.message == "0 of 5 nodes take work; on their way: off-0, off-1, off-2 and 2 more"


def test_one_that_is_sick_at_power_on_is_replaced_and_named() -> None:
    made = site(off=3)
    made.units["off-0"].outcomes = ["sick"]
    job = made.ask("a/b", 2)
    made.run(2400)
    assert job.begun is not None and sorted(job.on) == ["off-1", "off-2"]
    sick = made.units["off-0"]
    assert sick.on and not sick.hold and sick.state is State.QUARANTINED
    failure = sick.power.status.last_failure
    assert failure is not None and "its burn-in found GEMM_MISMATCH" in failure.message


def test_one_that_never_comes_is_put_off_and_tried_once_more_then_it_is_a_persons() -> None:
    made = site(off=1)
    unit = made.units["off-0"]
    unit.outcomes = ["never", "never", "ok"]
    job = made.ask("a/b", 1)
    made.run(4000)
    assert not unit.on and unit.power.status.failures == 1 and job.begun is None
    made.run(8000)
    assert unit.power.status.held.startswith("LATE: off-0: it does not take work 3600 s after it was wanted")
    orders = len([act for act in made.history if isinstance(act, Switch)])
    made.run(20000)
    assert len([act for act in made.history if isinstance(act, Switch)]) == orders
    assert any("off-0: it is held" in note for note in made.plan().notes)
    release = Ask("ann", "cable", rfc3339(made.now))
    unit.power = unit.power.__class__(
        unit.name, unit.power.spec.__class__(**{**vars(unit.power.spec), "release": release}), unit.power.status
    )
    made.run(3600)
    assert job.begun is not None and unit.power.status.failures == 0


def test_a_bmc_that_does_not_answer_costs_the_job_no_more_than_the_next_machine() -> None:
    made = site(off=2)
    made.units["off-0"].provider = "error"
    job = made.ask("a/b", 1)
    made.run(1200)
    assert job.on == ["off-1"]
    failure = made.units["off-0"].power.status.last_failure
    assert failure is not None and failure.code == "POWER"


def test_without_enough_machines_none_is_put_on_and_the_request_fails_with_figures() -> None:
    made = site(off=2, on=1)
    job = made.ask("a/b", 4)
    made.settle()
    assert not any(made.units[name].on for name in ("off-0", "off-1"))
    assert job.message.startswith("4 pods of 8 GPUs of h100-sxm5-80gb are wanted")
    assert "have room for 3" in job.message


def test_machines_that_are_off_and_looked_at_just_now_are_waited_for() -> None:
    made = site(off=1)
    made.ask("a/b", 1)
    looked_at = tuple(replace(one, switching=True) for one in made.world().machines)
    (answer,) = decide(replace(made.world(), machines=looked_at), RULES, made.now).acts
    assert isinstance(answer, Answer) and answer.verdict is Verdict.WAIT


def test_another_model_is_no_help() -> None:
    made = site(off=2)
    job = made.ask("a/b", 1, model="b200")
    made.settle()
    assert "of b200" in job.message and not any(powers(made).values())


def test_a_job_within_one_leaf_gets_the_leaf_that_needs_fewest() -> None:
    made = Site(RULES)
    for number in range(3):
        made.add(f"a-{number}", leaf="a", rack=f"ra{number}")
        made.add(f"b-{number}", leaf="b", rack=f"rb{number}", on=number == 0)
    made.settle()
    job = made.ask("a/b", 3, within=LEAF_LABEL)
    made.run(1200)
    assert sorted(job.on) == ["b-0", "b-1", "b-2"]
    lost = made.ask("a/c", 2, within=RACK_LABEL)
    made.settle()
    assert "fit into no one rack" in lost.message


def test_whole_racks_are_put_on_first() -> None:
    made = Site(RULES)
    for rack in ("r1", "r2", "r3"):
        for number in range(2 if rack == "r1" else 4):
            made.add(f"{rack}-{number}", rack=rack)
    made.settle()
    made.ask("a/b", 4)
    made.settle()
    assert {made.units[name].power.spec.place.rack for name, on in powers(made).items() if on} == {"r2"}


def test_two_requests_share_no_machine() -> None:
    made = site(off=3)
    first, second = made.ask("a/1", 2), made.ask("a/2", 2)
    made.run(1200)
    assert len(first.on) == 2 and second.begun is None
    assert sum(powers(made).values()) == 2


def test_what_was_provided_is_kept_until_the_booking_ends() -> None:
    made = site(on=2, rules=Rules(idle_s=60, booking_s=600, on_per_feed=100))
    made.before = lambda step: None
    job = made.ask("a/1", 2)
    plan = made.plan()
    made.carry_out(plan.acts[0])
    assert job.state is Asked.PROVISIONED
    # Kueue does not come: no work begins.
    late = made.now + timedelta(seconds=500)
    made.now = late
    assert names_of(made.plan().acts, SetWish) == []
    made.now = late + timedelta(seconds=200)
    acts = made.plan().acts
    assert Verdict.EXPIRED in [act.verdict for act in acts if isinstance(act, Answer)]
    assert len(names_of(acts, SetWish)) == 1


def test_a_machine_on_its_way_off_is_taken_back_for_a_job() -> None:
    made = site(on=1, rules=Rules(idle_s=60, on_per_feed=100))
    made.advance(120)
    for act in made.plan().acts:
        made.carry_out(act)
    for act in made.plan().acts:
        made.carry_out(act)
    made.react()
    assert made.units["on-0"].hold
    job = made.ask("a/b", 1)
    made.settle()
    assert job.on == ["on-0"] and made.units["on-0"].cycles == 0
    assert not made.units["on-0"].hold


@pytest.mark.parametrize(
    "changes",
    [
        {"used": 8},
        {"asked": "hold of ann: fan"},
        {"unheard": True},
        {"state": State.EXPIRING},
        {"idle_since": None},
        {"kubelet": False},
    ],
)
def test_what_is_not_idle_and_well_stays_on(changes: dict[str, object]) -> None:
    made = site(on=3)
    for key, value in changes.items():
        setattr(made.units["on-0"], key, value)
    made.now += timedelta(seconds=3600)
    assert "on-0" not in names_of(made.plan().acts, SetWish)


def test_the_spare_is_kept_and_filled_up() -> None:
    made = site(off=3, rules=Rules(idle_s=60, spare={"h100-sxm5-80gb": 2}, on_per_feed=100))
    made.run(1200)
    assert sum(powers(made).values()) == 2
    made.run(7200)
    assert sum(powers(made).values()) == 2
    made.ask("a/b", 1, seconds=36000)
    made.run(1800)
    assert sum(powers(made).values()) == 3


def test_a_tenth_goes_at_a_time() -> None:
    made = site(on=40)
    made.advance(2000)
    plan = made.plan()
    assert len(names_of(plan.acts, SetWish)) == 4
    assert "36 idle nodes wait: 4 of 40 are on their way off, 4 may be" in plan.notes


def test_at_one_feed_so_many_come_on_in_a_minute() -> None:
    made = Site(Rules(on_per_feed=4, feed_s=60))
    for number in range(12):
        made.add(f"a-{number:02}", feed="a")
    made.settle()
    made.ask("a/b", 12)
    made.settle()
    assert sum(powers(made).values()) == 4
    made.run(65, step_s=5)
    assert sum(powers(made).values()) == 8
    made.run(65, step_s=5)
    assert sum(powers(made).values()) == 12


def test_nodes_that_swing_at_a_feed_count_as_machines_that_come_on_there() -> None:
    made = Site(Rules(on_per_feed=2, feed_s=60))
    for feed in "ab":
        for number in range(2):
            made.add(f"{feed}-{number}", feed=feed)
    made.add("a-9", feed="a", on=True, used=8, swings=True)
    made.add("c-9", feed="c", on=True, used=8, swings=True)
    made.settle()
    made.ask("a/b", 4)
    made.settle()
    assert {name for name, on in powers(made).items() if on} == {"a-9", "c-9", "a-0", "b-0", "b-1"}
    why = "feed a: 1 machines wait until others have come on, and the power waves of a-9 are over"
    assert why in made.plan().notes
    made.units["a-9"].swings = False
    made.settle()
    assert powers(made)["a-1"]


def doubted(made: Site, share: float) -> None:
    at_work = [unit for unit in made.units.values() if unit.on]
    for unit in at_work[: round(share * len(at_work))]:
        unit.state = State.SUSPECT
        unit.failed = (made.now, "X")


def test_at_49_in_100_in_doubt_it_works_and_at_51_it_does_nothing() -> None:
    for share, braked in ((0.49, ""), (0.5, ""), (0.51, IN_DOUBT)):
        made = site(on=100, off=10)
        doubted(made, share)
        made.advance(2000)
        made.ask("a/b", 55)
        plan = made.plan()
        assert plan.braked == braked
        assert bool(names_of(plan.acts, SetWish)) is not bool(braked)
        if braked:
            assert plan.notes[0].startswith("nothing is switched: 51 of 100 nodes that are on are in doubt")


def test_machines_that_are_off_or_a_persons_are_in_nobodys_doubt() -> None:
    made = site(on=2, off=100)
    made.advance(10)
    assert made.plan().braked == ""
    for unit in made.units.values():
        if unit.on:
            unit.asked = "hold of ann: fan"
    assert made.plan().braked == ""


@pytest.mark.parametrize(
    ("brake", "code"),
    [({"paused": "by ann: moving"}, PAUSED), ({"unreadable": "the API server was silent"}, UNREADABLE)],
)
def test_a_pause_and_a_silent_api_stop_all_but_looking(brake: dict[str, str], code: str) -> None:
    made = site(on=1, off=1)
    made.ask("a/b", 2)
    for act in made.plan().acts:
        made.carry_out(act)
    for key, value in brake.items():
        setattr(made, key, value)
    plan = made.plan()
    assert plan.braked == code and not any(isinstance(act, Switch | SetWish | Close | Answer) for act in plan.acts)
    made.units["off-0"].power = made.units["off-0"].power.__class__("off-0", made.units["off-0"].power.spec)
    made.new_leader()
    assert Observe("off-0") in made.plan().acts


def test_work_that_comes_before_the_doors_are_shut_keeps_its_node() -> None:
    made = site(on=1, rules=Rules(idle_s=60))
    made.advance(120)
    for _ in range(2):
        for act in made.plan().acts:
            made.carry_out(act)
    unit = made.units["on-0"]
    assert unit.hold
    unit.used = 8
    made.settle()
    assert unit.on and not unit.hold and unit.power.spec.wanted is None


def test_pods_without_gpus_leave_before_the_power_goes() -> None:
    made = site(on=1, rules=Rules(idle_s=60))
    unit = made.units["on-0"]
    unit.others = 1
    made.advance(120)
    seen = []
    made.before = lambda step: seen.append((step, unit.leave, unit.others))
    made.run(120, 5)
    assert not unit.on
    assert next(others for step, _, others in seen if step.startswith("Switch")) == 0
    assert any(leave for _, leave, _ in seen)


def test_an_old_wish_powers_off_nothing_that_works_after_a_restore() -> None:
    made = site(on=3, rules=Rules(idle_s=60))
    made.advance(120)
    for act in made.plan().acts:
        made.carry_out(act)
    unit = next(unit for unit in made.units.values() if unit.power.spec.wanted is not None)
    # The snapshot: off was wanted, and the ledger was closed. Since then it went off, came back, and works.
    made.advance(30)
    unit.restored_at, unit.hold, unit.state, unit.unheard = made.now, rfc3339(made.now), State.HELD, True
    made.advance(100)
    made.settle()
    assert unit.on and unit.power.spec.wanted is None
    assert not any(isinstance(act, Switch) for act in made.history)
    unit.unheard = False
    made.settle()
    assert not unit.hold


def test_after_a_restore_a_machine_that_is_off_stays_off_and_is_known_to_be() -> None:
    made = site(off=1)
    made.ask("a/b", 1, seconds=60)
    made.run(1200)
    unit = made.units["off-0"]
    unit.on, unit.kubelet, unit.restored_at = False, False, made.now
    made.jobs.clear()
    made.new_leader()
    unit.power = unit.power.__class__(unit.name, unit.power.spec, unit.power.status.__class__())
    made.advance(60)
    made.settle()
    assert not unit.on and unit.power.off and unit.hold


def test_what_a_person_puts_on_stays_on_and_what_he_puts_off_stays_off() -> None:
    made = site(on=2, rules=Rules(idle_s=60))
    made.run(600, 10)
    off = [unit for unit in made.units.values() if not unit.on]
    assert len(off) == 2
    unit = off[0]
    unit.on, unit.boots_until = True, made.now
    made.carry_out(Observe(unit.name))
    made.settle()
    assert unit.on and unit.power.spec.wanted is None and not unit.hold
    made.advance(20)
    assert unit.state is State.READY
    made.ask("a/b", 2, seconds=600)
    made.run(1200)
    other = off[1]
    other.on = other.kubelet = False
    made.carry_out(Observe(other.name))
    made.run(30)
    assert not other.on
    assert f"{other.name}: it is off, and the scaler has not switched it off" in " ".join(made.plan().notes)


def test_a_bmc_that_lies_is_named() -> None:
    made = site(off=1)
    unit = made.units["off-0"]
    made.ask("a/b", 1)
    made.run(1000)
    unit.provider = "lies"
    made.carry_out(Observe("off-0"))
    made.run(280)
    assert not unit.power.status.held
    made.run(30)
    assert not unit.power.status.held
    made.carry_out(Observe("off-0"))
    made.settle()
    assert "its provider says that the power is off, and its kubelet reports" in unit.power.status.held


def test_a_bmc_that_takes_the_order_and_does_nothing_is_named() -> None:
    made = site(off=2)
    made.units["off-0"].provider = "deaf"
    job = made.ask("a/b", 1)
    made.run(1500)
    failure = made.units["off-0"].power.status.last_failure
    assert job.on == ["off-1"]
    assert failure is not None and "took the order, and the power is still" in failure.message


def test_a_node_that_has_never_joined_is_in_nobodys_doubt() -> None:
    made = site(off=1)
    world = made.world()
    stranger = replace(world.machines[0], name="new", switched=False, doubt=True)
    job = replace(world, machines=(*world.machines, stranger))
    assert decide(job, made.rules, made.now).braked == ""
    joined = replace(job, machines=(*world.machines, replace(stranger, there=True)))
    assert decide(joined, made.rules, made.now).braked == IN_DOUBT
