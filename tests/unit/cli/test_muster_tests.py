"""`muster retest --random` and `muster coverage` against a small API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.cli.muster.main import cli
from tests.support.fake_api import FakeApi, Refused

SINCE = "2026-01-01T00:00:00.000Z"


def admission(name: str, *, busy: bool = False, state: str = "ready", **spec: Any) -> dict[str, Any]:
    use = {"observedSince": SINCE, "since": "2026-01-02T00:00:00.000Z", "busy": busy}
    status = {"state": state, "use": use, "proofs": {"standard": "2026-01-02T00:00:00.000Z"}}
    return {"metadata": {"name": name}, "spec": spec, "status": status}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    server.user = "system:serviceaccount:muster-system:muster-random-tests"
    for number in range(20):
        server.put("nodeadmissions", admission(f"gpu-{number}"))
    yield server
    server.close()


def muster(api: FakeApi, tmp_path: Path, *arguments: str) -> Result:
    kubeconfig = api.kubeconfig(tmp_path / "kubeconfig")
    return CliRunner().invoke(cli, [*arguments, "--kubeconfig", str(kubeconfig)])


def retest(api: FakeApi, tmp_path: Path, *arguments: str) -> dict[str, Any]:
    done = muster(api, tmp_path, "retest", "--reason", "random test", "--json", *arguments)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def asks(api: FakeApi) -> dict[str, Any]:
    found = {name: item["spec"].get("retest") for name, item in api.objects["nodeadmissions"].items()}
    return {name: ask for name, ask in found.items() if ask}


def test_a_share_of_idle_nodes_is_asked_in_the_name_of_the_caller(api: FakeApi, tmp_path: Path) -> None:
    answer = retest(api, tmp_path, "--random", "15%", "--seed", "7", "--level", "standard")
    found = asks(api)
    assert len(found) == 3 and sorted(found) == sorted(answer["asked"])
    for ask in found.values():
        assert (ask["who"], ask["why"], ask["level"]) == (api.user, "random test", "standard")
        assert ask["since"].endswith("Z")
    # One patch for each, which does not apply when the object has changed.
    patches = [body for path, body in api.bodies if path.startswith("/apis/muster.dev/v1/nodeadmissions/")]
    assert [[step["op"] for step in patch] for patch in patches] == [["test", "add"]] * 3


def test_the_same_seed_draws_the_same_and_none_draws_by_chance(api: FakeApi, tmp_path: Path) -> None:
    api.before_write = lambda path: _refuse(path)
    runs = [
        muster(api, tmp_path, "retest", "--random", "0.15", "--reason", "r", "--json", *seed)
        for seed in (["--seed", "7"], ["--seed", "7"], ["--seed", "8"], [])
    ]
    answers = [json.loads(run.stdout) for run in runs]
    names = [sorted(answer["not_asked"]) for answer in answers]
    assert names[0] == names[1] != names[2]
    # None of them could be asked, and that is said.
    assert {run.exit_code for run in runs} == {3}
    assert "the object has been modified" in answers[0]["not_asked"][names[0][0]]


def _refuse(path: str) -> None:
    if "nodeadmissions" in path:
        raise Refused(409, "the object has been modified")


@pytest.mark.parametrize(
    "other",
    [
        {"busy": True},
        {"state": "held"},
        {"state": "suspect"},
        {"retest": {"who": "w", "why": "y", "since": SINCE}},
        {"hold": {"who": "w", "why": "y", "since": SINCE}},
    ],
)
def test_only_idle_ready_nodes_are_asked(api: FakeApi, tmp_path: Path, other: dict[str, Any]) -> None:
    for number in range(19):
        api.put("nodeadmissions", admission(f"gpu-{number}", **other))
    answer = retest(api, tmp_path, "--random", "100%")
    assert answer["asked"] == ["gpu-19"] and (answer["idle"], answer["nodes"]) == (1, 20)


def test_of_a_small_fleet_one_is_asked_and_of_a_busy_one_none(api: FakeApi, tmp_path: Path) -> None:
    assert len(retest(api, tmp_path, "--random", "1%")["asked"]) == 1
    for number in range(20):
        api.put("nodeadmissions", admission(f"gpu-{number}", busy=True))
    done = muster(api, tmp_path, "retest", "--random", "1%", "--reason", "r")
    assert done.exit_code == 0 and done.stdout.startswith("0 nodes asked; 0 of 20 nodes idle")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--random", "2", "--reason", "r"), "is not a share; write it as 1% or 0.01"),
        (("--random", "0", "--reason", "r"), "is not a share"),
        (("--random", "many", "--reason", "r"), "is not a share"),
        (("--random", "1%", "--reason", " "), "it is empty; say why"),
        (("--random", "1%"), "Missing option '--reason'"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(
    api: FakeApi, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = muster(api, tmp_path, "retest", *arguments)
    assert done.exit_code == 2 and says in done.stderr and api.requests == []


@pytest.mark.slow
def test_coverage_uses_the_admitters_budgets(api: FakeApi, tmp_path: Path) -> None:
    config = tmp_path / "admitter.yaml"
    config.write_text("tests: {nodes: 3, share: 0.5, hours: ['22:00-06:00']}\n")
    api.put("nodeadmissions", admission("gpu-bad", proofs="wrong") | {"status": {"proofs": "wrong"}})
    done = muster(api, tmp_path, "coverage", "--within", "2d", "--config", str(config))
    text = " ".join(done.stdout.split())
    assert done.exit_code == 0 and "gpu-bad: its NodeAdmission cannot be read" in done.stderr
    assert "20 nodes. Age of proof" in text and "3 of 20 nodes at a time, 22:00-06:00 UTC" in text
    assert "Within 2 d a ready node is tested with probability" in text
    found = json.loads(muster(api, tmp_path, "coverage", "--json").stdout)
    assert len(found["nodes"]) == 20 and found["budgets"]["from"].startswith("the defaults")
