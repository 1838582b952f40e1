"""A test that starts Ansible or a server says in one line what only it shows: else nobody could tell what may go."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lab.paths import REPOSITORY

# Fixtures that run ansible-playbook, as a test asks for them.
ANSIBLE = re.compile(r"\b(ansible_playbook|playbook_in): ")
SAID = re.compile(r"^ *Only here: \S", re.MULTILINE)


def costly(tests: Path) -> list[Path]:
    """Files whose tests need hosts or servers, which are those of some folders, and those that run Ansible."""
    servers = [path for folder in ("integration", "minor") for path in (tests / folder).rglob("test_*.py")]
    ansible = [path for path in (tests / "unit").rglob("test_*.py") if ANSIBLE.search(path.read_text())]
    return sorted([*servers, *ansible])


@pytest.mark.parametrize("path", costly(REPOSITORY / "tests"), ids=lambda path: path.stem)
def test_it_says_what_only_it_shows(path: Path) -> None:
    assert SAID.search(path.read_text()), f"{path}: write a line 'Only here: ...' into its docstring, or merge it"


def test_one_that_says_nothing_is_found(tmp_path: Path) -> None:
    fixture = "ansible_playbook"
    for folder in ("integration", "unit", "minor"):
        (tmp_path / folder).mkdir()
    (tmp_path / "integration/test_a.py").write_text('"""A server."""')
    (tmp_path / "unit/test_b.py").write_text(
        f'"""A play.\n\nOnly here: a play."""\ndef test_x({fixture}: Playbook): ...'
    )
    (tmp_path / "unit/test_c.py").write_text("def test_x(tmp_path: Path): ...")
    found = costly(tmp_path)
    assert [path.name for path in found] == ["test_a.py", "test_b.py"]
    assert [bool(SAID.search(path.read_text())) for path in found] == [False, True]
