"""The entry point that all modules share: how a task ends, and how an error names the host."""

from __future__ import annotations

import ast
import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

MODULES = Path(__file__).resolve().parents[3] / "collections/ansible_collections/muster/fleet/plugins/modules"
HOST = os.uname().nodename

End = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def end(capsys: pytest.CaptureFixture[str]) -> End:
    """Runs a module that does this work; its exit code and its result."""

    def run(work: Callable[[AnsibleModule], dict[str, Any]], **options: Any) -> tuple[int, dict[str, Any]]:
        with patch_module_args({}), pytest.raises(SystemExit) as caught:
            run_module(work, {}, **options)
        return int(caught.value.code or 0), json.loads(capsys.readouterr().out)

    return run


def raising(error: Exception) -> Callable[[AnsibleModule], dict[str, Any]]:
    def work(_: AnsibleModule) -> dict[str, Any]:
        raise error

    return work


def test_a_result_ends_the_task(end: End) -> None:
    code, result = end(lambda module: {"changed": True, "check": module.check_mode})
    assert (code, result["changed"], result["check"]) == (0, True, False)


def test_an_error_names_the_host_and_keeps_its_results(end: End) -> None:
    code, result = end(raising(FleetError("/etc/x: is a folder; move it away", log="last words")))
    assert (code, result["failed"], result["log"]) == (1, True, "last words")
    assert result["msg"] == f"{HOST}: /etc/x: is a folder; move it away"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(errno.EACCES, "Permission denied", "/etc/x"),
            "/etc/x: Permission denied; run the task as root",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device; make room on its file system"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory", "/y"), "/y: No such file or directory"),
        (OSError("odd"), "odd"),
    ],
)
def test_an_error_of_the_system_is_a_sentence_too(end: End, error: OSError, said: str) -> None:
    code, result = end(raising(error))
    assert (code, result["msg"]) == (1, f"{HOST}: {said}")
    assert "exception" not in result


def test_a_missing_package_says_which_python_to_give_the_task(end: End) -> None:
    code, result = end(raising(AssertionError("never reached")), missing=ImportError("no", name="gpu_burnin.admission"))
    assert code == 1
    assert result["msg"].startswith(f"{HOST}: {sys.executable} has no Python package gpu_burnin; give the task")
    assert "ansible_python_interpreter" in result["msg"]


@pytest.mark.parametrize("path", sorted(MODULES.glob("*.py")), ids=lambda path: path.stem)
def test_every_module_ends_here_or_is_an_action_of_the_controller(path: Path) -> None:
    tree = ast.parse(path.read_text())
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if "run_module" not in called:
        # Its options alone: what runs them is the action of its name.
        assert called == set() and (MODULES.parent / "action" / path.name).exists()
    assert not {name for name in called if name == "AnsibleModule" or name.endswith((".fail_json", ".exit_json"))}
