"""Ctrl-C and SIGTERM: noted at any time, raised only while checks run."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from gpu_burnin.system.interrupts import Interrupts


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_raised_while_checks_run(number: signal.Signals) -> None:
    interrupts = Interrupts()
    with interrupts.taken(), pytest.raises(KeyboardInterrupt), interrupts.raising():
        send(number)


def test_a_signal_of_before_is_raised_when_checks_begin_and_one_of_after_is_not() -> None:
    interrupts = Interrupts()
    with interrupts.taken():
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.raising():
            raise AssertionError("not reached")
        send(signal.SIGTERM)


def test_a_third_signal_is_only_noise() -> None:
    interrupts = Interrupts()
    raised = 0
    with interrupts.taken():
        for _ in range(4):
            try:
                with interrupts.raising():
                    send(signal.SIGINT)
            except KeyboardInterrupt:
                raised += 1
    assert raised == 2


def test_a_second_signal_on_the_way_out_of_the_first_waits_for_its_turn() -> None:
    interrupts = Interrupts()
    with interrupts.taken():
        with pytest.raises(KeyboardInterrupt), interrupts.raising():
            try:
                send(signal.SIGINT)
            finally:
                send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.raising():
            raise AssertionError("not reached")
        with interrupts.raising():
            pass


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        with interrupts.taken(), interrupts.raising():
            send(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_callers_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts().taken():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_last_that_a_process_does_is_not_cut_short_by_a_signal() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [(number, signal.getsignal(number)) for number in numbers]
    try:
        with Interrupts(last=True).taken():
            pass
        for number in numbers:
            send(number)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def test_outside_the_main_thread_the_callers_handlers_stay() -> None:
    seen = []

    def work() -> None:
        with Interrupts().taken():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
