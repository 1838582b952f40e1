"""What a job may be asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.request import (
    MOST_NAME,
    check_env,
    check_figures,
    check_image,
    check_name,
    check_source,
    check_team,
    name_after,
)

HASH = "ab" * 32


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: check_figures(nodes=0), "nodes is 0; give a whole number, 1 or more"),
        (lambda: check_figures(nodes=-3), "nodes is -3"),
        (lambda: check_figures(nodes=True), "nodes is True"),
        (lambda: check_figures(nodes="2"), "nodes is '2'"),  # type: ignore[arg-type]
        (lambda: check_figures(nodes=100_000), "nodes is 100,000; a job has 99,999 at most"),
        (lambda: check_figures(gpus_per_node=0), "gpus_per_node is 0"),
        (lambda: check_figures(restarts=-1), "restarts is -1; give a whole number, 0 or more"),
        (lambda: check_figures(max_runtime_s=0), "max_runtime_s is 0"),
        (lambda: check_name("Train"), "the name 'Train' cannot be a job's"),
        (lambda: check_name("a" * (MOST_NAME + 1)), "cannot be a job's: give up to 42 small letters"),
        (lambda: check_name("7b"), "the name '7b' cannot be a job's"),
        (lambda: check_name(""), "the name '' cannot be a job's"),
        (lambda: check_team("Vision!"), "the team 'Vision!' cannot be one"),
        (lambda: check_image(None, "vision"), "no image is given; .* ConfigMap muster-launch in the namespace vision"),
        (lambda: check_image(" ", "vision"), "no image is given"),
        (lambda: check_image("a b", "vision"), "the image 'a b' has blanks"),
        (lambda: check_env({"1A": "x"}), "env has '1A', which cannot be a variable's name"),
        (lambda: check_env({"RANK": "1"}), "env sets RANK, which the launcher sets itself"),
        (lambda: check_env({"MUSTER_JOB": "1"}), "env sets MUSTER_JOB"),
        (lambda: check_env({"A": 1}), "env sets A to 1; give a text"),  # type: ignore[dict-item]
        (lambda: check_source("https://a/b.tar.gz", None), "source and sha256 go together"),
        (lambda: check_source(None, HASH), "source and sha256 go together"),
        (lambda: check_source("file:///etc/passwd", HASH), "is no URL of http or https"),
        (lambda: check_source("https://a/b.tar.gz", "ab"), "sha256 is 'ab'; give the 64 hexadecimal digits"),
    ],
)
def test_what_cannot_be_is_said(check: Callable[[], Any], words: str) -> None:
    with pytest.raises(LaunchError, match=words):
        check()


def test_what_can_be_is_taken() -> None:
    check_figures(nodes=1, gpus_per_node=None, restarts=0, max_runtime_s=1)
    check_source(None, None)
    check_source("https://files.example/p.tar.gz", HASH)
    assert check_name("a-7b") == "a-7b" and check_team("2d-vision") == "2d-vision"
    assert check_image("registry.example/torch:2", "vision") == "registry.example/torch:2"
    assert check_env({"NCCL_DEBUG": "INFO"}) == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize("what", ["train", "Fine_Tune.py", "7b", "___", "x" * 100, "a-" * 40])
def test_a_name_made_of_what_is_run_can_be_one(what: str) -> None:
    name = check_name(name_after(what))
    assert re.fullmatch(r".+-[b-z2-9]{5}", name) and name_after(what) != name
