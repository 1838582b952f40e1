"""ansible-lint for less processor time finds what it finds without.

Only here: ansible-lint itself, both ways, on what it is to complain of.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools import frugal_lint

ROOT = Path(__file__).resolve().parents[3]
BAD = """
- hosts: all
  tasks:
    - name: no capital
      shell: echo {{hello}} | cat
      when: "{{ x }} == ''"
    - command: git status
      ignore_errors: yes
    - ansible.builtin.copy: {src: a, dest: /tmp/x, mode: 777}
"""
IMPORTS = """---
- name: Import what cannot be loaded
  ansible.builtin.import_playbook: unknown.yml
- name: Import the other
  ansible.builtin.import_playbook: bad.yml
"""


def test_what_cannot_change_is_shared_and_what_can_is_copied() -> None:
    class Word(str):
        pass

    task = {"name": Word("install"), "tags": [Word("now")]}
    frugal_lint.share([Word])
    copied = copy.deepcopy(task)
    assert copied["name"] is task["name"] and copied["tags"][0] is task["tags"][0]
    assert copied == task and copied["tags"] is not task["tags"]


def test_a_kind_is_asked_for_once_for_each_path_and_list() -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    def kind(path: Path, kinds: list[str], _: Path) -> str:
        asked.append((str(path), tuple(kinds)))
        return kinds[0]

    once = frugal_lint.kept(kind)
    all_kinds, base = ["tasks"], ["text/yaml"]
    told = [once(Path(name), kinds, Path()) for _ in range(2) for name in "ab" for kinds in (all_kinds, base)]
    assert told == ["tasks", "text/yaml"] * 4
    assert asked == [("a", ("tasks",)), ("a", ("text/yaml",)), ("b", ("tasks",)), ("b", ("text/yaml",))]


@pytest.mark.soak
def test_both_find_the_same(tmp_path: Path) -> None:
    """For make soak: `make test` lints all by the frugal one, whose parts have their tests above."""
    for name, text in {"bad.yml": BAD, "site.yml": IMPORTS, "unknown.yml": BAD.replace("command:", "none:")}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".ansible-lint").write_text("profile: production\n")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    said = [
        subprocess.run(
            [*program, "--offline", "-q", "--nocolor", "--format=pep8", "site.yml", "bad.yml", "unknown.yml"],
            cwd=tmp_path, env=environment, text=True, capture_output=True, check=False,
        )
        for program in (["ansible-lint"], [sys.executable, "-m", "tools.frugal_lint"])
    ]  # fmt: skip
    assert said[0].returncode == said[1].returncode == 2
    assert said[0].stdout == said[1].stdout and said[0].stderr == said[1].stderr
    for rule in ("fqcn[", "no-jinja-when", "risky-octal", "syntax-check[", "name[casing]"):
        assert rule in said[0].stdout
