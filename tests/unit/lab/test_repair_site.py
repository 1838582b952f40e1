"""The stand-in of a BMC keeps its hosts up, and starts none that is being removed."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lab.machine import power
from tests.lab.paths import state_dir
from tests.support import repair_site


def test_a_host_that_is_being_removed_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """podman's `rm --force` kills it first: for that moment it is there and does not run."""
    monkeypatch.setenv("MUSTER_LAB_STATE", str(tmp_path))
    there, started, seen = {"muster-lab-gpu-1"}, list[str](), threading.Event()

    def podman(*arguments: str) -> bool:
        if arguments[0] == "start":
            started.append(arguments[1])
        seen.set()
        return arguments[-1] in there

    monkeypatch.setattr(repair_site, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(repair_site, "_podman", podman)
    monkeypatch.setattr(repair_site, "_runs", lambda container: container in started)
    keeps = threading.Thread(target=repair_site.Hosts("lab", ["gpu-1"]).keep_up)
    with power(state_dir("lab")):
        keeps.start()
        assert seen.wait(10)
        there.clear()
    keeps.join(10)
    assert not keeps.is_alive() and started == []


def test_a_host_that_ends_by_itself_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_LAB_STATE", str(tmp_path))
    there, started = {"muster-lab-gpu-1"}, list[str]()

    def podman(*arguments: str) -> bool:
        if arguments[0] == "start":
            started.append(arguments[1])
            there.clear()
        return arguments[-1] in there

    monkeypatch.setattr(repair_site, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(repair_site, "_podman", podman)
    monkeypatch.setattr(repair_site, "_runs", lambda container: False)
    repair_site.Hosts("lab", ["gpu-1"]).keep_up()
    assert started == ["muster-lab-gpu-1"]
