"""`muster run` and `muster logs` as commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.admission import client
from gpu_burnin.cli.muster import cluster_options
from gpu_burnin.cli.muster.main import cli
from gpu_burnin.launch import LaunchError, Outcome, follow, shown
from gpu_burnin.launch.logs import Pod
from tests.unit.launch.cluster import Cluster, cluster

POD = Pod("train-node-0-0-x", 0, 0, "gpu1", "Running", True)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = cluster()
    monkeypatch.setattr(client, "KubeApi", lambda path: found.api)
    monkeypatch.setattr(cluster_options, "connect", lambda path: found.api)
    yield found


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("print('hello')")
    return str(tmp_path / "train.py")


def run(script: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["run", script, "--team", "vision", "--kind", "h100", "--image", "x", *words])


def test_a_script_is_made_a_job(made: Cluster, script: str) -> None:
    words = ["--nodes", "2", "--env", "A=b=c", "--max-runtime", "2h", "--grace", "5m", "--no-follow", "--name", "t1"]
    done = run(script, *words, "--", "--steps", "3")
    assert done.exit_code == 0 and "muster: job t1 of vision, 2 nodes: made" in done.stderr and done.stdout == ""
    _, (_, job_set), (_, config_map) = made.made
    [replicated] = job_set["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    assert (job["activeDeadlineSeconds"], pod["terminationGracePeriodSeconds"]) == (7200, 300)
    assert {"name": "A", "value": "b=c"} in pod["containers"][0]["env"]
    assert json.loads(config_map["data"]["launch.json"])["argv"] == ["--steps", "3"]


def test_a_job_gets_claims_variables_cpu_memory_and_a_hold(made: Cluster, script: str) -> None:
    core = "/api/v1/namespaces/vision"
    made.objects[f"{core}/secrets/keys"] = {"metadata": {"name": "keys"}}
    for name in ("data", "sets"):
        spec = {"accessModes": ["ReadWriteMany"]}
        made.objects[f"{core}/persistentvolumeclaims/{name}"] = {"metadata": {"name": name}, "spec": spec}
    words = ["--volume", "data:/data", "--volume", "sets:/sets:ro", "--env-from", "keys", "--hold-until", "checkpoint"]
    more = ["--nodes", "2", "--env", "STEPS=1000", "--cpus", "64", "--memory", "512Gi"]
    done = run(script, *words, *more, "--no-follow")
    assert done.exit_code == 0, done.output
    [replicated] = made.made[1][1]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert [one["mountPath"] for one in container["volumeMounts"]][-2:] == ["/data", "/sets"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {"name": "STEPS", "value": "1000"} in container["env"]
    assert container["resources"]["requests"] == {"cpu": "64", "memory": "512Gi"}
    assert pod["metadata"]["annotations"]["muster.dev/hold-until"] == "checkpoint"


@pytest.mark.parametrize(("outcome", "code"), [(Outcome.SUCCEEDED, 0), (Outcome.FAILED, 1), (Outcome.UNCLEAR, 3)])
def test_what_became_of_it_is_the_exit_code(
    made: Cluster, script: str, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, code: int
) -> None:
    def followed(api: Any, team: str, job: str, *, show: Any) -> Outcome:
        show(POD, "2026-11-27T18:00:00Z", "[0] hello")
        return outcome

    monkeypatch.setattr(follow, "follow_job", followed)
    done = run(script, "--json", "--name", "t1")
    assert done.exit_code == code and "[0] hello" in done.stderr
    assert json.loads(done.stdout) == {"name": "t1", "team": "vision", "nodes": 1, "outcome": str(outcome)}


def test_a_dry_run_prints_what_kubectl_takes(made: Cluster, script: str) -> None:
    done = run(script, "--dry-run")
    assert done.exit_code == 0 and made.made == []
    assert [one["kind"] for one in json.loads(done.stdout)["items"]] == ["JobSet", "ConfigMap"]


def test_a_variable_needs_its_value(made: Cluster, script: str) -> None:
    done = run(script, "--env", "A")
    assert done.exit_code == 2 and "'A' has no =; give NAME=VALUE" in done.stderr


def logs(monkeypatch: pytest.MonkeyPatch, *words: str, found: bool = True) -> Result:
    def show_logs(api: Any, team: str, job: str, indexes: Any, show: Any, tell: Any, *, tail: Any) -> bool:
        for line in ("[muster] starts", "[0] zero", "[1] one"):
            show(POD, "2026-11-27T18:00:00Z", line)
        tell(f"{team} {job} {indexes} {tail}")
        return found

    monkeypatch.setattr(shown, "nodes_of", lambda api, team, job, rank, *, follow: [0])
    monkeypatch.setattr(shown, "show_logs", show_logs)
    monkeypatch.setattr(cluster_options, "connect", lambda path: None)
    monkeypatch.setattr("gpu_burnin.cli.muster.logs.connect", lambda path: None)
    monkeypatch.delenv("MUSTER_TEAM", raising=False)
    return CliRunner().invoke(cli, ["logs", *words])


def test_logs_of_all_processes_and_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    done = logs(monkeypatch, "vision/train", "--tail", "5")
    assert done.stdout == "[muster] starts\n[0] zero\n[1] one\n" and "vision train [0] 5" in done.stderr
    assert logs(monkeypatch, "train", "--team", "vision", "--rank", "1").stdout == "one\n"


def test_logs_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    done = logs(monkeypatch, "vision/train", "--json")
    first, second, _ = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["rank"], first["text"]) == (None, "[muster] starts")
    assert (second["rank"], second["text"], second["node"]) == (0, "zero", "gpu1")


def test_logs_that_are_not_there_are_a_negative_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logs(monkeypatch, "vision/train", found=False).exit_code == 1


def test_logs_need_a_team_and_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "which team's is train? Give TEAM/train or --team" in logs(monkeypatch, "train").stderr
    done = logs(monkeypatch, "vision/train", "--follow", "--tail", "3")
    assert done.exit_code == 2 and "--tail does not go with --follow" in done.stderr


def test_followed_logs_end_as_the_job_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def followed(api: Any, team: str, job: str, *, indexes: Any, show: Any) -> Outcome:
        show(POD, "2026-11-27T18:00:00Z", "[0] zero")
        return Outcome.FAILED

    monkeypatch.setattr(follow, "follow_job", followed)
    done = logs(monkeypatch, "vision/train", "--follow")
    assert (done.exit_code, done.stdout) == (1, "[0] zero\n")


def test_a_refusal_is_a_usage_error() -> None:
    assert LaunchError("no").exit_code == 2
