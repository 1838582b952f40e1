"""Silence is judged by the admitter's own clock, and only for as long as it could hear."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.service import term as term_of_a_leader
from gpu_burnin.admission.service.cache import Feed
from gpu_burnin.admission.service.heartbeats import MOST_PAUSE_S, Heartbeats
from gpu_burnin.admission.view import HeartbeatState, RuleSeconds
from gpu_burnin.api.agent_note import AgentNote, note_text
from gpu_burnin.api.heartbeat import Heartbeat, heartbeat_document
from tests.support.admission_helpers import BOOT, BOOT2
from tests.support.admitter_helpers import NAMES, Fleet, until, working
from tests.support.fake_api import FakeApi

LIMIT_S = 300.0


def beat(name: str = "gpu-1", number: int = 0, boot: str = BOOT, start: str = "s") -> dict[str, Any]:
    """The object as the API server sends it. Its times are the node's, and wrong by years here."""
    return heartbeat_document(name, Heartbeat(boot, start, f"1999-01-01T00:00:{number:02d}.000Z"), NAMES)


@dataclass
class Leader:
    """A leader's hearing, with its clock; `looks` are the nodes that it looks at."""

    now_s: float = 1000.0
    looks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.beats = Heartbeats(LIMIT_S, lambda: self.now_s)
        self.feed = Feed(self.beats, self.looks.append)

    def list(self, *items: dict[str, Any]) -> None:
        """A list of all."""
        self.feed.begin()
        for item in items:
            self.feed.put(item)
        self.feed.end()
        self.pass_by(0)

    def pass_by(self, seconds: float, *, hearing: bool = True) -> list[str]:
        """Time passes; who fell silent. Bookmarks come as long as it hears."""
        silent, heard_s, end_s = [], self.now_s, self.now_s + seconds
        while True:
            heard_s = self.now_s if hearing else heard_s
            silent += self.beats.listened(heard_s)
            if self.now_s >= end_s:
                return silent
            self.now_s = min(end_s, self.now_s + 5)

    def heartbeat(self, name: str = "gpu-1", *, expected: bool = True, awaited: bool = False) -> HeartbeatState | None:
        return self.beats.state_of(name, expected=expected, awaited=awaited)


def test_each_change_ends_the_silence_and_is_no_look() -> None:
    leader = Leader()
    leader.list(beat())
    for number in range(1, 30):
        assert leader.pass_by(60) == []
        leader.feed.put(beat(number=number))
    assert leader.heartbeat() == HeartbeatState(BOOT, 0.0, fresh=True)
    assert leader.looks == ["gpu-1"]


def test_who_falls_silent_is_looked_at_once_and_again_when_it_speaks() -> None:
    leader = Leader()
    leader.list(beat(), beat("gpu-2"))
    leader.feed.put(beat(number=1))
    assert leader.pass_by(LIMIT_S + 60) == ["gpu-1", "gpu-2"]
    assert leader.pass_by(600) == []
    leader.looks.clear()
    leader.feed.put(beat(number=2))
    assert leader.looks == ["gpu-1"] and leader.heartbeat() == HeartbeatState(BOOT, 0.0, fresh=True)


def test_the_same_word_again_is_no_sign_of_life() -> None:
    leader = Leader()
    leader.list(beat())
    leader.pass_by(100)
    leader.feed.put(beat())
    leader.list(beat())
    assert leader.heartbeat() == HeartbeatState(BOOT, 100.0)


def test_a_new_boot_is_looked_at_at_once() -> None:
    leader = Leader()
    leader.list(beat())
    leader.looks.clear()
    leader.feed.put(beat(boot=BOOT2))
    assert leader.looks == ["gpu-1"] and leader.heartbeat() == HeartbeatState(BOOT2, 0.0, fresh=True)


def test_a_node_that_waits_for_its_agent_is_looked_at_when_it_comes() -> None:
    leader = Leader()
    leader.list(beat())
    leader.looks.clear()
    leader.heartbeat(awaited=True)
    leader.feed.put(beat(number=1))
    assert leader.looks == ["gpu-1"]
    leader.heartbeat(awaited=False)
    leader.feed.put(beat(number=2))
    assert leader.looks == ["gpu-1"]


def test_a_new_leader_gives_everybody_a_full_period() -> None:
    leader = Leader()
    leader.list(beat())
    assert leader.heartbeat() == HeartbeatState(BOOT, 0.0)
    assert leader.pass_by(LIMIT_S - 1) == []


def test_what_could_not_be_heard_is_no_silence() -> None:
    """An hour without an API server: no agent could speak either."""
    leader = Leader()
    leader.list(beat())
    leader.pass_by(100)
    assert leader.pass_by(3600, hearing=False) == []
    leader.pass_by(0)
    assert leader.heartbeat() == HeartbeatState(BOOT, 100.0)
    leader.feed.put(beat(number=1))
    assert leader.heartbeat() == HeartbeatState(BOOT, 0.0, fresh=True)


def test_a_pause_as_long_as_between_two_bookmarks_counts() -> None:
    leader = Leader()
    leader.list(beat())
    leader.now_s += MOST_PAUSE_S
    leader.pass_by(0)
    assert leader.heartbeat() == HeartbeatState(BOOT, MOST_PAUSE_S)


def test_a_list_is_no_sign_of_life() -> None:
    """An etcd that was restored brings an older heartbeat of an agent that is dead."""
    leader = Leader()
    leader.list(beat(number=7))
    leader.feed.put(beat(number=8))
    assert leader.pass_by(LIMIT_S + 60) == ["gpu-1"]
    leader.looks.clear()
    leader.list(beat(number=7), beat("gpu-2"))
    assert leader.looks == ["gpu-2"]
    assert leader.heartbeat() == HeartbeatState(BOOT, LIMIT_S + 60, fresh=True)
    assert leader.heartbeat("gpu-2") == HeartbeatState(BOOT, 0.0)
    leader.feed.put(beat(number=9))
    assert leader.looks == ["gpu-2", "gpu-1"] and leader.heartbeat() == HeartbeatState(BOOT, 0.0, fresh=True)


def test_a_new_boot_in_a_list_was_not_heard_yet() -> None:
    leader = Leader()
    leader.list(beat())
    leader.feed.put(beat(number=1))
    leader.looks.clear()
    leader.list(beat(boot=BOOT2))
    assert leader.looks == ["gpu-1"] and leader.heartbeat() == HeartbeatState(BOOT2, 0.0)


def test_one_that_never_came_is_silent_since_it_is_expected() -> None:
    leader = Leader()
    leader.list()
    leader.pass_by(5000)
    assert leader.heartbeat(expected=False) is None
    assert leader.heartbeat() == HeartbeatState("", 0.0)
    assert leader.pass_by(LIMIT_S + 5) == ["gpu-1"]
    leader.beats.forget("gpu-1")
    assert leader.heartbeat(expected=False) is None


def test_a_deleted_one_is_looked_at_and_has_a_full_period() -> None:
    leader = Leader()
    leader.list(beat())
    leader.pass_by(200)
    leader.looks.clear()
    leader.feed.drop(beat())
    assert leader.looks == ["gpu-1"] and leader.heartbeat() == HeartbeatState("", 0.0)
    leader.list()
    assert leader.heartbeat() == HeartbeatState("", 0.0)


def test_an_agent_that_was_taken_back_to_a_version_without_them_is_not_silent() -> None:
    """Its object is still there. The next version of it has a full period, and its node waits for a fresh one."""
    leader = Leader()
    leader.list(beat())
    leader.feed.put(beat(number=1))
    leader.pass_by(LIMIT_S + 60)
    leader.beats.sends_none("gpu-1")
    leader.pass_by(5000)
    leader.list(beat(number=1))
    leader.beats.sends_none("gpu-1")
    assert leader.heartbeat() == HeartbeatState(BOOT, 0.0), "taken forward again"
    assert leader.pass_by(LIMIT_S + 5) == ["gpu-1"]
    leader.beats.sends_none("gpu-1")
    leader.feed.put(beat(number=2))
    leader.pass_by(10)
    leader.beats.sends_none("gpu-1")
    assert leader.heartbeat() == HeartbeatState(BOOT, 10.0, fresh=True), "its heartbeat came before its note"
    leader.beats.sends_none("gpu-2")
    assert leader.heartbeat("gpu-2") == HeartbeatState("", 0.0)


def test_an_admitter_counts_no_heartbeat_that_an_older_agent_has_left(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.prove("gpu-1")  # its note says nothing of heartbeats, as that of 0.2.0
    api.put("agentheartbeats", beat())
    with working(api, tmp_path):
        until("the admission", lambda: fleet.ready("gpu-1"))


def test_an_admitter_lets_a_node_in_with_its_agents_first_heartbeat(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    note = {"metadata": {"annotations": {NAMES.agent: note_text(AgentNote(BOOT, heartbeat=True))}}}
    api.merge("nodes", "gpu-1", note)
    api.put("agentheartbeats", beat())
    with working(api, tmp_path) as admitter:
        # An old one in the list is none.
        until("the wait", lambda: fleet.status("gpu-1").get("code") == "AGENT_BOOT")
        term = admitter.service.term
        assert term is not None and not fleet.ready("gpu-1")
        until("the list", lambda: "gpu-1" in term.heartbeats.known())
        api.put("agentheartbeats", beat(number=1))
        until("the admission", lambda: fleet.ready("gpu-1"))
        assert term.of_code("AGENT_SILENT") == 0


@pytest.mark.slow
def test_an_admitter_keeps_new_work_from_a_node_whose_agent_falls_silent(
    api: FakeApi, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed, frozen or masked: nothing comes any more. The pod on it is left alone."""
    monkeypatch.setattr(term_of_a_leader, "TICK_S", 0.05)
    api.bookmark_s = 0.05
    fleet.prove("gpu-1")
    api.merge(
        "nodes", "gpu-1", {"metadata": {"annotations": {NAMES.agent: note_text(AgentNote(BOOT, heartbeat=True))}}}
    )
    limits: dict[str, Any] = {"max_unready_share": 1.0, "rules": RuleSeconds(agent_silent_s=0.5)}
    with working(api, tmp_path, **limits) as admitter:
        number = itertools.count()

        def let_in() -> bool:
            api.put("agentheartbeats", beat(number=next(number)))
            return fleet.ready("gpu-1")

        until("the admission", let_in)
        pod = {"metadata": {"namespace": "jobs", "name": "train", "uid": "u"}, "spec": {"nodeName": "gpu-1"}}
        api.put("pods", {**pod, "status": {"phase": "Running"}})
        until("the silence", lambda: fleet.status("gpu-1").get("code") == "AGENT_SILENT")
        until("the taint", lambda: fleet.taints("gpu-1") == {"preflight:NoSchedule"})
        assert not fleet.ready("gpu-1") and "jobs/train" in api.objects["pods"]
        term = admitter.service.term
        assert term is not None
        until("its count", lambda: term.of_code("AGENT_SILENT") == 1)
        until("its way back", let_in)


def test_without_the_definition_all_other_work_goes_on(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    """The control plane is upgraded before its definitions are."""
    api.unknown.add("agentheartbeats")
    fleet.prove("gpu-1")
    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        until("a word", lambda: any("agentheartbeats" in text for text in admitter.messages()))
