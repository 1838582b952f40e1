"""Machines that a program switches: a real child process, well and sick."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path

import pytest

from gpu_burnin.power.port import Clock, PowerError, Target
from gpu_burnin.power.program import Program

GPU_1 = Target("gpu-1", uuid="u-1", model="h100", gpus=8, place={"rack": "r1"}, parameters={"type": "p5"})
WELL = """
state = json.loads(path.read_text()) if path.exists() else {}
if verb == "list":
    for name, one in state.items():
        print(json.dumps({"name": name, **one}))
        if one["state"] == "starting":
            one["state"] = "on"
else:
    given = json.loads(sys.stdin.readline())
    with log.open("a") as out:
        print(verb, json.dumps(given), file=out)
    if verb == "create":
        state[given["name"]] = {"state": "starting", "uuid": "u-1"}
    else:
        state.pop(given["name"], None)
path.write_text(json.dumps(state))
"""


class Time:
    """A clock that goes on when somebody sleeps."""

    at_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


def program(folder: Path, body: str, call_s: float = 20.0) -> Program:
    path = folder / "cloud"
    head = f"#!{sys.executable}\nimport json, sys, time, pathlib\nverb = sys.argv[1]\n"
    head += f"path, log = pathlib.Path({str(folder / 'state')!r}), pathlib.Path({str(folder / 'log')!r})\n"
    path.write_text(head + body)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    time = Time()
    return Program("cloud", (str(path),), call_s, 60.0, Clock(lambda: time.at_s, time.sleep))


def orders(folder: Path) -> list[str]:
    log = folder / "log"
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def test_a_machine_is_made_and_ended_and_each_order_may_be_given_twice(tmp_path: Path) -> None:
    cloud = program(tmp_path, WELL)
    assert not cloud.is_on(GPU_1)
    for _ in range(2):
        cloud.turn_on(GPU_1)
    assert cloud.is_on(GPU_1) and orders(tmp_path) == ["create"]
    given = json.loads((tmp_path / "log").read_text().partition(" ")[2])
    assert given == {"name": "gpu-1", "model": "h100", "gpus": 8, "place": {"rack": "r1"}, "parameters": {"type": "p5"}}
    for _ in range(2):
        cloud.turn_off(GPU_1)
    assert not cloud.is_on(GPU_1) and orders(tmp_path) == ["create", "delete"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit('no quota')", "ended with 1 (no quota)"),
        ("print('{')", "wrote a line that is no JSON object"),
        ("print('[]')", "it is no object"),
        ('print(\'{"name": ""}\')', "which is no machine with `name`"),
        ('print(\'{"name": "gpu-1", "state": "maybe"}\')', "a `state` of on, starting, stopping, off"),
        ('print(\'{"name": "gpu-1"}\'); print(\'{"name": "gpu-1"}\')', "names it twice"),
        ('print(\'{"name": "gpu-1", "uuid": "u-9"}\')', "a machine with the uuid u-9, and u-1 is pinned"),
        (
            "print('{\"error\": \"quota\"}') if verb == 'create' else None",
            "`create` of the program cloud refuses: quota",
        ),
        ("pass", "60 s later `list` says that the machine is off"),
    ],
)
def test_a_program_that_fails_or_lies_is_named(tmp_path: Path, body: str, says: str) -> None:
    with pytest.raises(PowerError) as caught:
        program(tmp_path, body).turn_on(GPU_1)
    assert str(caught.value).startswith("gpu-1: ") and says in str(caught.value)


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    child = f"import time, pathlib; time.sleep(3); pathlib.Path({str(mark)!r}).touch()"
    body = f"import subprocess; subprocess.run([sys.executable, '-c', {child!r}])"
    began_s = time.monotonic()
    with pytest.raises(PowerError, match="did not end within 1 s, and was ended"):
        program(tmp_path, body, call_s=1.0).is_on(GPU_1)
    assert time.monotonic() - began_s < 2.9
    time.sleep(max(0.0, 3.5 - (time.monotonic() - began_s)))
    assert not mark.exists()


def test_a_program_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PowerError, match=r"gpu-1: `list` of the program cloud cannot be run \(.*\); correct its path"):
        Program("cloud", (str(tmp_path / "none"),)).is_on(GPU_1)
