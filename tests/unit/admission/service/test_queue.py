"""The work queue: each name once, its own pace for each name's trouble."""

from __future__ import annotations

import threading

import pytest

from gpu_burnin.admission.service.queue import BURST, FIRST_DELAY_S, SPACING_S, WorkQueue
from tests.support.clocks import HandClock


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1000.0)


@pytest.fixture
def queue(clock: HandClock) -> WorkQueue:
    return WorkQueue(clock, jitter=lambda: 1.0)


def taken(queue: WorkQueue) -> list[str]:
    """All names that may be looked at now, looked at."""
    names = []
    while len(queue):
        name = queue.get()
        assert name is not None
        queue.done(name)
        names.append(name)
    return names


def test_each_name_comes_once(queue: WorkQueue) -> None:
    queue.add_all(["a", "b", "a"])
    assert len(queue) == 2
    assert taken(queue) == ["a", "b"]


def test_what_comes_for_a_name_at_work_comes_after_it(queue: WorkQueue) -> None:
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    assert taken(queue) == []
    queue.done("a")
    assert taken(queue) == ["a"]


def test_trouble_doubles_its_delay_and_no_change_cuts_it_short(queue: WorkQueue, clock: HandClock) -> None:
    for delay in (FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S):
        queue.add("bad")
        assert queue.get() == "bad"
        assert queue.fail("bad") == pytest.approx(delay)
        queue.add("bad")
        queue.add("good")
        assert taken(queue) == ["good"]
        clock.now_s += delay
    assert (queue.failures("bad"), queue.delayed()) == (3, 1)
    assert taken(queue) == ["bad"]
    queue.reset_backoff("bad")
    queue.add("bad")
    assert (taken(queue), queue.failures("bad"), queue.delayed()) == (["bad"], 0, 0)


def test_the_newest_word_on_time_counts(queue: WorkQueue, clock: HandClock) -> None:
    queue.add_at("a", clock.now_s + 10)
    queue.add_at("b", clock.now_s + 10)
    queue.add_at("a", clock.now_s + 20)
    queue.add_at("b", None)
    clock.now_s += 15
    assert taken(queue) == []
    clock.now_s += 10
    assert taken(queue) == ["a"]


def test_a_name_that_changes_all_the_time_is_slowed_down_alone(queue: WorkQueue, clock: HandClock) -> None:
    looked = 0
    for _ in range(int(10 * BURST)):
        queue.add_all(["busy"])
        looked += taken(queue).count("busy")
        clock.now_s += 0.01
    assert BURST <= looked <= BURST + 3
    queue.add("calm")
    assert taken(queue) == ["calm"]
    clock.now_s += SPACING_S
    assert taken(queue) == ["busy"]


def test_closing_ends_who_waits(queue: WorkQueue) -> None:
    got: list[str | None] = []
    waiting = threading.Thread(target=lambda: got.append(queue.get()))
    waiting.start()
    queue.close()
    waiting.join(10)
    assert got == [None]
