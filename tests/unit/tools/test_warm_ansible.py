"""ansible-playbook from a process that has loaded Ansible: it says what the real one says, and ends as it does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Python lists on standard error each module that it loads: a process that was forked loads Ansible's no more.
LOADED = "ansible.cli.playbook"
GOOD = "- hosts: localhost\n  tasks:\n    - ansible.builtin.debug:\n"
WRONG = GOOD.replace("debug", "no_such_module")


@pytest.mark.slow
def test_a_check_is_told_and_ends_as_by_the_real_program(tmp_path: Path) -> None:
    for name, text in (("good.yml", GOOD), ("wrong.yml", WRONG)):
        (tmp_path / name).write_text(text)
    script = """
        for play in good.yml wrong.yml; do
            ansible-playbook --syntax-check $play >$play.out 2>$play.err; echo $? >$play.status
        done
        OTHER=1 ansible-playbook --syntax-check wrong.yml >other.out 2>other.err; echo $? >other.status
        exit 7
    """
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONPROFILEIMPORTTIME": "1",
        "ANSIBLE_HOME": str(tmp_path / "home"),
    }
    run = subprocess.run(
        [sys.executable, "-m", "tools.warm_ansible", "sh", "-c", script],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    said = {path.name: path.read_text() for path in tmp_path.glob("*.*") if path.is_file()}
    assert run.returncode == 7
    assert (said["good.yml.status"], said["wrong.yml.status"], said["other.status"]) == ("0\n", "4\n", "4\n")
    assert "playbook: good.yml" in said["good.yml.out"]
    assert "couldn't resolve module/action 'ansible.builtin.no_such_module'" in said["wrong.yml.err"]
    assert LOADED not in said["good.yml.err"] + said["wrong.yml.err"]
    # With another variable its configuration could be another: this one is the real program.
    assert LOADED in said["other.err"]
    assert said["wrong.yml.err"].splitlines()[-6:] == said["other.err"].splitlines()[-6:]
    assert not list((tmp_path / "home" / "tmp").iterdir())


@pytest.mark.slow
def test_with_a_named_configuration_a_run_has_its_folder_variables_and_a_name_of_its_own(tmp_path: Path) -> None:
    """What each task of a run sees: where it runs, who runs it, and a temporary folder that is gone afterwards."""
    look = "pwd; echo $MUSTER_WORD; tr '\\0' ' ' </proc/$PPID/cmdline; echo; ls -d ../tmp/*/*/"
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{"ansible.builtin.raw": look, "register": "seen"}]}]
    play[0]["tasks"] += [{"ansible.builtin.debug": {"msg": "SEEN {{ seen.stdout_lines | join(';') }}"}}]
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "play.yml").write_text(json.dumps(play))
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONPROFILEIMPORTTIME": "1",
        "ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"),
        "ANSIBLE_LOCAL_TEMP": str(tmp_path / "tmp"),
    }
    # Not `cd`, which sets a variable.
    run = "env -C $name MUSTER_WORD=$name ansible-playbook play.yml >$name/out 2>$name/err"
    script = f"for name in one two; do {run}; done"
    command = [sys.executable, "-m", "tools.warm_ansible", "sh", "-c", script]
    subprocess.run(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL, check=True)
    own = set()
    for name in ("one", "two"):
        assert LOADED not in (tmp_path / name / "err").read_text()
        (seen,) = re.findall(r"SEEN (.*)\"", (tmp_path / name / "out").read_text())
        folder, word, program, *folders = seen.split(";")
        assert (folder, word, program.split()) == (str(tmp_path / name), name, ["python", "ansible-playbook"])
        own |= set(folders)
    assert len([path for path in own if "ansiballz_cache" not in path]) == 2
    assert not list((tmp_path / "tmp").iterdir())


def test_without_a_command_it_says_what_it_wants() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tools.warm_ansible"], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert run.returncode == 2
    assert "usage" in run.stderr
