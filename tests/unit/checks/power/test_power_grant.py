"""Grants of power waves: the request, the answer, what is left of an earlier run, and the command."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.power import grant as power_grant
from gpu_burnin.checks.power import grant_request as waves
from gpu_burnin.checks.power.grant import Grant
from gpu_burnin.checks.power.grant_request import State
from gpu_burnin.checks.power.result import GrantedWaves, PowerCoverage
from gpu_burnin.checks.power.waves import Waves, waves_made
from gpu_burnin.checks.together import Group
from gpu_burnin.cli.node import power_grant as command
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.store import POWER_GRANT_DIR
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.types import CheckResult, Verdict
from tests.support.engine_helpers import gpu
from tests.support.together_helpers import contexts, run_together


def options(directory: Path, wait_s: float = 20.0, mode: str = "granted") -> Mapping[str, Any]:
    return {"power_waves": mode, "wave_dir": str(directory), "wave_wait_s": wait_s}


def grants_of(count: int, given: Mapping[str, Any], dies: str = "") -> dict[str, Any]:
    """What each of some GPUs is told; one of them may die as soon as it has asked."""
    answers: dict[str, Grant] = {}

    def one(ctx: CheckContext) -> CheckResult:
        assert ctx.gpu is not None
        group = Group(ctx)
        if ctx.gpu.uuid == dies:
            waves.ask(Path(str(given["wave_dir"])), 1.0, 1.0)
            raise RuntimeError("died")
        answers[ctx.gpu.uuid] = power_grant.ask(group, given, 12.0)
        power_grant.over(group, answers[ctx.gpu.uuid])
        return CheckResult("power", ctx.gpu.uuid, Verdict.PASS, 0.0)

    found = run_together(one, contexts(count))
    errors = {uuid: error for uuid, error in found.items() if isinstance(error, Exception)}
    return {**answers, **errors}


@pytest.fixture
def granting(tmp_path: Path) -> Iterator[list[waves.Request]]:
    """A controller that grants what it finds waiting, once for each request."""
    ended, given = threading.Event(), []

    def control() -> None:
        while not ended.wait(0.02):
            request = waves.state(tmp_path)
            if request.state is State.WAITING and request.asked_at not in [one.asked_at for one in given]:
                given.append(waves.grant(tmp_path))

    thread = threading.Thread(target=control)
    thread.start()
    yield given
    ended.set()
    thread.join()


def test_all_gpus_wait_for_one_grant(tmp_path: Path, granting: list[waves.Request]) -> None:
    found = grants_of(3, options(tmp_path))
    assert [grant.run for grant in found.values()] == [True, True, True]
    assert len(granting) == 1
    assert {grant.request.asked_at for grant in found.values()} == {granting[0].asked_at}
    request = waves.state(tmp_path)
    assert (request.state, request.wait_s, request.waves_s) == (State.OVER, 20.0, 12.0)
    assert request.granted_at is not None and request.over_at is not None
    assert request.asked_at < request.granted_at < request.over_at
    assert not (tmp_path / waves.GRANT).exists()


def test_without_a_grant_they_go_on_without_waves(tmp_path: Path) -> None:
    found = grants_of(2, options(tmp_path, wait_s=0.3))
    assert [grant.run for grant in found.values()] == [False, False]
    assert {grant.why for grant in found.values()} == {"no grant for power waves came within 0.3 s"}
    assert waves.state(tmp_path).state is State.GIVEN_UP


def test_a_grant_of_an_earlier_request_never_counts(tmp_path: Path) -> None:
    earlier = waves.ask(tmp_path, 1.0, 1.0)
    waves.grant(tmp_path)
    request = waves.ask(tmp_path, 1.0, 1.0)  # it removes what lies there
    assert not (tmp_path / waves.GRANT).exists()
    (tmp_path / waves.GRANT).write_text(f"{earlier.asked_at}\n")  # and one that comes late names another request
    assert not waves.granted(tmp_path, request)
    assert waves.granted(tmp_path, earlier)


def test_one_that_dies_while_it_waits_leaves_it_to_the_next(tmp_path: Path, granting: list[waves.Request]) -> None:
    found = grants_of(3, options(tmp_path), dies="GPU-0")
    assert isinstance(found.pop("GPU-0"), RuntimeError)
    assert [grant.run for grant in found.values()] == [True, True]
    assert found["GPU-1"].request.asked_at == granting[-1].asked_at


def test_the_one_that_looks_tells_the_others_that_it_still_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clock is the only one that runs; the others wait in exchanges, where the deadline stands still."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    monkeypatch.setattr(power_grant, "time", Clock())
    said: list[Any] = []

    def exchange(data: Any) -> Mapping[str, Any]:
        said.append(data["data"])
        return {gpu().uuid: data}

    (made,) = contexts(1, exchange=exchange)
    grant = power_grant.ask(Group(made), options(tmp_path, wait_s=2.5), 1.0)
    assert not grant.run
    answers = [one["answer"] for one in said if isinstance(one, dict)]
    assert answers == ["wait", "wait", "no"]


@pytest.mark.parametrize("given", [{}, {"power_waves": "never"}, {"power_waves": "granted"}])
def test_without_a_grant_there_are_no_waves(given: Mapping[str, Any]) -> None:
    (grant,) = grants_of(1, given).values()
    assert (grant.run, "power_waves: never" in grant.why) == (False, True)


def test_a_host_that_always_may_tells_it_and_waits_for_nobody(tmp_path: Path) -> None:
    found = grants_of(2, options(tmp_path, mode="always"))
    assert [grant.run for grant in found.values()] == [True, True]
    request = waves.state(tmp_path)
    assert request.state is State.OVER
    assert request.granted_at == request.asked_at


def test_always_needs_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for given in ({"power_waves": "always"}, options(tmp_path / "file", mode="always")):
        (grant,) = grants_of(1, given).values()
        assert (grant.run, grant.request) == (True, None)


def test_a_directory_that_cannot_be_written_is_no_grant(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for grant in grants_of(2, options(tmp_path / "file")).values():
        assert not grant.run
        assert "cannot be written to ask for power waves" in grant.why


def test_the_report_says_when_it_was_asked_granted_and_over(tmp_path: Path, granting: list[waves.Request]) -> None:
    (made,) = contexts(1, exchange=lambda data: {gpu().uuid: data})
    group = Group(made)
    grant = power_grant.over(group, power_grant.ask(group, options(tmp_path), 1.0))
    found = waves_made(Waves(), grant.request)
    assert isinstance(found, GrantedWaves)
    assert found.asked_at < str(found.granted_at) < str(found.over_at)
    told = to_json(found)
    assert list(told)[-4:] == ["ended_s", "asked_at", "granted_at", "over_at"]
    assert from_json(PowerCoverage, {**_NO_LOAD, "waves": told}).waves == found
    assert not {"asked_at", "granted_at", "over_at"} & set(to_json(waves_made(Waves(), None)))


_NO_LOAD = {"mixed": {"run": False, "started_s": 0.0, "ended_s": 0.0}}

# --- state as the controller sees it ---


def test_a_request_of_a_run_that_is_gone_is_none(tmp_path: Path) -> None:
    request = waves.ask(tmp_path, 1.0, 1.0)
    assert request.pid == os.getppid()
    assert waves.state(tmp_path).state is State.WAITING
    for gone in (replace(request, boot_id="another"), replace(request, pid=2**22 + 1)):
        waves.move(tmp_path, gone, State.RUNNING)
        assert waves.state(tmp_path).state is State.NONE
        with pytest.raises(GpuBurninError, match="no burn-in of this node waits"):
            waves.grant(tmp_path)


def test_only_a_request_that_waits_is_granted(tmp_path: Path) -> None:
    with pytest.raises(GpuBurninError, match="state: none"):
        waves.grant(tmp_path)
    request = waves.ask(tmp_path, 1.0, 1.0)
    assert waves.grant(tmp_path) == request
    assert waves.granted(tmp_path, request)
    running = waves.move(tmp_path, request, State.RUNNING)
    with pytest.raises(GpuBurninError, match="state: running"):
        waves.grant(tmp_path)
    waves.move(tmp_path, running, State.OVER)
    assert waves.state(tmp_path).granted_at == running.granted_at


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"asked_at": "x", "state": "odd"}'])
def test_a_file_that_is_no_request_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / waves.REQUEST).write_text(text)
    with pytest.raises(GpuBurninError, match=r"request\.json is not a request for power waves"):
        waves.state(tmp_path)


def test_who_may_not_read_the_request_is_not_told_to_remove_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(waves, "read_text", refuse)
    with pytest.raises(GpuBurninError, match=r"request\.json cannot be read; run as root"):
        waves.state(tmp_path)


def test_the_files_are_the_owners_alone(tmp_path: Path) -> None:
    directory = tmp_path / "state" / "waves"
    waves.ask(directory, 1.0, 1.0)
    waves.grant(directory)
    modes = {path.stat().st_mode & 0o777 for path in (directory / waves.REQUEST, directory / waves.GRANT)}
    assert (directory.stat().st_mode & 0o777, modes) == (0o700, {0o600})


# --- the command ---


def call(state_dir: Path, *arguments: str) -> tuple[int, str]:
    config = state_dir / "config.yaml"
    config.write_text("{}\n")
    done = CliRunner().invoke(command, ["--config", str(config), "--state-dir", str(state_dir), *arguments])
    return (2, str(done.exception)) if isinstance(done.exception, GpuBurninError) else (done.exit_code, done.output)


def test_the_command_grants(tmp_path: Path) -> None:
    directory = tmp_path / POWER_GRANT_DIR
    assert call(tmp_path)[0] == 2
    request = waves.ask(directory, 60.0, 23.7)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert call(elsewhere)[0] == 2
    assert not waves.granted(directory, request)
    code, text = call(tmp_path)
    assert (code, request.asked_at in text) == (0, True)
    assert waves.granted(directory, request)
    assert json.loads(call(tmp_path, "--json")[1]) == {**to_json(request), "state": "waiting"}
