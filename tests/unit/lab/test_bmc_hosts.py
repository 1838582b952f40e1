"""The stand-in of a BMC keeps its hosts up, and starts none that is being removed."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lab.machine import power
from tests.lab.paths import state_dir
from tests.support import bmc_hosts

HOST = "muster-lab-gpu-1"


class Podman:
    """One container that is there and does not run, until somebody starts it or it is removed."""

    def __init__(self) -> None:
        self.there, self.asked = True, threading.Event()
        self.started: list[str] = []

    def __call__(self, *arguments: str) -> bool:
        self.asked.set()
        if arguments[0] == "start":
            self.started.append(arguments[1])
        return self.there


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    made = Podman()
    monkeypatch.setenv("MUSTER_LAB_STATE", str(tmp_path))
    monkeypatch.setattr(bmc_hosts, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr(bmc_hosts, "_podman", made)
    monkeypatch.setattr(bmc_hosts, "_runs", lambda container: container in made.started)
    return made


def test_a_host_that_is_being_removed_is_not_started_again(podman: Podman) -> None:
    """podman's `rm --force` kills it first: for that moment it is there and does not run."""
    keeps = threading.Thread(target=bmc_hosts.BmcHosts("lab", ["gpu-1"]).keep_up)
    with power(state_dir("lab")):
        keeps.start()
        assert podman.asked.wait(10)
        podman.there = False
    keeps.join(10)
    assert not keeps.is_alive() and podman.started == []


def test_a_host_that_ends_by_itself_is_started_again(podman: Podman, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(container: str) -> bool:
        podman.there = not podman.started
        return container in podman.started

    monkeypatch.setattr(bmc_hosts, "_runs", runs)
    keeps = threading.Thread(target=bmc_hosts.BmcHosts("lab", ["gpu-1"]).keep_up)
    keeps.start()
    keeps.join(10)
    assert not keeps.is_alive() and podman.started == [HOST]
