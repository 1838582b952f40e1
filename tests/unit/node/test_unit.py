"""The one starter of the burn-in's unit, and following it. The units run for real, under a systemd that is played."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import unit
from tests.support import fake_systemd


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host that is a folder; `program` is what its unit runs."""
    (tmp_path / "bin").mkdir()
    fake_systemd.install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("FAKE_HOST", str(tmp_path))
    monkeypatch.setenv("FAKE_PROGRAM", f"/bin/sh {tmp_path}/program")
    monkeypatch.setattr(unit, "RUN_DIR", tmp_path / "run")
    monkeypatch.setattr(unit, "POLL_S", 0.02)
    return tmp_path


def test_the_run_survives_who_started_it_and_verdicts_are_no_failures() -> None:
    words = unit.command(["--level", "quick"])
    assert words[0] == "systemd-run"
    assert "--no-block" not in words, "a start that is only queued looks like a run that has ended"
    assert "--service-type=exec" in words
    assert "--property=SuccessExitStatus=1 3" in words
    assert "--property=KillMode=mixed" in words, "workers that systemd kills look like workers that died"
    assert "--property=OOMPolicy=continue" in words, "systemd would end the run with the worker that the kernel took"
    assert words[-7:] == [sys.executable, "-P", "-m", "gpu_burnin", "run", "--json", "--level", "quick"][-7:]


def test_what_observes_gpus_pauses_and_systemd_itself_starts_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "gpu-monitoring.target"
    monkeypatch.setattr(unit, "MONITORING", target)
    assert not any("gpu-monitoring" in word for word in unit.command([]))
    target.touch()
    words = unit.command([])
    assert words.index("--property=OnSuccess=gpu-monitoring-resume.service") < words.index("--")
    assert "--property=OnFailure=gpu-monitoring-resume.service" in words
    (pause,) = (word for word in words if word.startswith("--property=ExecStartPre="))
    assert pause == "--property=ExecStartPre=-/bin/sh -c 'exec systemctl stop gpu-monitoring.target'"


def test_a_unit_that_is_not_forgotten_yet_is_waited_for(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (host / "program").write_text("exit 0\n")
    answers = iter(["LoadState=loaded\n", "LoadState=loaded\n", "LoadState=not-found\n"])
    asked = unit.systemctl

    def systemctl(*words: str) -> str:
        return next(answers) if "--property=LoadState" in words else asked(*words)

    monkeypatch.setattr(unit, "systemctl", systemctl)
    assert unit.start([]).started
    assert next(answers, None) is None, "it was started while its name was taken"


@pytest.mark.slow
@pytest.mark.parametrize("exit_code", [0, 1, 2, 3])
def test_a_run_is_followed_to_its_exit_code(host: Path, exit_code: int) -> None:
    (host / "program").write_text(f'echo one >&2; printf "two\\nthree" >&2; echo "{{}}"; exit {exit_code}\n')
    started = unit.start(["--level", "quick"])
    lines: list[str] = []
    assert started.started
    assert unit.follow(started.invocation, lines.append) == exit_code
    assert lines == ["one", "two", "three"]
    assert (host / "run/report.json").read_text() == "{}\n"
    assert (host / "run").stat().st_mode & 0o777 == 0o700
    assert shlex.split((host / "command").read_text())[-4:] == ["run", "--json", "--level", "quick"]
    assert unit.last_lines() == "one / two / three"
    assert unit.state() == (
        unit.UnitState(False, "exit-code", started.invocation) if exit_code == 2 else unit.UnitState(False)
    )
    again = unit.start([])  # one that has failed does not keep the name
    assert again.started
    assert again.invocation != started.invocation
    assert unit.follow(again.invocation, lines.append) == exit_code


def test_a_run_under_way_is_not_started_twice(host: Path) -> None:
    (host / "program").write_text(f"until [ -e {host}/go ]; do sleep 0.02; done\n")
    first, second = unit.start(["--level", "quick"]), unit.start(["--level", "standard"])
    assert (first.started, second.started) == (True, False)
    assert first.invocation == second.invocation
    assert "standard" not in (host / "command").read_text()
    (host / "go").touch()
    assert unit.follow(second.invocation, print) == 0


def test_a_killed_run_is_no_verdict(host: Path) -> None:
    (host / "program").write_text("kill -9 $$\n")
    started = unit.start([])
    with pytest.raises(GpuBurninError, match=r"was killed \(signal 9\).*out of memory") as caught:
        unit.follow(started.invocation, print)
    assert caught.value.exit_code == 3


def test_another_run_of_the_unit_is_not_taken_for_this_one(host: Path) -> None:
    """After a boot the unit at boot starts one of the same name."""
    (host / "program").write_text("exit 0\n")
    other = unit.start([])
    assert unit.follow(other.invocation, print) == 0
    with pytest.raises(GpuBurninError, match="is gone") as caught:
        unit.follow("0" * 32, print)
    assert caught.value.exit_code == 3


def test_without_systemd_one_sentence_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "systemctl"
    script.write_text("#!/bin/sh\nprintf 'not booted\\nwith systemd\\n' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuBurninError, match=r"systemd does not answer \(not booted with systemd\)") as caught:
        unit.start([])
    assert caught.value.exit_code == 2
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(GpuBurninError, match="systemctl does not work"):
        unit.state()


@pytest.mark.parametrize("text", ["", "x", "id exited", "id exited soon", "exited 0"])
def test_what_is_no_end_is_none(text: str) -> None:
    assert unit.parse_ended(text) is None
