"""`make test`: its counts, its exit code, and the times it leaves behind; and the order of molecule's scenarios."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.lab.cpu_group import Used
from tests.lab.error import LabError
from tools.budgets import Budgets
from tools.molecule import LOG_LINES, failure, last_seconds, longest_first, scenario
from tools.prove import COSTLIEST, Stage
from tools.prove import prove as prove_by
from tools.results import Cost, Counts, Result, read_junit, read_molecule, read_plain

JUNIT = """<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1">
<testcase classname="tests.unit.test_a" name="test_quick" time="0.01" />
<testcase classname="tests.unit.test_a" name="test_long[x]" time="7.25"><properties>
<property name="campaign" value="{&quot;area&quot;: 1}" />
<property name="cpu_here_s" value="3.5" /><property name="cpu_hosts_s" value="1.25" /></properties>
<failure message="assert 1 == 2&#10;  left">at</failure></testcase>
<testcase classname="tests.unit.test_b" name="test_none" time="0.0"><properties>
<property name="cpu_shared_s" value="2.5" /></properties><skipped /></testcase>
</testsuite></testsuites>"""
NONE_FAILED = '<testsuites><testsuite><testcase classname="a" name="b" time="1"/></testsuite></testsuites>'
MOLECULE = """molecule: pki passed in 41 s (12 CPU s here, 20 on hosts)
molecule: nvidia_driver/debian FAILED after 130 s (30 CPU s here, 0 on hosts); from etcd.log:
fatal: [etcd1]: FAILED! =>
msg: it took 9 s
molecule: 1 passed, 1 failed: nvidia_driver/debian
"""
BUDGETS = Budgets({"check": 10.0, "molecule": 10.0}, {}, 20.0)


class Counted:
    """A control group in which every stage uses as much."""

    def __init__(self, used: Used) -> None:
        self._used = used

    def inside(self, words: Sequence[str]) -> list[str]:
        return list(words)

    def environment(self) -> dict[str, str]:
        return {"MUSTER_TEST_STAGE": "counted"}

    def used(self) -> Used:
        return self._used


class Measured:
    """Processors of one speed."""

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def speed(self, since: float) -> float:
        return self._speed


def prove(
    lanes: Sequence[Sequence[Stage]],
    times: Path,
    budgets: Budgets | None = None,
    used: Used | None = None,
    speed: float = 1.0,
    of: Mapping[str, str] | None = None,
) -> int:
    counted, measured = Counted(used or Used()), Measured(speed)
    return prove_by(lanes, times, budgets, lambda _: nullcontext(counted), lambda _: nullcontext(measured), of)


def stage(name: str, result: Result, code: str = "") -> Stage:
    return Stage(name, [sys.executable, "-c", code], lambda *_: result)


def test_costs_of_stages_and_of_the_costliest_tests_are_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By processor time, not by time: what waits keeps nobody else from working."""
    costs = {f"test_{number}": Cost(99.0 - number, Used(float(number))) for number in range(20)}
    unit = Result(Counts(12, 0, 0), costs)
    busy = "import os, time\nwhile time.process_time() < 0.3: pass\nprint(os.environ['MUSTER_TEST_STAGE'])"
    times = tmp_path / "times.json"
    molecule = stage("molecule", Result(Counts(1, 0, 0), {"etcd": Cost(9.5, Used(1.0, 17.5))}))
    assert prove([[stage("check", unit, busy), molecule]], times, used=Used(2.0, 0.5)) == 0
    kept = json.loads(times.read_text())
    assert list(kept["stages"]) == ["check", "molecule"]
    assert kept["stages"]["check"]["seconds"] >= 0.3
    assert kept["stages"]["check"]["cpu_here_s"] == 2.0 and kept["stages"]["check"]["cpu_hosts_s"] == 0.5
    assert list(kept["costliest"])[:4] == ["check: test_19", "molecule: etcd", "check: test_18", "check: test_17"]
    assert len(kept["costliest"]) == COSTLIEST
    shown = capfd.readouterr().out
    assert "== check\ncounted\n== check: 12 passed" in shown
    assert "    9.5 s     1.0 CPU s here    17.5 on hosts  molecule: etcd\n" in shown
    assert "test_2\n" not in shown
    assert re.search(r"the processors were busy for \d+% of it", shown)
    assert shown.splitlines()[-1] == "13 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize(
    ("used", "speed", "rc", "told"),
    [
        (Used(9.0, 1.0), 1.0, 0, "check: 10 of 10 CPU s"),
        (Used(1.0, 9.9), 1.0, 0, "check: 11 CPU s are 1 over the budget of 10: move what repeats a proof to make soak"),
        (Used(2.0, 9.1), 1.0, 1, "check: 11 CPU s are 1 over the budget of 10: move what repeats a proof to make soak"),
        (Used(30.0), 1.0, 1, "check: 30 CPU s are 20 over the budget of 10: move what repeats a proof to make soak"),
        # A slow machine, or a busy neighbour: the same work in more seconds.
        (Used(2.0, 9.1), 0.8, 0, "check: 9 of 10 CPU s at speed 0.80"),
        (Used(9.0, 1.0), 1.5, 1, "check: 15 CPU s at speed 1.50 are 5 over the budget of 10: move what repeats"),
    ],
)
def test_a_stage_that_is_over_its_budget_is_named_and_fails_from_a_tenth_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], used: Used, speed: float, rc: int, told: str
) -> None:
    """The hosts' processor time counts as that of this machine's processes does."""
    assert prove([[stage("check", Result(Counts(2, 0, 0)))]], tmp_path / "times.json", BUDGETS, used, speed) == rc
    shown = capfd.readouterr().out
    assert told in shown
    assert ("FAILED check: budget: " in shown) is bool(rc)
    assert shown.splitlines()[-1] == f"2 passed, {rc} failed, 0 skipped"
    kept = json.loads((tmp_path / "times.json").read_text())["stages"]["check"]
    assert (kept["budget_cpu_s"], kept["speed"]) == (10, speed)


def test_a_stage_without_a_budget_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert prove([[stage("new", Result(Counts(1, 0, 0)))]], tmp_path / "times.json", BUDGETS) == 1
    assert "FAILED new: budget: has no budget in cpu_budgets.yaml: give it one" in capfd.readouterr().out


def test_a_machine_that_cannot_count_is_told_in_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> nullcontext[Counted]:
        raise LabError(f"{name} cannot be made: run it as root")

    assert prove_by([[stage("check", Result(Counts(1, 0, 0)))]], tmp_path / "times.json", None, refuse) == 2
    assert re.search(r"^prove: muster-prove-\d+-check cannot be made: run it as root$", capfd.readouterr().err, re.M)


def test_lanes_run_beside_each_other_and_each_line_names_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each writes into the other's pipe and reads its own: one after the other they would wait for ever.

    The last one of a lane starts when the one before it has ended: it reads the file that this one has left.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    os.mkfifo(first)
    os.mkfifo(second)
    send, take = f"Path({str(first)!r}).write_text('x')", f"Path({str(second)!r}).read_text()"
    answer = f"Path({str(first)!r}).read_text(); Path({str(second)!r}).write_text('x')"
    left = tmp_path / "left"
    leave, find = f"Path({str(left)!r}).write_text('x')", f"print(Path({str(left)!r}).read_text() + ' found')"
    lanes = [
        [stage("lab", Result(Counts(1, 0, 0)), f"from pathlib import Path; {send}; {take}; print('met')")],
        [
            stage("servers", Result(Counts(2, 0, 0)), f"from pathlib import Path; {answer}; print('met'); {leave}"),
            stage("molecule", Result(Counts(1, 0, 0)), f"from pathlib import Path; {find}"),
        ],
    ]
    assert prove(lanes, tmp_path / "times.json") == 0
    shown = capfd.readouterr().out.splitlines()
    assert {"lab | met", "servers | met", "molecule | x found"} <= set(shown)
    assert shown[-1] == "4 passed, 0 failed, 0 skipped"


def test_a_failed_stage_fails_the_whole_and_the_next_one_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = Result(Counts(1, 1, 0), {}, {"tests.unit.test_a.test_long": "assert 1 == 2"})
    lane = [stage("check", failed), stage("lab", Result(Counts(2, 0, 0)))]
    assert prove([lane], tmp_path / "times.json") == 1
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "FAILED check: tests.unit.test_a.test_long: assert 1 == 2",
        "3 passed, 1 failed, 0 skipped",
    ]
    assert list(json.loads((tmp_path / "times.json").read_text())["stages"]) == ["check", "lab"]


def test_an_interrupted_run_goes_on_with_what_had_not_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also a stage that had failed stays as it was: a second try would hide it. A whole run starts anew."""
    times, this = tmp_path / "soak.json", {"commit": "a", "seed": "1"}
    failed = stage("lab", Result(Counts(1, 1, 0), {"t": Cost(1.0, Used(3.0, 2.0))}, {"test_long": "assert 1 == 2"}))
    assert prove([[failed]], times, used=Used(2.0, 0.5), of=this) == 1
    before = json.loads(times.read_text())["stages"]["lab"]
    lanes = [[stage("lab", Result(Counts(9, 0, 0)), "raise"), stage("kills", Result(Counts(1, 0, 0)), "print('now')")]]
    assert prove(lanes, times, of=this) == 1
    shown = capfd.readouterr().out
    assert "== lab had ended before: 1 passed, 1 failed, 0 skipped\n== kills\nnow\n" in shown
    assert shown.endswith("FAILED lab: test_long: assert 1 == 2\n2 passed, 1 failed, 0 skipped\n")
    kept = json.loads(times.read_text())
    assert list(kept["stages"]) == ["lab", "kills"] and kept["stages"]["lab"] == before
    assert list(kept["costliest"]) == ["lab: t"] and kept["failures"] == {"lab: test_long": "assert 1 == 2"}
    # All had ended: anew.
    assert prove(lanes, times, of=this) == 0
    assert "10 passed, 0 failed, 0 skipped" in capfd.readouterr().out


@pytest.mark.parametrize("of", [{"commit": "b", "seed": "1"}, {}, None])
def test_another_run_starts_anew(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], of: Mapping[str, str] | None
) -> None:
    times = tmp_path / "soak.json"
    assert prove([[stage("lab", Result(Counts(1, 0, 0)))]], times, of={"commit": "a", "seed": "1"}) == 0
    lanes = [[stage("lab", Result(Counts(5, 0, 0))), stage("kills", Result(Counts(1, 0, 0)))]]
    assert prove(lanes, times, of=of) == 0
    assert capfd.readouterr().out.endswith("6 passed, 0 failed, 0 skipped\n")


def test_a_junit_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "unit.xml"
    path.write_text(JUNIT)
    read = read_junit(path, 1, "")
    assert read.counts == Counts(1, 1, 1)
    assert read.failures == {"tests.unit.test_a.test_long[x]": "assert 1 == 2 left"}
    assert read.costs["tests.unit.test_a.test_long[x]"] == Cost(7.25, Used(3.5, 1.25))
    assert read.costs["tests.unit.test_a.test_quick"] == Cost(0.01)
    assert read.costs["(shared by many tests, and ended after the last)"] == Cost(0.0, Used(2.5))


@pytest.mark.parametrize(
    ("text", "rc", "out", "failures"),
    [
        (None, 0, "", {"no result": "no output"}),
        (None, 4, "ERROR: file not found\n\n", {"no result": "ERROR: file not found"}),
        (JUNIT[:90], 0, "", {"no result": "unit.xml cannot be read: unclosed token: line 2, column 0"}),
        (NONE_FAILED, 1, "killed\n", {"exit code 1": "killed"}),
        (
            NONE_FAILED,
            1,
            "check: ruff FAILED (command: ruff check .)\ncheck: mypy passed in 2 s\ncheck: failed: ruff\n",
            {"ruff": "command: ruff check ."},
        ),
    ],
)
def test_a_stage_without_its_file_or_that_failed_without_a_failed_test_is_one_failure(
    tmp_path: Path, text: str | None, rc: int, out: str, failures: dict[str, str]
) -> None:
    path = tmp_path / "unit.xml"
    if text is not None:
        path.write_text(text)
    read = read_junit(path, rc, out)
    assert read.counts.failed == 1
    assert read.failures == failures


def test_the_lines_of_molecule_are_read() -> None:
    failures = {"nvidia_driver/debian": "fatal: [etcd1]: FAILED! => it took 9 s"}
    costs = {"pki": Cost(41.0, Used(12.0, 20.0)), "nvidia_driver/debian": Cost(130.0, Used(30.0, 0.0))}
    assert read_molecule(1, MOLECULE) == Result(Counts(1, 1, 0), costs, failures)
    assert read_molecule(1, "Traceback") == Result(Counts(0, 1, 0), {}, {"exit code 1": "Traceback"})


def test_a_command_that_is_one_test_passed_or_not() -> None:
    assert read_plain(0, "fine\n") == Result(Counts(1, 0, 0))
    assert read_plain(3, "a\nno space left\n\n") == Result(Counts(0, 1, 0), {}, {"exit code 3": "no space left"})


def test_of_a_command_that_failed_the_reason_is_what_it_said_wherever_that_stands() -> None:
    command = """molecule: etcd FAILED after 4 s (3 CPU s here, 2 on hosts); from etcd.log:
fatal: [localhost]: FAILED! =>
changed: true
cmd:
- python
delta: '0:00:02.04'
msg: non-zero return code
rc: 2
start: '2026-11-26 03:04:02.66'
stderr: |-
0:00, about 4 s left  start the hosts
lab: `podman run` failed with exit code 126: no space left
stderr_lines: <omitted>
stdout: ''
"""
    said = "fatal: [localhost]: FAILED! => lab: `podman run` failed with exit code 126: no space left"
    assert read_molecule(1, command).failures == {"etcd": said}
    silent = re.sub(r"stderr: .*(?=stderr_lines)", "stderr: ''\\n", command, flags=re.DOTALL)
    assert read_molecule(1, silent).failures == {"etcd": "fatal: [localhost]: FAILED! => non-zero return code"}


def test_what_failed_in_a_log_is_shown_without_its_frame() -> None:
    task = "  \x1b[2m\x1b[32m│\x1b[0m TASK [Ask]"
    fatal = "  \x1b[2m\x1b[31m│\x1b[0m \x1b[0;31mfatal: [api-1]: FAILED! => \x1b[0m"
    more = "  \x1b[2m\x1b[31m│\x1b[0m \x1b[0;31m    rc: 2\x1b[0m"
    refusal = fatal.replace("api-1", "api-2")
    shown = failure("\n".join([task, refusal, task, fatal, more, *["later"] * 99]))
    assert shown[:3] == ["fatal: [api-1]: FAILED! =>", "rc: 2", "later"]
    assert len(shown) == LOG_LINES
    assert failure("\n".join([task, *map(str, range(99))]))[-1] == "98"
    assert failure(task) == ["TASK [Ask]"]


def test_the_longest_scenario_goes_first_after_the_unknown_ones() -> None:
    known = {"etcd": 130.0, "kubelet": 200.5, "pki": 41.0}
    sizes_bytes = {"etcd": 9, "fresh": 1, "kubelet": 2, "new": 3, "pki": 4}
    assert longest_first(list(sizes_bytes), known, sizes_bytes) == ["new", "fresh", "kubelet", "etcd", "pki"]


@pytest.mark.parametrize(("role", "folder"), [("etcd", "etcd/molecule/default"), ("etcd/old", "etcd/molecule/old")])
def test_a_role_has_the_scenario_default_unless_another_is_named(role: str, folder: str) -> None:
    assert scenario(role).as_posix().endswith(f"/roles/{folder}")


@pytest.mark.parametrize("text", ["", "[]", '{"etcd": "long"}', '{"etcd": null}', "\x00"])
def test_a_broken_file_of_last_seconds_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    assert last_seconds() == {}
    (tmp_path / "durations").mkdir()
    (tmp_path / "durations/molecule.json").write_text('{"etcd": 130}')
    assert last_seconds() == {"etcd": 130.0}
    (tmp_path / "durations/molecule.json").write_text(text)
    assert last_seconds() == {}
