"""What each command needs of this distribution's extras, by calling it where one is not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gpu_burnin.cli.program import EXTRA_OF
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.slow

# Calls one program after the other as if some modules were not installed.
WITHOUT = """
import importlib.util, io, json, shlex, sys
from contextlib import redirect_stderr, redirect_stdout

absent = set(json.loads(sys.argv[1]))
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in absent else find_spec(name, package)


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Absent())
from gpu_burnin.cli.program import call

answers = {}
for line in sys.argv[2:]:
    sys.argv = shlex.split(line)
    module = "gpu_burnin.cli.main" if sys.argv[0] == "gpu-burnin" else "gpu_burnin.cli.muster.main"
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(errors):
        code = call(importlib.import_module(module).cli)
    answers[line] = (code, errors.getvalue())
print(json.dumps(answers))
"""


def answers(absent: list[str], *commands: str) -> dict[str, tuple[int, str]]:
    """Exit code and output of each command where these modules are not installed."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, json.dumps(absent), *commands],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    read: dict[str, tuple[int, str]] = json.loads(done.stdout)
    assert list(read) == list(commands)
    return read


@pytest.fixture(scope="module")
def without_node(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """What the commands answer where the extra `node` is not installed, by name of the command."""
    nowhere = tmp_path_factory.mktemp("nowhere")
    (nowhere / "admitter.yaml").write_text(f"kubeconfig: {nowhere}/kubeconfig\n")
    commands = {
        **{name: f"gpu-burnin {name}" for name in ("run", "demo", "plan", "selftest", "watch")},
        "compare": "gpu-burnin compare a b",
        "baseline": "muster baseline",
        "admitter": f"muster admitter --config {nowhere}/admitter.yaml",
        "gate-probe": f"muster gate-probe --kubeconfig {nowhere}/kubeconfig --state-dir {nowhere}",
        "retest": f"muster retest --random 1% --reason weekly --kubeconfig {nowhere}/kubeconfig",
    }
    found = answers([module for module, extra in EXTRA_OF.items() if extra == "node"], *commands.values())
    return {name: found[command] for name, command in commands.items()}


@pytest.mark.parametrize("name", ["run", "demo", "plan", "selftest", "watch", "compare", "baseline"])
def test_what_computes_names_the_command_that_installs_its_extra(
    without_node: dict[str, tuple[int, str]], name: str
) -> None:
    code, errors = without_node[name]
    assert code == 2
    assert errors.endswith(
        " is not installed; pip install '.[node]' in a checkout (of a release: 'FILE.whl[node]') brings it\n"
    )
    assert errors.count("\n") == 1


@pytest.mark.parametrize(("name", "expected"), [("admitter", 2), ("gate-probe", 3), ("retest", 2)])
def test_what_only_decides_needs_nothing_that_computes(
    without_node: dict[str, tuple[int, str]], name: str, expected: int
) -> None:
    code, errors = without_node[name]
    assert code == expected
    assert "nowhere0/kubeconfig (there is no such file)" in errors and "not installed" not in errors


@pytest.mark.slow
def test_what_researchers_run_names_the_extra_that_brings_no_more_than_they_need(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    commands = (
        f"muster run {tmp_path}/train.py --team vision --image x",
        "muster logs bert --team vision",
        "muster why vision/bert",
        "muster teams",
    )
    for command, (code, errors) in answers(["kubernetes"], *commands).items():
        assert (code, "pip install '.[launch]'" in errors) == (2, True), (command, errors)
    assert "pip install '.[controller]'" in answers(["kubernetes"], "muster status")["muster status"][1]


def test_the_extra_of_researchers_is_enough_for_them_and_others_are_named_theirs(tmp_path: Path) -> None:
    """With it alone each command of theirs comes as far as the kubeconfig."""
    (tmp_path / "train.py").write_text("")
    given = f"--kubeconfig {tmp_path}/none"
    theirs = (
        f"muster run {tmp_path}/train.py --team vision --image x {given}",
        f"muster logs vision/bert {given}",
        f"muster why vision/bert {given}",
        f"muster teams {given}",
    )
    others = {
        f"muster attach --image a/b:1 --gpu-nodes c=d --render {tmp_path}/made": "controller",
        f"muster webhook --attached {tmp_path} --ca {tmp_path}": "admitter",
        f"muster scaler --config {tmp_path}/none": "admitter",
    }
    found = answers([module for module in EXTRA_OF if module != "kubernetes"], *theirs, *others)
    for command in theirs:
        code, errors = found[command]
        assert code == 2 and f"{tmp_path}/none" in errors and "not installed" not in errors, (command, errors)
    for command, extra in others.items():
        code, errors = found[command]
        assert code == 2 and f"cryptography is not installed; pip install '.[{extra}]'" in errors, (command, errors)


def test_every_package_of_an_extra_is_known_by_its_module() -> None:
    """Those that are run as programs, or that no command imports by itself, have none."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = (one for name in ("node", "controller", "admitter", "launch") for one in extras[name] if "[" not in one)
    names = {re.split("[>=<]", one)[0].replace("nvidia-ml-py", "pynvml").replace("-", "_") for one in wanted}
    assert names - {"ansible_core", "pip", "setuptools"} == set(EXTRA_OF)


def test_whoever_attaches_needs_neither_ansible_nor_ssh(tmp_path: Path) -> None:
    """So the container image of a release does it too."""
    given = f"--kubeconfig {tmp_path}/kubeconfig"
    commands = (
        f"muster attach --image a --gpu-nodes b=c --render {tmp_path}/manifests",
        f"muster attach {given} approve gpu-1",
        f"muster detach --cluster x {given}",
    )
    found = answers(["ansible", "ansible_runner", "paramiko", "setuptools"], *commands)
    assert found[commands[0]][0] == 0
    for command in commands[1:]:
        code, errors = found[command]
        assert code == 2 and "not installed" not in errors and str(tmp_path) in errors, errors
