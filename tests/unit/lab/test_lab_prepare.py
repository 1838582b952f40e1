"""What a lab needs before its hosts start: the root file system is made beside the binaries, and either is kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import binaries, image, kept
from tests.support.lab_stand_ins import Machine, called

LABTOOL = called(binaries.IMAGES[0].build)
PREPARE = """
from tests.lab import binaries, prepare
from tests.lab.shell import LabError
binaries._reachable = lambda url: False
try:
    prepare.prepare()
except LabError as error:
    raise SystemExit(f"LabError: {error}")
print("done")
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _both_begun(machine: Machine) -> subprocess.Popen[str]:
    """A run in the middle of the root file system and of the first program."""
    machine.block("image", LABTOOL)
    run = machine.start(PREPARE)
    machine.reach(run, lambda: {"image", LABTOOL} <= {*machine.calls()})
    return run


def _image(machine: Machine) -> list[Path]:
    return list(machine.cache.glob("image/*/rootfs/etc/whole"))


def test_both_are_made_beside_each_other_and_once(machine: Machine) -> None:
    run = _both_begun(machine)
    machine.block()
    shown = machine.finish(run)
    assert f"starting; beside it: {image.STAGE}" in shown
    assert len(_image(machine)) == 1 and kept.damaged(machine.cache / "bin/current") == []
    machine.forget()
    assert machine.run(PREPARE) == ""
    assert machine.calls() == []


def test_a_root_file_system_that_lasts_longer_is_waited_for_and_said(machine: Machine) -> None:
    machine.block("image")
    run = machine.start(PREPARE)
    machine.reach(run, (machine.cache / "bin/current").exists)
    machine.block()
    machine.finish(run)
    assert len(_image(machine)) == 1


def test_a_lab_whose_binaries_are_there_waits_for_the_root_file_system_alone(machine: Machine) -> None:
    machine.run(PREPARE)
    shutil.rmtree(machine.cache / "image")
    machine.forget()
    shown = machine.run(PREPARE)
    assert machine.calls() == ["image"]
    assert shown.splitlines()[-1].endswith(f"  {image.STAGE}")


@pytest.mark.parametrize(
    ("kill", "how"),
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGINT), (os.kill, signal.SIGTERM), (os.kill, signal.SIGKILL)],
    ids=["Ctrl-C", "SIGINT", "SIGTERM", "SIGKILL"],
)
def test_a_run_that_is_stopped_stops_both(
    machine: Machine, kill: Callable[[int, int], None], how: signal.Signals
) -> None:
    run = _both_begun(machine)
    kill(run.pid, how)
    run.communicate()
    assert run.returncode != 0
    # Nobody goes on in either: their locks are free.
    machine.block()
    machine.run(PREPARE)
    assert machine.made().count("image") == 2
    assert len(_image(machine)) == 1


def test_a_root_file_system_that_cannot_be_made_is_told_in_its_own_words(machine: Machine) -> None:
    machine.spoil("image")
    out, err = machine.start(PREPARE).communicate()
    assert out == ""
    assert err.splitlines()[-1].startswith("LabError: `setpriv") and err.splitlines()[-1].endswith(": no such suite")
    assert kept.damaged(machine.cache / "bin/current") == [], "the binaries are made all the same"


def test_binaries_that_cannot_be_made_end_the_root_file_system(machine: Machine) -> None:
    run = _both_begun(machine)
    machine.spoil(LABTOOL)
    machine.block("image")
    assert f"{LABTOOL} is broken" in run.communicate()[1].splitlines()[-1]
    machine.block()
    assert _image(machine) == []
