"""Which functions can be sent, and what is said of the others."""

from __future__ import annotations

import functools
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.function import script_of
from tests.unit.launch import functions


def _run(tmp_path: Path, script: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_function_runs_by_itself(tmp_path: Path) -> None:
    script = script_of(functions.whole, [4], {"rate": 0.5, "names": ["it's", 'a "b"']})
    assert _run(tmp_path, script) == '4.146 0.5 ["it\'s", \'a "b"\'] __main__\n'


def test_lines_have_the_numbers_of_the_file() -> None:
    line = functions.whole.__code__.co_firstlineno
    assert script_of(functions.whole, [1]).splitlines()[line - 1].startswith("def whole(")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(script_of(_fails), "fails.py", "exec"), {"__name__": "__main__"})
    [*_, last] = traceback.extract_tb(caught.value.__traceback__)
    assert last.lineno == _fails.__code__.co_firstlineno + 1


def _fails() -> float:
    return 1 / 0


@pytest.mark.parametrize("function", [functions.recursive, functions.sets_global, functions.plain_inside()])
def test_what_is_whole_is_taken(function: Callable[..., Any], tmp_path: Path) -> None:
    _run(tmp_path, script_of(function, [2] if function is functions.recursive else []))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (functions.lambda_, "a lambda cannot be sent"),
        (functions.closure(), "inside uses steps of the function around it"),
        (functions.uses_module, "uses_module uses STEPS, math, which its file has and the job will not"),
        (functions.with_default, "with_default uses STEPS, which its file has"),
        (functions.Trainer().train, r"Trainer\.train is a method"),
        (functions.Trainer.train, r"Trainer\.train is a method"),
        (functions.Trainer, "Trainer is no function written in Python"),
        (functions.asynchronous, "asynchronous is async"),
        (functions.generates, "generates is a generator"),
        (functions.cached, "cached is no function written in Python"),
        (functions.noted, "noted is decorated"),
        (functools.partial(functions.recursive, 1), "a partial cannot be sent"),
        (print, "print is no function written in Python"),
        (7, "int is no function"),
    ],
)
def test_what_is_not_whole_is_refused_in_a_sentence(function: Any, words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        script_of(function)
    assert "\n" not in str(caught.value)


def test_one_typed_at_a_prompt_is_refused() -> None:
    space: dict[str, Any] = {}
    exec(compile("def train():\n    pass\n", "<stdin>", "exec"), space)
    with pytest.raises(LaunchError, match="the source of train cannot be read, as of one that was typed at a prompt"):
        script_of(space["train"])


@pytest.mark.parametrize("value", [{1, 2}, (1, 2), {1: 2}, float("nan"), object()])
def test_values_that_json_would_change_are_refused(value: object) -> None:
    with pytest.raises(LaunchError, match="args and kwargs of recursive travel as JSON"):
        script_of(functions.recursive, [value])


def test_values_that_the_function_does_not_take_are_refused() -> None:
    with pytest.raises(LaunchError, match="recursive does not take these args and kwargs: missing a required argument"):
        script_of(functions.recursive)
    with pytest.raises(LaunchError, match="got an unexpected keyword argument 'steps'"):
        script_of(functions.recursive, [1], {"steps": 1})
