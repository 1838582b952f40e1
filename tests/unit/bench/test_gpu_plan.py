"""How the time of the hardware day is shared: a pure function of the steps that are left and the time that is gone."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.bench.gpu.plan import CLOSING_S, STEPS, STOP_S, TOTAL_S, Step, allowance, chosen


def _step(name: str, least_s: float, most_s: float, priority: int = 1) -> Step:
    return Step(name, name, least_s, most_s, priority)


def _spend(steps: Sequence[Step], total_s: float, share: float = 1.0) -> tuple[float, list[str]]:
    """Seconds when every step takes `share` of all that it is given, and the steps that were left out."""
    elapsed_s, left_out = 0.0, []
    for place, step in enumerate(steps):
        allowed_s = allowance(steps[place:], elapsed_s, total_s)
        if allowed_s is None:
            left_out.append(step.name)
        else:
            assert step.least_s <= allowed_s <= step.most_s
            elapsed_s += share * allowed_s
    return elapsed_s, left_out


def test_whatever_the_steps_are_and_however_they_hang_the_time_is_kept() -> None:
    draw = random.Random(11)
    for _ in range(500):
        steps = []
        for number in range(draw.randint(1, 30)):
            least_s = draw.randint(0, 200)
            steps.append(_step(str(number), least_s, least_s + draw.randint(0, 300), draw.randint(0, 5)))
        total_s = draw.randint(0, 1000)
        assert _spend(steps, total_s)[0] <= max(0.0, total_s - CLOSING_S)


def test_our_steps_all_hanging_end_in_nine_minutes_and_the_important_ones_were_run() -> None:
    elapsed_s, left_out = _spend(STEPS, TOTAL_S)
    assert elapsed_s <= TOTAL_S - CLOSING_S
    assert left_out == ["standard"]


def test_our_steps_in_half_their_least_time_leave_room_for_the_standard_run() -> None:
    elapsed_s, left_out = 0.0, []
    for place, step in enumerate(STEPS):
        if allowance(STEPS[place:], elapsed_s) is None:
            left_out.append(step.name)
        elapsed_s += step.least_s / 2
    assert left_out == []


def test_a_more_important_step_keeps_its_time_and_a_less_important_one_does_not() -> None:
    steps = [_step("now", 10, 100, 2), _step("important", 50, 60, 1), _step("minor", 40, 60, 3)]
    assert allowance(steps, 0, 100 + CLOSING_S) == 10  # 50 and 40 are kept
    assert allowance(steps, 0, 80 + CLOSING_S) == 30  # the minor one does not fit any more
    assert allowance(steps, 0, 55 + CLOSING_S) is None  # not even this one does
    assert allowance(steps, 0, 500) == 100


def test_equally_important_steps_are_kept_time_in_their_order() -> None:
    steps = [_step("a", 10, 100), _step("b", 30, 30), _step("c", 80, 80)]
    assert allowance(steps, 0, 50 + CLOSING_S) == 20


def test_every_step_has_time_to_do_something_before_it_is_stopped() -> None:
    assert all(STOP_S < step.least_s <= step.most_s for step in STEPS)
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_a_standard_run_that_is_asked_for_comes_before_what_is_measured() -> None:
    names = [step.name for step in chosen((), standard=True)]
    assert names.index("quick") + 1 == names.index("standard")
    assert sorted(names) == sorted(step.name for step in STEPS)
    assert "standard" not in _spend(chosen((), standard=True), TOTAL_S)[1]
    assert [step.name for step in chosen(("node", "standard"), standard=True)] == ["node", "standard"]


def test_steps_by_name_keep_their_order() -> None:
    assert [step.name for step in chosen(("rates", "node"), standard=False)] == ["node", "rates"]
    with pytest.raises(ValueError, match="unknown step 'speed': choose from versions, node"):
        chosen(("speed",), standard=False)
