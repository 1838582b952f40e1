"""Steps in processes of their own: failures, hangs, crashes and cuts cost one step, and what is written is whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.gpu import runner as runner_module
from tests.bench.gpu.plan import Step
from tests.bench.gpu.runner import LOG, RESULT, TABLE, Runner
from tests.support.clocks import has_ended, wait_until

ROOT = Path(__file__).resolve().parents[3]


def _tell(**told: Any) -> str:
    """A script that writes this as its result."""
    return f"import json, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(json.dumps({told!r}))\n"


GOOD = _tell(figures={"value": 1})


def _run(
    out: Path, scripts: Mapping[str, str], most_s: float = 60.0, total_s: float = 540.0
) -> tuple[Runner, list[str]]:
    """Run steps that are scripts; the path of their result is their first argument."""
    said: list[str] = []
    steps = [Step(name, f"title of {name}", 8.5, most_s, 1) for name in scripts]

    def command(step: Step, result: Path) -> Sequence[str]:
        return (sys.executable, "-S", "-c", scripts[step.name], str(result))

    made = Runner(out, steps, command, "2026-01-01", say=said.append)
    made.run()
    return made, said


def _states(out: Path) -> dict[str, tuple[str, str]]:
    steps = json.loads((out / RESULT).read_text())["steps"]
    return {name: (step["state"], step.get("why", "")) for name, step in steps.items()}


def test_a_step_that_fails_crashes_or_says_nothing_costs_only_itself(tmp_path: Path) -> None:
    made, said = _run(
        tmp_path,
        {
            "first": GOOD,
            "fails": _tell(figures={"partly": 2}, why="there is no GPU") + "sys.exit(1)",
            "throws": "raise ValueError('seen in the log')",
            "crashes": GOOD + "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "silent": "pass",
            "not json": "import sys; open(sys.argv[1], 'w').write('{')",
            "idle": _tell(nothing_to_do="one GPU"),
            "last": GOOD,
        },
    )
    assert _states(tmp_path) == {
        "first": ("done", ""),
        "fails": ("failed", "there is no GPU"),
        "throws": ("failed", f"it ended with status 1; see {LOG}"),
        "crashes": ("died", f"its process died by SIGSEGV; see {LOG}"),
        "silent": ("failed", f"it left no result; see {LOG}"),
        "not json": ("failed", f"it left no result; see {LOG}"),
        "idle": ("nothing to do", "one GPU"),
        "last": ("done", ""),
    }
    steps = made.result["steps"]
    assert steps["fails"]["figures"] == {"partly": 2}
    assert steps["crashes"]["figures"] == {"value": 1}
    assert not made.complete
    assert "seen in the log" in (tmp_path / LOG).read_text()
    assert len(said) == 8 and "fails: failed in" in said[1] and "there is no GPU" in said[1]


def test_all_done_is_complete_and_an_optional_step_without_time_too(tmp_path: Path) -> None:
    made, _ = _run(tmp_path, {"one": GOOD, "two": _tell(nothing_to_do="one GPU")})
    assert made.complete
    short, long = Step("one", "one", 8.5, 9, 1), Step("long", "long", 300, 400, 2)
    for optional, complete in ((replace(long, optional=True), True), (long, False)):
        (out := tmp_path / str(complete)).mkdir()
        made = Runner(
            out, (short, optional), lambda _, path: (sys.executable, "-S", "-c", GOOD, str(path)), "", 60, str
        )
        made.run()
        assert made.complete is complete
        assert _states(out)["long"][0] == "left out" and "no time was left" in _states(out)["long"][1]


def _hangs(folder: Path, more: str = "") -> str:
    """A step that has told something, starts a process in its group, and hangs."""
    return GOOD + textwrap.dedent(f"""
        import os, pathlib, signal, subprocess
        {more}
        child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
        pathlib.Path({str(folder / "pids")!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
        while True: signal.pause()
        """)


def _wait_for_the_end_of(pid: int) -> None:
    """Nobody waits for a process whose parent is gone: one that was killed ends a moment later."""
    wait_until(lambda: has_ended(pid))


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"], ids=["ends when asked", "has to be killed"]
)
def test_a_step_that_hangs_is_ended_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    monkeypatch.setattr(runner_module, "TERM_S", 0.3)
    (out := tmp_path / "out").mkdir()
    made, _ = _run(out, {"hangs": _hangs(tmp_path, more), "after": GOOD}, most_s=11)
    assert _states(out)["hangs"] == ("cut", f"it was not over after 3 s; see {LOG}")
    assert made.result["steps"]["hangs"]["figures"] == {"value": 1}, "what it had told is kept"
    assert _states(out)["after"] == ("done", "")
    for pid in (tmp_path / "pids").read_text().split():
        _wait_for_the_end_of(int(pid))


def test_nothing_of_a_step_s_group_is_left_when_it_ended_by_itself(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    script = GOOD + textwrap.dedent(f"""
        import pathlib, subprocess
        child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
        pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
        """)
    _run(out, {"leaves": script})
    assert _states(out)["leaves"] == ("done", "")
    _wait_for_the_end_of(int((tmp_path / "pid").read_text()))


def test_a_long_output_is_kept_with_its_beginning_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "_LOG_PART_BYTES", 100)
    _run(tmp_path, {"talks": GOOD + "print('begin', 'x' * 10_000, 'end')"})
    log = (tmp_path / LOG).read_text()
    assert len(log) < 400 and "begin" in log and "... cut ..." in log and "end" in log


def test_a_cut_at_any_moment_leaves_whole_results_of_what_was_done(tmp_path: Path) -> None:
    """The session is killed in its second step: the first one's results are there, and the second one ends with it."""
    (out := tmp_path / "out").mkdir()
    (scripts := tmp_path / "scripts.json").write_text(
        json.dumps({"one": GOOD, "two": _hangs(tmp_path, _DIE), "three": GOOD})
    )
    session = subprocess.Popen(
        [sys.executable, __file__, str(out), str(scripts)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},  # a script's own folder is all that Python adds by itself
        stdout=subprocess.PIPE,
        text=True,
    )
    assert session.stdout is not None
    assert session.stdout.readline().startswith("one: done")
    while not (tmp_path / "pids").exists() or len((tmp_path / "pids").read_text().split()) < 2:
        assert session.poll() is None
    session.kill()
    session.wait()
    assert _states(out) == {"one": ("done", ""), "two": ("not reached", ""), "three": ("not reached", "")}
    assert "| title of two | not measured: not reached | - |" in (out / TABLE).read_text()
    assert {path.name for path in out.iterdir()} == {LOG, RESULT, TABLE}
    wrapper, child = (tmp_path / "pids").read_text().split()
    _wait_for_the_end_of(int(wrapper))
    os.kill(int(child), signal.SIGKILL)


# What a real step does: it ends with the session.
_DIE = "sys.path.insert(0, '.'); from gpu_burnin.system.children import die_with_parent; die_with_parent()"


if __name__ == "__main__":
    folder, made_of = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    Runner(
        folder,
        [Step(name, f"title of {name}", 8.5, 60, 1) for name in made_of],
        lambda step, path: (sys.executable, "-S", "-c", made_of[step.name], str(path)),
        "2026-01-01",
        say=lambda text: print(text, flush=True),
    ).run()
