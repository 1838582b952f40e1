"""A member's part in a test between nodes: its files, its unit, and what is told when something is missing."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Output
from ansible_collections.muster.fleet.plugins.module_utils.host.fabric_test import Member

BOOT = "0b1c2d3e-0000-4000-8000-000000000001"


class Host:
    """A host's commands by their first words; what is called is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot = folder / "boot_id"
        self.boot.write_text(f"{BOOT}\n")
        self.called: list[list[str]] = []
        self.active = False
        # What a stop leaves, and what is said of the unit.
        self.hangs = False
        self.stops: list[float] = []
        self.state = "running"
        self.fails: dict[str, str] = {}
        self.working: list[dict[str, object]] = []

    def run(self, command: Sequence[str], timeout_s: float = 1.0) -> Output:
        words = list(command)
        self.called.append(words)
        for word, why in self.fails.items():
            if word in words:
                if why == "missing":
                    raise CommandError(f"{words[0]} is not installed")
                return Output(3, "", f"one line\ngpu-burnin: {why}\n")
        if words[:2] == ["systemctl", "stop"]:
            self.stops.append(timeout_s)
            self.active = self.active and self.hangs
        if words[:2] == ["systemctl", "is-active"]:
            return Output(0 if self.active else 3, "active\n" if self.active else "inactive\n", "")
        if words == ["systemctl", "is-system-running"]:
            return Output(0 if self.state == "running" else 1, f"{self.state}\n", "")
        if "look" in words:
            return Output(0, json.dumps({"working": self.working}), "")
        if "offer" in words:
            Path(words[words.index("--output") + 1]).write_text("OFFER")
        return Output(0, "", "")

    def member(self, *, act: bool = True) -> Member:
        return Member(str(self.folder / "fabric"), "/bin/gpu-burnin", self.run, act=act, boot_id=self.boot)

    def ends(self, code: int, view: str = "", log: str = "") -> None:
        for name, text in (("ended", f"{code}\n"), ("view", view), ("log", log)):
            if text:
                (self.folder / "fabric" / name).write_text(text)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_look_says_the_boot_and_who_works_and_ends_what_an_earlier_call_left(host: Host) -> None:
    host.working = [{"pid": 7, "name": "python"}]
    found = {"boot_id": BOOT, "working": ["python (process 7)"], "problem": "", "runs": False}
    assert host.member().look() == {"changed": False, **found}
    host.active = True
    assert host.member().look()["changed"] is True
    assert ["systemctl", "stop", "fabric.service"] in host.called
    host.called.clear()
    host.active = True
    assert host.member(act=False).look()["changed"] is True
    assert ["systemctl", "stop", "fabric.service"] not in host.called


@pytest.mark.parametrize("silent", [False, True])
def test_a_test_that_cannot_be_ended_is_no_ended_one(host: Host, silent: bool) -> None:
    """It is stopped for longer than systemd needs to kill it, and asked for again; no answer is no end."""
    host.member().start("OFFER", "KEYS", 60)
    host.active = host.hangs = True
    host.fails = {"is-active": "missing"} if silent else {}
    says = f"fabric.service {'cannot be asked for' if silent else 'is active'} after `systemctl stop`"
    for found in (host.member().look(), host.member().wait(0.0)):
        assert found["runs"] is True and found["problem"].startswith(says)
    assert host.stops and min(host.stops) > 90


def test_a_program_that_is_missing_or_refuses_is_told(host: Host) -> None:
    host.fails = {"look": "missing"}
    assert (
        host.member().look()["problem"]
        == "/bin/gpu-burnin is not installed; apply the role gpu_burnin to the whole host"
    )
    host.fails = {
        "look": "config.yaml is wrong; mend it",
        "offer": "No such command 'fabric'.",
        "systemd-run": "no bus",
    }
    assert host.member().look()["problem"] == "config.yaml is wrong; mend it"
    assert host.member().offer("{}")["problem"] == "No such command 'fabric'."
    assert host.member().start("OFFER", "KEYS", 60)["problem"] == "systemd-run cannot start the test (no bus)"


def test_what_is_secret_is_roots_alone_and_gone_after_the_test(host: Host) -> None:
    assert host.member().offer("{}") == {"changed": True, "offer": "OFFER", "problem": ""}
    host.member().start("OFFER", "KEYS", 60)
    folder = host.folder / "fabric"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == dict.fromkeys(
        ("offer", "keys", "started"), 0o600
    )
    [command] = [words for words in host.called if words[0] == "systemd-run"]
    # It ends by itself where nobody asks for it any more.
    assert "--property=RuntimeMaxSec=110" in command and "--property=TimeoutStopSec=10" in command
    assert "--unit=fabric.service" in command
    host.ends(1, "VIEW", "gpu-1: test 7: wrong\n")
    assert host.member().wait(5) == {
        "changed": False,
        "boot_id": BOOT,
        "view": "VIEW",
        "code": 1,
        "problem": "",
        "runs": False,
    }
    assert list(folder.iterdir()) == []


def test_a_refusal_has_its_sentence_and_a_killed_test_no_code(host: Host) -> None:
    host.member().start("OFFER", "KEYS", 60)
    host.ends(3, log="reading\ngpu-1: the offer expired; make it anew\n")
    found = host.member().wait(5)
    assert (found["code"], found["view"], found["problem"]) == (3, "", "gpu-1: the offer expired; make it anew")
    host.member().start("OFFER", "KEYS", 60)
    assert "code" not in host.member().wait(5), "its unit is gone without a word"


def test_a_host_that_was_booted_anew_or_hangs_is_not_waited_for(host: Host) -> None:
    assert host.member().wait(5)["view"] == "", "the folder does not outlast a boot"
    host.member().start("OFFER", "KEYS", 60)
    host.active = True
    assert "code" not in host.member().wait(0.0)
    # Its node may get work now.
    assert ["systemctl", "stop", "fabric.service"] in host.called


def test_a_host_that_shuts_down_is_waited_for_until_its_connection_breaks(host: Host) -> None:
    """Met on a host of the lab: the unit was gone, and the boot was still the old one."""
    host.member().start("OFFER", "KEYS", 60)
    for state, most in (("running", 1), ("stopping", 2)):
        host.state, host.called[:] = state, []
        host.member().start("OFFER", "KEYS", 60)
        host.member().wait(0.1)
        assert host.called.count(["systemctl", "is-system-running"]) == most, state


def test_check_mode_tests_nothing(host: Host) -> None:
    member = host.member(act=False)
    assert member.offer("{}")["offer"] == "" and member.start("OFFER", "KEYS", 60)["changed"] is True
    assert member.wait(5)["view"] == "" and not (host.folder / "fabric").exists()
