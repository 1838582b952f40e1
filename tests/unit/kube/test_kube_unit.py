"""kube_unit: what is to be done about a unit, and that it is done in the right order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils import kube_unit, systemd_unit
from ansible_collections.muster.fleet.plugins.module_utils.kube_unit import Wanted, bring_up, decide, reload_owed

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


def test_nothing_to_do(tmp_path: Path) -> None:
    assert decide(Wanted("x.service", [a_file(tmp_path / "old", -5)]), a_unit()) == []


def test_a_newer_file_needs_a_restart(tmp_path: Path) -> None:
    a_file(tmp_path / "new", 5)
    assert decide(Wanted("x.service", [str(tmp_path)]), a_unit()) == ["restart"]


def test_a_changed_unit_needs_a_restart() -> None:
    assert decide(Wanted("x.service"), a_unit(needs_reload=True)) == ["restart"]


def test_a_new_unit_is_enabled_and_started() -> None:
    unit = a_unit(loaded=False, active="inactive", enabled=False, started_at=None)
    assert decide(Wanted("x.service"), unit) == ["enable", "start"]


def test_a_stopped_unit_is_started() -> None:
    assert decide(Wanted("x.service"), a_unit(active="failed", started_at=None)) == ["start"]


def test_a_reload_is_owed_by_the_marker(tmp_path: Path) -> None:
    marker = a_file(tmp_path / "marker", 10)
    old = a_file(tmp_path / "old", 5)
    new = a_file(tmp_path / "new", 15)
    assert not reload_owed(Wanted("x.service", reload_after=[old], reload_marker=marker))
    assert reload_owed(Wanted("x.service", reload_after=[old, new], reload_marker=marker))
    assert reload_owed(Wanted("x.service", reload_after=[old], reload_marker=str(tmp_path / "none")))
    wanted = Wanted("x.service", reload_after=[new], reload_marker=marker)
    assert decide(wanted, a_unit()) == ["reload"]
    # A restart reads the files as well.
    assert decide(Wanted("x.service", [new], [new], marker), a_unit()) == ["restart"]


@pytest.mark.parametrize("act", [True, False])
def test_bring_up_acts_only_when_told(monkeypatch: pytest.MonkeyPatch, act: bool) -> None:
    done: list[Sequence[str]] = []

    def systemctl(arguments: Sequence[str]) -> str:
        done.append(arguments)
        return ""

    monkeypatch.setattr(systemd_unit, "show", lambda name: a_unit(active="inactive", enabled=False, started_at=None))
    monkeypatch.setattr(systemd_unit, "systemctl", systemctl)
    assert bring_up(Wanted("x.service"), act=act) == ["enable", "start"]
    expected = [["daemon-reload"], ["enable", "--", "x.service"], ["start", "--", "x.service"]]
    assert done == (expected if act else [])


def test_a_refusal_of_systemd_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def systemctl(arguments: Sequence[str]) -> str:
        raise systemd_unit.UnitError("no")

    monkeypatch.setattr(systemd_unit, "show", lambda name: a_unit(needs_reload=True))
    monkeypatch.setattr(systemd_unit, "systemctl", systemctl)
    with pytest.raises(systemd_unit.UnitError):
        kube_unit.bring_up(Wanted("x.service"), act=True)
