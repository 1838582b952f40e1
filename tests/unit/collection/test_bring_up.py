"""What is to be done about a unit, and that it is done in the right order."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.host.systemd_unit import Wanted, bring_up, reload_owed
from ansible_collections.muster.fleet.plugins.modules import unit as unit_module

STARTED_AT = 1_000_000.0


def a_unit(**changes: object) -> systemd_unit.Unit:
    values: dict[str, object] = {
        "name": "x.service",
        "loaded": True,
        "active": "active",
        "sub": "running",
        "result": "success",
        "enabled": True,
        "needs_reload": False,
        "files": (),
        "started_at": STARTED_AT,
    }
    return systemd_unit.Unit(**{**values, **changes})  # type: ignore[arg-type]


def a_file(path: Path, age_s: float) -> str:
    path.write_text("x")
    os.utime(path, (STARTED_AT + age_s, STARTED_AT + age_s))
    return str(path)


def actions(wanted: Wanted, unit: systemd_unit.Unit) -> list[str]:
    return list(systemd_unit.decide(wanted, unit).actions)


def test_nothing_to_do(tmp_path: Path) -> None:
    assert actions(Wanted("x.service", [a_file(tmp_path / "old", -5)]), a_unit()) == []


def test_a_newer_file_needs_a_restart(tmp_path: Path) -> None:
    a_file(tmp_path / "new", 5)
    assert actions(Wanted("x.service", [str(tmp_path)]), a_unit()) == ["restart"]


def test_a_changed_unit_needs_a_restart() -> None:
    assert actions(Wanted("x.service"), a_unit(needs_reload=True)) == ["daemon-reload", "restart"]
    assert systemd_unit.decide(Wanted("x.service"), a_unit(needs_reload=True)).stale == (
        "a file of x.service that systemd has not read, or that is gone",
    )


def test_what_has_no_process_is_never_restarted() -> None:
    assert actions(Wanted("x.mount"), a_unit(needs_reload=True, started_at=None)) == ["daemon-reload"]


BECAUSE = "gpu-1 has no Node"


@pytest.mark.parametrize(
    ("unit", "restart", "expected"),
    [
        (a_unit(), True, ["restart"]),
        (a_unit(), False, []),
        (a_unit(active="activating", started_at=None), True, []),
        (a_unit(active="failed", started_at=None), True, ["start"]),
    ],
)
def test_a_reason_that_no_file_shows_restarts_what_runs(
    unit: systemd_unit.Unit, restart: bool, expected: list[str]
) -> None:
    assert actions(Wanted("x.service", restart=restart, restart_because=BECAUSE), unit) == expected


@pytest.mark.parametrize(
    ("because", "check", "warnings", "done"),
    [
        (BECAUSE, False, ["gpu-1 has no Node: x.service was restarted"], ["restart"]),
        (BECAUSE, True, ["gpu-1 has no Node: x.service would be restarted"], []),
        ("", False, [], []),
    ],
)
def test_the_module_says_why_it_restarted(
    because: str,
    check: bool,
    warnings: list[str],
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    acted: list[str] = []
    said: list[str] = []
    # Ansible keeps warnings for the life of the process.
    monkeypatch.setattr(AnsibleModule, "warn", lambda module, text: said.append(text))
    monkeypatch.setattr(systemd_unit, "show", lambda name: a_unit())
    monkeypatch.setattr(systemd_unit, "systemctl", lambda arguments: acted.append(arguments[0]))
    parameters = {"name": "x.service", "restart_because": because, "_ansible_check_mode": check}
    with patch_module_args(parameters), pytest.raises(SystemExit):
        unit_module.main()
    result = json.loads(capsys.readouterr().out)
    assert (said, acted, result["changed"]) == (warnings, done, bool(because))


def test_enabling_and_restarting_can_be_left_out(tmp_path: Path) -> None:
    wanted = Wanted("x.service", [a_file(tmp_path / "new", 5)], enabled=False, restart=False)
    assert actions(wanted, a_unit(enabled=False)) == []
    assert systemd_unit.decide(wanted, a_unit()).stale == (str(tmp_path / "new"),)


def test_a_new_unit_is_enabled_and_started() -> None:
    unit = a_unit(loaded=False, active="inactive", enabled=False, started_at=None)
    assert actions(Wanted("x.service"), unit) == ["enable", "start"]


def test_a_stopped_unit_is_started() -> None:
    assert actions(Wanted("x.service"), a_unit(active="failed", started_at=None)) == ["start"]


def test_a_reload_is_owed_by_the_marker(tmp_path: Path) -> None:
    marker = a_file(tmp_path / "marker", 10)
    old = a_file(tmp_path / "old", 5)
    new = a_file(tmp_path / "new", 15)
    assert not reload_owed(Wanted("x.service", reload_after=[old], reload_marker=marker))
    assert reload_owed(Wanted("x.service", reload_after=[old, new], reload_marker=marker))
    assert reload_owed(Wanted("x.service", reload_after=[old], reload_marker=str(tmp_path / "none")))
    wanted = Wanted("x.service", reload_after=[new], reload_marker=marker)
    assert actions(wanted, a_unit()) == ["reload"]
    # A restart reads the files as well.
    assert actions(Wanted("x.service", [new], [new], marker), a_unit()) == ["restart"]


class Systemd:
    """A systemd that has one unit, and learns of it by a reload where `known` is false."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, known: bool = True, **unit: object) -> None:
        self.done: list[list[str]] = []
        self.known = known
        self.unit = unit
        monkeypatch.setattr(systemd_unit, "show", self.show)
        monkeypatch.setattr(systemd_unit, "systemctl", self.systemctl)

    def show(self, name: str) -> systemd_unit.Unit:
        return a_unit(**{**self.unit, "loaded": self.known})

    def systemctl(self, arguments: Sequence[str]) -> str:
        self.done.append(list(arguments))
        self.known = True
        return ""


STOPPED = {"active": "inactive", "enabled": False, "started_at": None}


@pytest.mark.parametrize("act", [True, False])
def test_bring_up_acts_only_when_told(monkeypatch: pytest.MonkeyPatch, act: bool) -> None:
    systemd = Systemd(monkeypatch, known=False, **STOPPED)
    assert bring_up(Wanted("x.service"), act=act).actions == ("enable", "start")
    expected = [["daemon-reload"], ["enable", "--", "x.service"], ["start", "--", "x.service"]]
    assert systemd.done == (expected if act else [])


def test_bring_up_need_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    systemd = Systemd(monkeypatch, needs_reload=True)
    bring_up(Wanted("x.service", wait=False), act=True)
    assert systemd.done == [["daemon-reload"], ["restart", "--no-block", "--", "x.service"]]


def test_a_unit_that_nobody_installed_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd_unit, "show", lambda name: a_unit(loaded=False, **STOPPED))
    monkeypatch.setattr(systemd_unit, "systemctl", lambda arguments: "")
    with pytest.raises(FleetError, match=r"knows no x\.service"):
        bring_up(Wanted("x.service"), act=True)
    assert bring_up(Wanted("x.service"), act=False).actions == ("enable", "start")


def test_a_refusal_of_systemd_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def systemctl(arguments: Sequence[str]) -> str:
        raise FleetError("no")

    monkeypatch.setattr(systemd_unit, "show", lambda name: a_unit(needs_reload=True))
    monkeypatch.setattr(systemd_unit, "systemctl", systemctl)
    with pytest.raises(FleetError):
        bring_up(Wanted("x.service"), act=True)
