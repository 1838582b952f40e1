"""`run` from end to end against a cluster that only remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission import client
from gpu_burnin.admission.client import ApiError
from gpu_burnin.api.names import RACK_LABEL
from gpu_burnin.launch import LaunchError, Outcome, run
from tests.unit.launch import functions
from tests.unit.launch.cluster import H100, Cluster, cluster

MAPS = "/api/v1/namespaces/vision/configmaps"
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/vision/jobsets"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = cluster()
    monkeypatch.setattr(client, "KubeApi", lambda path: found.api)
    monkeypatch.delenv("MUSTER_IMAGE", raising=False)
    yield found


def launch(target: Any = functions.whole, **options: Any) -> Any:
    given: dict[str, Any] = {"nodes": 2, "team": "vision", "kind": "h100", "image": "torch:2", "follow": False}
    if target is functions.whole:
        given["args"] = [3]
    return run(target, **{**given, **options})


def test_a_function_becomes_a_job_and_its_config_map(made: Cluster) -> None:
    launched = launch(near="rack", priority="high", max_runtime_s=60, env={"NCCL_DEBUG": "INFO"})
    assert launched.outcome is Outcome.MADE and not launched.succeeded and launched.team == "vision"
    asked, job_set, config_map = made.made
    assert [asked[0], job_set[0], config_map[0]] == [f"{MAPS}?dryRun=All", SETS, MAPS]
    assert config_map[1]["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert job_set[1]["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    [replicated] = job_set[1]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]
    assert pod["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] == RACK_LABEL
    assert list(pod["spec"]["nodeSelector"].values()) == [H100]
    assert launched.name.startswith("whole-") and "objects" not in repr(launched)


def test_the_nodes_of_a_job_stand_as_near_as_can_be(made: Cluster) -> None:
    [replicated] = launch().objects[0]["spec"]["replicatedJobs"]
    annotations = replicated["template"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["kueue.x-k8s.io/podset-preferred-topology"] == RACK_LABEL


def test_nothing_is_made_by_a_dry_run(made: Cluster) -> None:
    launched = launch(dry_run=True)
    assert made.made == [] and [one["kind"] for one in launched.objects] == ["JobSet", "ConfigMap"]


def test_the_image_may_come_from_the_environment(made: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_IMAGE", "of-the-environment")
    [replicated] = launch(image=None).objects[0]["spec"]["replicatedJobs"]
    assert replicated["template"]["spec"]["template"]["spec"]["containers"][0]["image"] == "of-the-environment"


def test_a_script_gets_its_arguments(made: Cluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    launched = launch(tmp_path / "train.py", args=["--steps", 3])
    assert '"argv": ["--steps", "3"]' in launched.objects[1]["data"]["launch.json"]
    assert launched.name.startswith("train-")


def test_a_source_behind_a_url_is_named(made: Cluster) -> None:
    launched = launch("project/train.py", source="https://files.example/p.tar.gz", sha256="ab" * 32)
    assert set(launched.objects[1]["binaryData"]) == {"launcher.pyz"}
    assert '"entry": "project/train.py"' in launched.objects[1]["data"]["launch.json"]


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: launch(nodes=0), "nodes is 0"),
        (lambda: launch(lambda: None), "a lambda cannot be sent"),
        (lambda: launch(team="Vision"), "the team 'Vision' cannot be one"),
        (lambda: launch(kind="b200"), "no GPUs of the kind 'b200'"),
        (lambda: launch(nodes=100), "the team vision can have 96 at most"),
        (lambda: launch(near="room"), "near is 'room'"),
        (lambda: launch(image=None), "no image is given"),
        (lambda: launch(image=""), "no image is given"),
        (lambda: launch(priority="low"), "there is no priority 'low'"),
        (lambda: launch(name="Bad"), "the name 'Bad' cannot be a job's"),
        (lambda: launch(args="3"), "args is '3'; give a list"),
        (lambda: launch(args=[]), "whole does not take these args"),
        (lambda: launch(entry="main.py"), "source and entry go with a path"),
        (lambda: launch("none.py"), "there is no file or folder none.py"),
        (lambda: launch("none.py", kwargs={"a": 1}), "kwargs go with a function"),
        (
            lambda: launch("/train.py", source="https://a/b.tar.gz", sha256="ab" * 32),
            "name what is started by its path inside of it",
        ),
        (lambda: launch(source="https://a/b.tar.gz"), "source and sha256 go together"),
        (lambda: launch(volumes=["data:/data"]), "vision has no PersistentVolumeClaim data"),
        (lambda: launch(volumes=["data"]), "is not NAME:/path"),
        (lambda: launch(env_from=["keys"]), "vision has no Secret or ConfigMap keys"),
        (lambda: launch(hold_until="2020-01-01T00:00:00Z"), "give a time to come, or checkpoint"),
        (lambda: launch(cpus=0), "cpus is 0"),
        (lambda: launch(memory="512"), "memory is '512'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(made: Cluster, ask: Callable[[], Any], words: str) -> None:
    with pytest.raises(LaunchError, match=words) as caught:
        ask()
    assert made.made == [] and "\n" not in str(caught.value) and caught.value.exit_code == 2


def test_a_job_set_whose_source_cannot_be_made_is_taken_back(made: Cluster) -> None:
    made.breaks[MAPS] = ApiError("the quota of ConfigMaps is used up", 403)
    with pytest.raises(ApiError, match="quota of ConfigMaps"):
        launch(name="train")
    assert made.deleted == [f"{SETS}/train"]


def test_a_refusal_of_the_source_comes_before_the_job(made: Cluster) -> None:
    made.breaks[f"{MAPS}?dryRun=All"] = ApiError("too long", 403)
    with pytest.raises(ApiError, match="too long"):
        launch()
    assert made.made == [] and made.deleted == []


def test_a_name_taken_meanwhile_is_said(made: Cluster) -> None:
    made.breaks[SETS] = client.Conflict("cannot make the job train in vision: already exists")
    with pytest.raises(LaunchError, match="already exists; change what it names, or give another name"):
        launch(name="train")
