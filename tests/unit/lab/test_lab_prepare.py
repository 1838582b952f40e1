"""What a lab needs before its hosts start: the root file system is made beside the binaries, and either is kept."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_burnin.fleet.mirror import kept
from gpu_burnin.fleet.mirror.commands import start
from gpu_burnin.fleet.mirror.progress import Progress
from tests.lab import binaries, image, prepare
from tests.lab.error import LabError
from tests.support.clocks import wait_until
from tests.support.lab_stand_ins import Machine, called

LABTOOL = called(binaries.IMAGES[0].build)
PREPARE = """
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror import fill
from tests.lab import prepare
fill.reachable = lambda url: False
try:
    prepare.prepare()
except GpuBurninError as error:
    raise SystemExit(f"refused: {error}")
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


@pytest.mark.slow
def test_both_are_made_beside_each_other_and_once(machine: Machine) -> None:
    run = _both_begun(machine)
    machine.block("image")
    machine.reach(run, (machine.cache / "bin/current").exists)
    assert _image(machine) == []
    machine.block()
    shown = machine.finish(run)
    steps = len(binaries.CONTENTS.steps())
    assert f"{binaries.IMAGES[0].stage} (1 of {steps}); beside it: {image.STAGE}" in shown
    assert len(_image(machine)) == 1 and kept.damaged(machine.cache / "bin/current") == []
    machine.forget()
    assert machine.run(PREPARE) == ""
    assert machine.calls() == []

    shutil.rmtree(machine.cache / "image")
    shown = machine.run(PREPARE)
    assert machine.calls() == ["image"]
    assert shown.splitlines()[-1].endswith(f"  {image.STAGE}"), "what is waited for is the stage"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kill", "how"),
    [(os.killpg, signal.SIGINT), (os.kill, signal.SIGINT), (os.kill, signal.SIGKILL)],
    ids=["Ctrl-C", "interrupted alone", "killed alone"],
)
def test_a_run_that_is_stopped_stops_both(
    machine: Machine, kill: Callable[[int, int], None], how: signal.Signals
) -> None:
    run = _both_begun(machine)
    kill(run.pid, how)
    run.communicate()
    assert run.returncode != 0
    wait_until(lambda: _free(machine.cache / "bin.lock") and _free(machine.cache / "image.lock"))
    if kill is os.kill:  # it had no time to end what it started
        wait_until(lambda: "ended image" in machine.calls())
    assert _image(machine) == []


def _free(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_root_file_system_that_cannot_be_made_is_told_in_its_own_words(machine: Machine) -> None:
    machine.spoil("image")
    out, err = machine.start(PREPARE).communicate()
    assert out == ""
    assert err.splitlines()[-1].startswith("refused: `setpriv") and err.splitlines()[-1].endswith(": no such suite")
    assert kept.damaged(machine.cache / "bin/current") == [], "the binaries are made all the same"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 0:00; echo 'lab: no such suite' >&2; exit 2", "^no such suite$"),
        ("echo 0:00, about 39 s left; kill -9 $$", "exit code -9: 0:00, about 39 s left$"),
        ("exit 1", "^could not make the root file system of the hosts: .* exit code 1: it said nothing$"),
    ],
)
def test_the_reason_is_told_however_it_ended(script: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "image_stages", lambda: (image.STAGE,))
    monkeypatch.setattr(prepare, "ensure_binaries", lambda shown: None)
    monkeypatch.setattr(prepare, "start", lambda command, **options: start(["sh", "-c", script], **options))
    with pytest.raises(LabError, match=reason):
        prepare.prepare(Progress("prepare", io.StringIO()))


def test_binaries_that_cannot_be_made_end_the_root_file_system(machine: Machine) -> None:
    run = _both_begun(machine)
    machine.spoil(LABTOOL)
    machine.block("image")
    assert f"{LABTOOL} is broken" in run.communicate()[1].splitlines()[-1]
    machine.block()
    assert _image(machine) == []
