"""Kubernetes' own gangs: when they may be turned off, and what they hinder.

Only here: the words, against a small API in this process, and the order of the roles' notes. A real API server's
objects: tests/integration/test_native_gangs.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import Version
from ansible_collections.muster.fleet.plugins.module_utils.kube import native_gangs
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import report

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.fleet.cluster.native_gangs import gangs_left
from tests.lab.paths import REPOSITORY
from tests.support.fake_api import FakeApi
from tests.support.playbook_fixtures import Playbook

NOTE = "{{ fleet_state_dir }}/gang.json"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    made = FakeApi()
    yield made
    made.close()


@pytest.fixture
def kube(api: FakeApi, tmp_path: Path) -> KubeApi:
    return KubeApi(api.kubeconfig(tmp_path / "kubeconfig"), retries=0)


def add(api: FakeApi, count: int) -> None:
    """So many gangs of one team."""
    for plural in ("podgroups", "workloads"):
        names = [f"train-{number}" for number in range(count)]
        api.objects[plural] = {name: {"metadata": {"name": name, "namespace": "vision"}} for name in names}


def test_nothing_is_left_where_no_server_serves_them_and_where_there_are_none(api: FakeApi, kube: KubeApi) -> None:
    assert gangs_left(kube) == ""
    add(api, 0)
    assert gangs_left(kube) == "" == native_gangs.why_not_off("ending", "")


def test_the_first_step_may_not_be_left_out() -> None:
    """Else a Job that is made while the API servers change would leave a PodGroup that nobody can see."""
    found = native_gangs.why_not_off("native", "")
    assert "fleet_gang is kueue and was native" in found and "set fleet_gang: ending and run site.yml first" in found


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "1 PodGroup (vision/train-0) and 1 Workload (vision/train-0)"),
        (
            5,
            "5 PodGroups (vision/train-0, vision/train-1, vision/train-2 and 2 more) and 5 Workloads (vision/train-0, "
            "vision/train-1, vision/train-2 and 2 more)",
        ),
    ],
)
def test_what_is_left_is_counted_and_a_few_are_named(api: FakeApi, kube: KubeApi, count: int, words: str) -> None:
    add(api, count)
    assert gangs_left(kube) == words
    found = native_gangs.why_not_off("ending", words)
    assert f"{words} of scheduling.k8s.io/v1alpha2" in found and f"run `{native_gangs.REMOVE}`" in found


def test_a_pod_group_alone_counts_too(api: FakeApi, kube: KubeApi) -> None:
    """It stays for its pods when the Workload has gone."""
    add(api, 1)
    api.objects["workloads"] = {}
    assert gangs_left(kube) == "1 PodGroup (vision/train-0)"


def test_an_api_that_does_not_answer_is_no_empty_one(api: FakeApi, kube: KubeApi) -> None:
    api.close()
    with pytest.raises(ApiError):
        gangs_left(kube)


@pytest.mark.parametrize(
    ("version", "gang", "count", "refused"),
    [
        ((1, 36, 9), "native", 2, ()),
        ((1, 37, 0), "kueue", 0, ()),
        ((1, 37, 0), "kueue", 2, ("the cluster has 2 PodGroups (a/x, a/y) of scheduling.k8s.io/v1alpha2, which",)),
        ((1, 37, 0), "ending", 0, ("fleet_gang is ending, and Kubernetes 1.37.0 has no scheduling.k8s.io/v1alpha2",)),
        ((1, 37, 0), "native", 2, ("fleet_gang is native", "the cluster has 2 PodGroups")),
    ],
)
def test_no_other_minor_is_upgraded_to(
    version: tuple[int, int, int], gang: str, count: int, refused: tuple[str, ...]
) -> None:
    left = "2 PodGroups (a/x, a/y)" if count else ""
    problems = [*native_gangs.upgrade_problems(Version(*version), ("api-1",), gang, left)]
    found = report("refused", problems)
    assert len(problems) == len(refused) and all(words in found for words in refused), found
    assert not problems or "turn native gangs off first, as docs/operations/gangs.md says" in found


def tasks(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((REPOSITORY / path).read_text())
    return found


def test_what_the_controller_notes_is_never_less_than_what_there_may_be() -> None:
    """`native` before a server serves them, `ending` when no controller manager makes any, nothing when none serves."""

    def order(role: str) -> list[str]:
        steps = []
        for task in tasks(f"roles/{role}/tasks/main.yml"):
            if NOTE in str(task):
                when = task["when"] if isinstance(task["when"], str) else task["when"][0]
                steps.append(f"{when}: {'write' if 'ansible.builtin.copy' in task else 'remove'}")
            elif task["name"].startswith("Run "):
                steps.append("run")
        return steps

    assert order("kube_apiserver") == ["fleet_gang == 'native': write", "run", "fleet_gang == 'kueue': remove"]
    assert order("kube_controller_manager") == ["run", "fleet_gang == 'ending': write"]


@pytest.mark.slow
def test_each_step_of_the_way_there_and_back_is_noted_and_judged(
    api: FakeApi, tmp_path: Path, ansible_playbook: Playbook
) -> None:
    """The real tasks: site.yml's, then the notes of both roles."""
    (tmp_path / "kubeconfig").mkdir()
    api.kubeconfig(tmp_path / "kubeconfig/admin.kubeconfig")
    files = ("roles/kube_apiserver/tasks/main.yml", "roles/kube_controller_manager/tasks/main.yml")
    steps = [
        *(one for one in tasks("site.yml")[0]["tasks"] if "muster.fleet.native_gangs" in one),
        *(one for path in files for one in tasks(path) if NOTE in str(one)),
    ]
    variables = {"fleet_state_dir": str(tmp_path), "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": variables, "tasks": steps}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play], width=1000))

    def run(gang: str) -> tuple[str, str]:
        """What was refused, and what is noted then."""
        done = ansible_playbook("play.yml", "-e", f"fleet_gang={gang}")
        said = " ".join((done.stdout + done.stderr).split())
        assert (done.returncode != 0) is ("fleet_gang is kueue" in said), said
        note = tmp_path / "gang.json"
        return (said if done.returncode else ""), (note.read_text().strip() if note.exists() else "")

    assert run("kueue") == ("", "")
    assert run("native") == ("", '"native"')
    add(api, 2)
    refused, note = run("kueue")
    assert "set fleet_gang: ending and run site.yml first" in refused and note == '"native"'
    assert run("ending") == ("", '"ending"')
    refused, note = run("kueue")
    assert "the cluster has 2 PodGroups (vision/train-0, vision/train-1)" in refused and note == '"ending"'
    add(api, 0)
    assert run("kueue") == ("", "")


def test_they_are_judged_before_anything_is_touched() -> None:
    (first, *others) = tasks("site.yml")
    (task,) = (one for one in first["tasks"] if "muster.fleet.native_gangs" in one)
    assert "fleet_gang == 'kueue'" in task["when"] and "preflight" in first["tags"]
    assert not any("native_gangs" in str(play) for play in others)
    page = (REPOSITORY / native_gangs.PAGE).read_text()
    assert native_gangs.REMOVE in page
