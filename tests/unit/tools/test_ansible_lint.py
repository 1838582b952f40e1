"""What `make check` lints of Ansible: what changed, everything where that is not enough, and what it says of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import ansible_lint, changed_areas, warm_ansible
from tools.ansible_lint import FRUGAL, Choice, choose, left_main_at, main

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org")


@pytest.mark.parametrize(
    ("changed", "paths"),
    [
        ([], ()),
        (["README.md", "gpu_burnin/run.py", "roles/README.md"], ()),
        (["roles/etcd/templates/etcd.service.j2"], ("roles/etcd",)),
        (["roles/etcd/tasks/main.yml", "roles/etcd/molecule/default/verify.yml"], ("roles/etcd",)),
        (["roles/pki/files/x", "playbooks/status.yml", "site.yml"], ("playbooks/status.yml", "roles/pki", "site.yml")),
        (
            ["inventory/lab/group_vars/all.yml", "tests/lab/x.yaml"],
            ("inventory/lab/group_vars/all.yml", "tests/lab/x.yaml"),
        ),
    ],
)
def test_a_change_is_linted_with_its_role_or_alone(changed: list[str], paths: tuple[str, ...]) -> None:
    assert choose(changed, lambda _: True) == Choice(paths)


@pytest.mark.parametrize(
    "shared",
    [
        "requirements/dev.txt",
        ".ansible-lint",
        ".yamllint",
        "ansible.cfg",
        "roles/etcd/meta/main.yml",
        "collections/ansible_collections/muster/fleet/plugins/modules/drain.py",
    ],
)
def test_everything_is_linted_when_a_file_changed_that_others_are_read_with(shared: str) -> None:
    found = choose(["roles/pki/tasks/main.yml", shared], lambda _: True)
    assert not found.paths and shared in found.everything


@pytest.mark.parametrize("gone", ["roles/etcd/tasks/old.yml", "playbooks/old.yml"])
def test_everything_is_linted_when_a_file_is_gone_that_others_may_name(gone: str) -> None:
    found = choose(["roles/pki/tasks/main.yml", gone], lambda name: name != gone)
    assert not found.paths and gone in found.everything


def run_git(folder: Path, *arguments: str) -> str:
    command = ["git", *IDENTITY, *arguments]
    return subprocess.run(command, cwd=folder, text=True, capture_output=True, check=True).stdout.strip()


def commit(folder: Path, name: str) -> str:
    """The commit that adds this file."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("---\n")
    run_git(folder, "add", name)
    run_git(folder, "commit", "-qm", name)
    return run_git(folder, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository on branch main with one commit, in which the tools work."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    run_git(folder, "init", "-q", "-b", "main")
    commit(folder, "site.yml")
    work_in(folder, monkeypatch)
    return folder


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_areas, "REPOSITORY", folder)
    monkeypatch.setattr(ansible_lint, "REPOSITORY", folder)


@pytest.fixture
def linted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were to run; each ends with 2, as ansible-lint does where it finds something."""
    commands: list[list[str]] = []
    monkeypatch.setattr(warm_ansible, "main", lambda command: commands.append(command) or 2)
    return commands


def test_a_branch_is_compared_with_where_it_left_main(
    checkout: Path, linted: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    left = run_git(checkout, "rev-parse", "HEAD")
    run_git(checkout, "switch", "-qc", "work")
    commit(checkout, "roles/etcd/tasks/main.yml")
    run_git(checkout, "switch", "-q", "main")
    commit(checkout, "playbooks/of_others.yml")
    run_git(checkout, "switch", "-q", "work")
    (checkout / "playbooks").mkdir(exist_ok=True)
    (checkout / "playbooks/new.yml").write_text("---\n")
    (checkout / "site.yml").write_text("--- # not committed\n")
    assert main([]) == 2, "what ansible-lint says"
    paths = ["playbooks/new.yml", "roles/etcd", "site.yml"]
    assert linted == [[*FRUGAL, "--offline", "-q", *paths]]
    said = capsys.readouterr().out
    assert f"(changed since {left[:8]}, where this branch left main); left out: the rest" in said
    assert said.endswith(f"again: ansible-lint --offline {' '.join(paths)}\n")


def test_on_main_it_is_what_was_not_pushed_or_not_committed(
    checkout: Path, linted: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    assert "left out: nothing that it reads changed since" in capsys.readouterr().out
    pushed = commit(checkout, "playbooks/one.yml")
    assert left_main_at() == pushed, "without a remote, HEAD"
    run_git(checkout, "update-ref", "refs/remotes/origin/main", pushed)
    commit(checkout, "playbooks/two.yml")
    assert left_main_at() == pushed
    main([])
    main([f"{pushed}~1"])
    main(["--all"])
    begin = [*FRUGAL, "--offline", "-q"]
    assert linted == [[*begin, "playbooks/two.yml"], [*begin, "playbooks/one.yml", "playbooks/two.yml"], begin]


def test_a_shallow_clone_of_a_branch_is_linted_whole(
    checkout: Path,
    linted: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_git(checkout, "switch", "-qc", "work")
    commit(checkout, "playbooks/new.yml")
    for branch, everything in (("work", True), ("main", False)):
        run_git(tmp_path, "clone", "-q", "--depth=1", "-b", branch, f"file://{checkout}", f"of-{branch}")
        work_in(tmp_path / f"of-{branch}", monkeypatch)
        main([])
        assert ("everything (git does not know here where" in capsys.readouterr().out) is everything
    assert linted == [[*FRUGAL, "--offline", "-q"]]


def test_an_unknown_commit_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-commit"]) == 2
    assert "BASE=no-such-commit: git cannot compare with it" in capsys.readouterr().err
