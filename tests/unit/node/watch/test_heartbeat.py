"""The agent's heartbeat: it comes each minute while the GPUs are watched, and from nobody else."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.api.agent_note import read_note
from gpu_burnin.api.heartbeat import RENEW_JITTER, RENEW_S, Heartbeat
from gpu_burnin.node.api import ApiRefused, NotYet
from gpu_burnin.node.watch.heartbeat import Pulse, Sender
from gpu_burnin.settings.config import Config
from tests.support.agent_helpers import Bench, healthy
from tests.support.report_helpers import BOOT

AT = datetime(2026, 11, 27, 3, 0, 0, tzinfo=UTC)
BEAT = Heartbeat(BOOT, "2026-11-27T02:00:00.000Z", "2026-11-27T03:00:00.000Z")
LONGEST_S = RENEW_S * (1 + RENEW_JITTER)
# A real one takes a look each second.
STEP_S = 10


@pytest.fixture
def bench(config: Config, root: Path, tmp_path: Path) -> Bench:
    return Bench(config, root, tmp_path / "leave.json")


def watched(bench: Bench, seconds: float, *, nvml: bool = True) -> int:
    """How many heartbeats come in so many seconds of an agent whose NVML answers, or hangs."""
    before = len(bench.beats)
    for _ in range(0, round(seconds), STEP_S):
        if nvml:
            bench.gpus(healthy())
        bench.tick(STEP_S)
    return len(bench.beats) - before


class TestAgent:
    def test_it_beats_at_once_and_then_each_minute(self, bench: Bench) -> None:
        assert watched(bench, 3) == 1
        assert 7 <= watched(bench, 10 * RENEW_S) <= 12
        first, last = bench.beats[0], bench.beats[-1]
        assert (first.boot_id, first.started_at) == (last.boot_id, last.started_at) == (BOOT, first.started_at)
        assert len({beat.renew_time for beat in bench.beats}) == len(bench.beats)

    def test_its_note_says_that_it_does(self, bench: Bench) -> None:
        bench.tick()
        assert read_note(bench.wanted["muster.dev/agent"] or "").heartbeat

    def test_a_new_process_is_another(self, bench: Bench) -> None:
        watched(bench, 3)
        bench.restart()
        watched(bench, 3)
        assert bench.beats[0].started_at != bench.beats[1].started_at

    def test_none_comes_before_the_gpus_were_read(self, bench: Bench) -> None:
        assert watched(bench, 30, nvml=False) == 0

    def test_none_comes_while_nvml_hangs(self, bench: Bench) -> None:
        watched(bench, 3)
        watched(bench, bench.config.watch_poll_s + 2 * RENEW_S, nvml=False)
        assert watched(bench, 3 * RENEW_S, nvml=False) == 0
        assert "no heartbeat is sent, since nobody watches: NVML hangs" in bench.said
        assert watched(bench, 3) == 1

    def test_nvml_that_hangs_from_the_beginning_is_told(self, bench: Bench) -> None:
        watched(bench, bench.config.watch_poll_s + 2 * RENEW_S, nvml=False)
        assert "no heartbeat is sent, since nobody watches: NVML hangs" in bench.said

    def test_none_comes_while_reading_the_kernel_log_hangs(self, bench: Bench) -> None:
        watched(bench, 3)
        bench.log_hangs = True
        watched(bench, 70)
        assert watched(bench, 3 * RENEW_S) == 0
        assert "no heartbeat is sent, since nobody watches: reading the kernel log hangs" in bench.said
        bench.log_hangs = False
        assert watched(bench, 3) == 1

    def test_a_slow_start_is_no_hang(self, bench: Bench) -> None:
        """A machine that has just booted is busy: NVML may answer before the kernel log was read for the first time."""
        bench.log_hangs = True
        assert watched(bench, 50) == 0
        assert not [text for text in bench.said if "hangs" in text]
        bench.log_hangs = False
        assert watched(bench, 3) == 1

    def test_a_log_that_is_never_read_is_told(self, bench: Bench) -> None:
        bench.log_hangs = True
        assert watched(bench, 70) == 0
        assert "no heartbeat is sent, since nobody watches: reading the kernel log hangs" in bench.said

    def test_what_it_cannot_read_is_told_and_is_no_silence(self, bench: Bench) -> None:
        """It sees less, and says so: the admitter has the node tested."""
        bench.log(why="/dev/kmsg cannot be read")
        bench.gpus(why="libnvidia-ml.so.1 is missing")
        bench.tick()
        assert len(bench.beats) == 1
        warnings = read_note(bench.wanted["muster.dev/agent"] or "").warnings
        assert {one.code for one in warnings} == {"XID_SOURCE_MISSING", "NVML_UNAVAILABLE"}

    def test_a_loop_that_stands_still_sends_nothing(self, bench: Bench) -> None:
        watched(bench, 3)
        bench.now_s += 3600
        assert len(bench.beats) == 1

    def test_why_it_cannot_be_sent_is_said_once(self, bench: Bench) -> None:
        for _ in range(3):
            bench.agent.heartbeat_trouble("the API refuses")
        assert sum("the API refuses" in text for text in bench.said) == 1


def test_agents_that_began_together_do_not_stay_together() -> None:
    beats: list[list[float]] = [[], []]
    now_s = [0.0]
    pulses = [Pulse(BOOT, AT, lambda _, i=i: beats[i].append(now_s[0]), random.Random(i)) for i in range(2)]  # type: ignore[misc]
    while now_s[0] < 600:
        for pulse in pulses:
            pulse.beat(now_s[0], AT + timedelta(seconds=now_s[0]))
        now_s[0] += 0.5
    assert beats[0][0] == beats[1][0] == 0.0 and beats[0][5] != beats[1][5]
    gaps = [later - earlier for row in beats for earlier, later in itertools.pairwise(row)]
    assert min(gaps) >= RENEW_S * (1 - RENEW_JITTER) and max(gaps) <= LONGEST_S + 0.5


class FakeApi:
    """Takes heartbeats, or has a trouble."""

    def __init__(self) -> None:
        self.sent: list[Heartbeat] = []
        self.trouble: Callable[[], Exception] | None = None

    def renew(self, heartbeat: Heartbeat) -> None:
        if self.trouble is not None:
            raise self.trouble()
        self.sent.append(heartbeat)


class TestSender:
    def make(self) -> tuple[Sender, FakeApi, list[str], list[float]]:
        api, told, now_s = FakeApi(), list[str](), [100.0]
        sender = Sender(api, told.append, random.Random(1), lambda: now_s[0])  # type: ignore[arg-type]
        return sender, api, told, now_s

    def test_each_is_sent_once(self) -> None:
        sender, api, told, _ = self.make()
        assert sender.once() and api.sent == []
        sender.give(BEAT)
        assert sender.once() and sender.once() and api.sent == [BEAT]
        assert told == []

    def test_what_fails_is_tried_again_and_the_newest_counts(self) -> None:
        sender, api, told, now_s = self.make()
        api.trouble = lambda: NotYet("no answer")
        sender.give(BEAT)
        assert not sender.once() and told == ["no answer"]
        newer = replace(BEAT, renew_time="later")
        now_s[0] += 30
        sender.give(newer)
        api.trouble = None
        assert sender.once() and api.sent == [newer] and told == ["no answer", ""]

    def test_an_old_one_is_not_sent_for_an_agent_that_makes_no_more(self) -> None:
        """The API was down for an hour, in which the agent stopped watching."""
        sender, api, _, now_s = self.make()
        api.trouble = lambda: ApiRefused("refused", 403)
        sender.give(BEAT)
        assert not sender.once()
        now_s[0] += RENEW_S + 1
        api.trouble = None
        assert sender.once() and api.sent == []

    def test_before_kubelet_has_its_certificate_nothing_is_told(self) -> None:
        sender, api, told, _ = self.make()
        api.trouble = lambda: NotYet("no certificate", certificate=False)
        sender.give(BEAT)
        assert not sender.once() and told == []
