"""Leaders that die at any step, and sites that nobody has thought of."""

from __future__ import annotations

import random

from gpu_burnin.api.machine_power import Power
from gpu_burnin.scaler.model import Close, Failed, Reopen, Rules
from tests.support.scaler_site import Killed, Site, Unit, powers, site


def kills(made: Site, at: int) -> None:
    """The leader dies before its `at`-th step."""
    count = 0

    def before(step: str) -> None:
        nonlocal count
        count += 1
        if count == at:
            raise Killed(step)

    made.before = before


def _course_with_a_kill(at: int) -> str:
    """From a job that waits to a site that is off again, with a new leader after the kill; the step of the kill."""
    made = site(off=3, on=1, rules=Rules(idle_s=600, on_per_feed=100))
    job = made.ask("a/b", 3, seconds=1200)
    kills(made, at)
    killed = ""
    for _ in range(400):
        try:
            made.advance(30)
            made.settle()
        except Killed as step:
            killed = str(step)
            made.new_leader()
        for unit in made.units.values():
            _recorded(unit)
        if made.done and not any(powers(made).values()):
            break
    assert made.done == [job], killed
    assert not any(powers(made).values()), killed
    assert sum(unit.cycles for unit in made.units.values()) == 2, killed
    return killed


def test_a_leader_killed_at_any_step_leaves_nothing_that_the_next_does_not_finish() -> None:
    steps: list[str] = []
    while step := _course_with_a_kill(len(steps) + 1):
        steps.append(step)
    assert len(steps) >= 40 and steps.count("Switch: ordered, not recorded") == 5


def _recorded(unit: Unit) -> None:
    """No machine is on that no record speaks of: it was on before, or its wish says so."""
    if unit.on and unit.cycles:
        wish = unit.power.spec.wanted
        assert wish is None or wish.power is Power.ON or unit.power.status.reached != wish.since


def test_random_sites_come_to_rest_and_power_nothing_off_under_work() -> None:
    for seed in range(25):
        rng = random.Random(seed)
        made = Site(Rules(idle_s=300, on_per_feed=3, spare={"h100-sxm5-80gb": rng.randint(0, 2)}))
        for number in range(12):
            unit = made.add(f"m-{number:02}", on=rng.random() < 0.4, rack=f"r{number // 4}", feed=rng.choice("ab"))
            unit.outcomes = rng.choices(["ok", "sick", "never"], [8, 1, 1], k=3)
        for number in range(20):
            made.ask(f"t/{number}", rng.randint(1, 6), seconds=rng.uniform(60, 4000))
            made.run(rng.uniform(10, 2000))
            if rng.random() < 0.2:
                made.new_leader()
        for unit in made.units.values():
            _recorded(unit)
        # Those that failed are told; nothing is done twice for ever.
        assert all(not isinstance(act, Failed | Reopen | Close) for act in made.plan().acts)
