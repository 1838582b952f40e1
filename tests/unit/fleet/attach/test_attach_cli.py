"""`muster attach` and `muster detach` from their arguments to their exit codes, where no cluster is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.cli.muster import attach as command
from gpu_burnin.cli.muster.main import cli
from gpu_burnin.fleet.attach import course
from tests.support.command_line import called
from tests.support.server_helpers import write_kubeconfig

WORDS = ("attach", "--image", "registry.example.com/muster:1", "--gpu-nodes", "example.com/gpu=yes")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """Of a cluster that does not answer."""
    return write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")


def test_manifests_are_listed_as_json_too(tmp_path: Path) -> None:
    done = called(cli, *WORDS, "--render", tmp_path / "made", "--json")
    listed = json.loads(done.stdout)
    assert done.returncode == 0 and Path(listed["files"][0]).name == "00-namespace.yaml"
    assert "a new authority of the webhook was made" in listed["notes"][0] and listed["notes"][0] in done.stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--render", "made", "--dry-run"), "--render writes files, and --dry-run nothing: give one of them"),
        (("--render", "made", "--domain", "Bad_domain"), "--domain 'Bad_domain' is no domain of DNS in lower case"),
        (("--render", "made", "--domain", "muster"), "--domain 'muster' is no domain"),
    ],
)
def test_mistakes_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = called(cli, *WORDS, *more)
    assert done.returncode == 2 and says in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "command"),
    [
        (("--dry-run",), ("forget", "--gone", "14d")),
        (("--cluster", "prod"), ("approve", "--all")),
        (("--json", "--enforce"), ("nodes",)),
    ],
)
def test_options_that_a_subcommand_would_lose_are_refused(
    kubeconfig: Path, before: tuple[str, ...], command: tuple[str, ...]
) -> None:
    done = called(cli, "attach", "--kubeconfig", kubeconfig, *before, *command)
    assert done.returncode == 2
    assert all(one in done.stderr for one in before if one.startswith("--")) and f"before '{command[0]}'" in done.stderr


def test_all_that_is_missing_is_named_at_once(kubeconfig: Path, tmp_path: Path) -> None:
    done = called(cli, "attach", "--kubeconfig", kubeconfig)
    assert done.returncode == 2
    for option in ("--image REF", "--gpu-nodes LABEL=VALUE", "--cluster test "):
        assert option in done.stderr
    nowhere = called(cli, "attach", "--kubeconfig", tmp_path / "none", "--image", "a/b:1")
    assert nowhere.returncode == 2 and "--image" not in nowhere.stderr and "--cluster NAME" in nowhere.stderr
    rendered = called(cli, "attach", "--render", tmp_path / "made")
    assert rendered.returncode == 2 and "--gpu-nodes" in rendered.stderr and "--cluster" not in rendered.stderr


@pytest.mark.parametrize("verb", ["attach", "detach"])
def test_ctrl_c_in_the_middle_says_how_it_is_completed(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(course, verb, interrupted)
    monkeypatch.setattr(command, "_confirm", lambda *_: None)
    words = (*(WORDS if verb == "attach" else (verb,)), "--kubeconfig", kubeconfig, "--cluster", "c")
    done = called(cli, *words)
    assert done.returncode == 3 and "a part may be done, and stays so; the same command again does" in done.stderr
    with pytest.raises(KeyboardInterrupt):
        called(cli, *words, "--dry-run")
