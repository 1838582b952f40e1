"""`make test`: its counts, its exit code, and the times it leaves behind; and the order of molecule's scenarios."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tools.molecule import LOG_LINES, failure, last_seconds, longest_first, scenario
from tools.prove import Counts, Result, Stage, prove, read_junit, read_molecule

JUNIT = """<testsuites><testsuite tests="3" failures="1" errors="0" skipped="1">
<testcase classname="tests.unit.test_a" name="test_quick" time="0.01" />
<testcase classname="tests.unit.test_a" name="test_long[x]" time="7.25">
<failure message="assert 1 == 2&#10;  left">at</failure></testcase>
<testcase classname="tests.unit.test_b" name="test_none" time="0.0"><skipped /></testcase>
</testsuite></testsuites>"""
NONE_FAILED = '<testsuites><testsuite><testcase classname="a" name="b" time="1"/></testsuite></testsuites>'
MOLECULE = """molecule: pki passed in 41 s (12 CPU s)
molecule: etcd FAILED after 130 s (30 CPU s); from etcd.log:
fatal: [etcd1]: FAILED! =>
msg: it took 9 s
molecule: 1 passed, 1 failed: etcd
"""


def stage(name: str, result: Result, code: str = "") -> Stage:
    return Stage(name, [sys.executable, "-c", code], lambda *_: result)


def test_times_of_stages_and_of_the_ten_longest_are_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    unit = Result(Counts(12, 0, 0), {f"test_{number}": float(number) for number in range(12)})
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint('seen')"
    times = tmp_path / "times.json"
    molecule = stage("molecule", Result(Counts(1, 0, 0), {"etcd": 9.5}))
    assert prove([[stage("check", unit, busy), molecule]], times) == 0
    kept = json.loads(times.read_text())
    assert list(kept["stages"]) == ["check", "molecule"]
    assert kept["stages"]["check"] >= 0.3
    assert list(kept["longest"])[:4] == ["check: test_11", "check: test_10", "molecule: etcd", "check: test_9"]
    assert len(kept["longest"]) == 10
    shown = capfd.readouterr().out
    assert "== check\nseen\n== check: 12 passed" in shown
    assert "    9.5 s  molecule: etcd\n" in shown
    assert "test_2" not in shown
    assert re.search(r"the processors were busy for \d+% of it", shown)
    assert shown.splitlines()[-1] == "13 passed, 0 failed, 0 skipped"


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
        [stage("lab", Result(Counts(1, 0, 0), {}), f"from pathlib import Path; {send}; {take}; print('met')")],
        [
            stage("servers", Result(Counts(2, 0, 0), {}), f"from pathlib import Path; {answer}; print('met'); {leave}"),
            stage("molecule", Result(Counts(1, 0, 0), {}), f"from pathlib import Path; {find}"),
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
    lane = [stage("check", failed), stage("lab", Result(Counts(2, 0, 0), {}))]
    assert prove([lane], tmp_path / "times.json") == 1
    assert capfd.readouterr().out.splitlines()[-2:] == [
        "FAILED check: tests.unit.test_a.test_long: assert 1 == 2",
        "3 passed, 1 failed, 0 skipped",
    ]
    assert list(json.loads((tmp_path / "times.json").read_text())["stages"]) == ["check", "lab"]


def test_a_junit_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "unit.xml"
    path.write_text(JUNIT)
    read = read_junit(path, 1, "")
    assert read.counts == Counts(1, 1, 1)
    assert read.failures == {"tests.unit.test_a.test_long[x]": "assert 1 == 2 left"}
    assert read.seconds["tests.unit.test_a.test_long[x]"] == 7.25


@pytest.mark.parametrize(
    ("text", "rc", "out", "failures"),
    [
        (None, 0, "", {"no result": "no output"}),
        (None, 4, "ERROR: file not found\n\n", {"no result": "ERROR: file not found"}),
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
    failures = {"etcd": "fatal: [etcd1]: FAILED! => it took 9 s"}
    assert read_molecule(1, MOLECULE) == Result(Counts(1, 1, 0), {"pki": 41.0, "etcd": 130.0}, failures)
    assert read_molecule(1, "Traceback") == Result(Counts(0, 1, 0), {}, {"exit code 1": "Traceback"})


def test_of_a_command_that_failed_the_reason_is_what_it_said_wherever_that_stands() -> None:
    command = """molecule: etcd FAILED after 4 s (3 CPU s); from etcd.log:
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
