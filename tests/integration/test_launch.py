"""Jobs launched on real JobSet and Kueue; their pods are processes here, with the launcher and the work in them.

Only here: what Kueue, JobSet, Job and the launcher make of each other when work leaves, fails, or loses its node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.api.names import (
    GPU_LABEL,
    KUEUE_USER,
    LEAF_LABEL,
    RACK_LABEL,
    READY_LABEL,
    TEAM_MEMBER_ROLE,
    USERS_GROUP,
)
from gpu_burnin.cli.muster.main import cli
from gpu_burnin.launch import LaunchError, Outcome, run
from tests.integration.jobs_stack import MODEL, NAMES, Jobs
from tests.integration.kube import MERGE_PATCH, until
from tests.integration.pod_runner import Runner, pod_runner
from tests.integration.teams import RBAC, bind

TEAM = "launchers"
OURS = "example.com/launched"
NODES = ("launch-1", "launch-2", "launch-3")
KUEUE = "kueue.x-k8s.io/v1beta2"


def objects(gpus: int) -> Iterator[dict[str, Any]]:
    def made(kind: str, name: str, spec: Any, version: str = KUEUE, **metadata: Any) -> dict[str, Any]:
        return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}

    labels = {NAMES.team: TEAM, "pod-security.kubernetes.io/enforce": "restricted"}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": labels}}
    levels = [{"nodeLabel": label} for label in (LEAF_LABEL, RACK_LABEL, "kubernetes.io/hostname")]
    yield made("Topology", TEAM, {"levels": levels})
    labels = {READY_LABEL: "true", GPU_LABEL: MODEL, OURS: "yes"}
    flavor = made("ResourceFlavor", TEAM, {"nodeLabels": labels, "topologyName": TEAM})
    yield {**flavor, "metadata": {"name": TEAM, "labels": {NAMES.gpus_per_node: "8"}}}
    quota = {"name": "nvidia.com/gpu", "nominalQuota": gpus}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": TEAM, "resources": [quota]}]}
    selector = {"matchLabels": {NAMES.team: TEAM}}
    yield made("ClusterQueue", TEAM, {"namespaceSelector": selector, "resourceGroups": [group]})
    yield made("LocalQueue", "default", {"clusterQueue": TEAM}, namespace=TEAM)


@pytest.fixture(scope="module")
def team(jobs: Jobs) -> Jobs:
    """A team of alice's, with three nodes and quota for two."""
    for item in objects(16):
        jobs.apply(item)
    bind(jobs.root, f"{RBAC}/namespaces/{TEAM}/rolebindings", "muster:team-members", TEAM_MEMBER_ROLE, "alice")
    jobs.queues_answer(TEAM)
    for name in NODES:
        jobs.add_node(name, rack="launch-r1", leaf="launch-l1", labels={OURS: "yes"})
    return jobs


@pytest.fixture(scope="module")
def runner(team: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with pod_runner(team, TEAM, tmp_path_factory.mktemp("pods")) as running:
        for name in NODES:
            running.has_logs(name)
        yield running


@pytest.fixture(scope="module")
def alice(team: Jobs) -> Path:
    """A researcher's kubeconfig."""
    return team.server.kubeconfig("alice", [USERS_GROUP])


def train(folder: str, steps: int) -> None:
    """Counts to `steps` together with all others, saves each step, and leaves when it is asked to."""
    import os
    import pathlib
    import socket
    import sys
    import time

    from gpu_burnin.job import asked_to_leave

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    saved = pathlib.Path(folder) / f"step-{rank}"
    step = int(saved.read_text()) if saved.exists() else 0
    print(f"rank {rank} of {size} on {os.environ['MUSTER_NODE']} goes on from step {step}")
    if rank == 0:
        with socket.create_server(address, reuse_port=False) as server:
            for _ in range(size - 1):
                server.accept()[0].close()
    else:
        for _ in range(600):
            try:
                socket.create_connection(address, timeout=5).close()
                break
            except OSError:
                time.sleep(0.1)
    while step < steps or pathlib.Path(folder, "hold").exists():
        time.sleep(0.05)
        step += 1
        saved.write_text(str(step))
        if asked_to_leave():
            print(f"rank {rank} saved step {step}")
            sys.exit(42)
    print(f"rank {rank} is done")


def step_of(folder: Path, rank: int) -> int:
    """How far it has counted; it may just be writing that, or have begun to."""
    saved = folder / f"step-{rank}"
    return int(saved.read_text() or 0) if saved.exists() else 0


def launch(alice: Path, target: Any = train, **options: Any) -> Any:
    given = {"nodes": 2, "team": TEAM, "processes_per_node": 1, "image": "x", "kubeconfig": alice}
    return run(target, **{**given, **options})


def job_set(jobs: Jobs, name: str) -> dict[str, Any]:
    return jobs.get(f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{TEAM}/jobsets/{name}")


def following(work: Callable[[], Any]) -> Future[Any]:
    return ThreadPoolExecutor(1).submit(work)


def on_nodes(jobs: Jobs, attempt: int) -> set[str]:
    """Nodes on which this start of a gang runs."""
    return {
        pod["spec"]["nodeName"]
        for pod in jobs.pods(TEAM)
        if pod["status"]["phase"] == "Running"
        and "deletionTimestamp" not in pod["metadata"]
        and pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == str(attempt)
    }


def ask(jobs: Jobs, pod: str) -> None:
    """As the admitter asks."""
    leave = json.dumps({"since": "", "deadline": "", "why": "a window"})
    path = f"/api/v1/namespaces/{TEAM}/pods/{pod}"
    reply = jobs.admitter.request("PATCH", path, {"metadata": {"annotations": {NAMES.leave: leave}}}, MERGE_PATCH)
    assert reply.status == 200, reply.message


def test_a_function_runs_on_a_gang_and_is_followed(
    runner: Runner, alice: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launched = launch(alice, kind="h100", near="rack", args=[str(tmp_path), 3], name="plain")
    out, told = capfd.readouterr()
    assert launched.succeeded, (out, told)
    assert "[0] rank 0 is done" in out and "[0] rank 0 of 2 on launch-" in out
    assert "muster: the job succeeded" in told


def test_a_script_runs_on_a_gang_and_its_log_is_there_afterwards(runner: Runner, alice: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import os, sys\nprint('rank', os.environ['RANK'], sys.argv[1:])")
    of_team = ["--team", TEAM, "--kubeconfig", str(alice)]
    words = ["--nodes", "2", "--kind", "h100", "--near", "rack", "--max-runtime", "8h", "--name", "script"]
    node = ["--processes-per-node", "2", "--image", "x"]
    script = str(tmp_path / "train.py")
    made = CliRunner().invoke(cli, ["run", script, *words, *node, *of_team, "--", "--steps", "3"])
    assert made.exit_code == 0, made.output
    assert "[0] rank 0 ['--steps', '3']" in made.stdout and "muster: the job succeeded" in made.stderr
    kept = CliRunner().invoke(cli, ["logs", "script", *of_team])
    lines = sorted(line for line in kept.stdout.splitlines() if not line.startswith("[muster]"))
    assert kept.exit_code == 0 and lines == [f"[{rank}] rank {rank} ['--steps', '3']" for rank in range(4)]
    one = CliRunner().invoke(cli, ["logs", "script", "--rank", "3", "--follow", *of_team])
    assert (one.exit_code, one.stdout) == (0, "rank 3 ['--steps', '3']\n")


def test_a_gang_fails_whole_as_often_as_it_may_and_says_who_failed(
    runner: Runner, alice: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    launched = launch(alice, fails, args=["1"], name="fails", restarts=1, grace_s=2)
    _, told = capfd.readouterr()
    assert launched.outcome is Outcome.FAILED
    status = job_set(runner.jobs, "fails")["status"]
    assert (status["restarts"], status["restartsCountTowardsMax"]) == (1, 1)
    assert "ended with exit code 7: rank 1 on node 1 ended with exit code 7" in told
    kept = CliRunner().invoke(cli, ["logs", f"{TEAM}/fails", "--kubeconfig", str(alice)])
    assert kept.exit_code == 0 and "[1] fails" in kept.stdout and "exit code 7" in kept.stderr


def fails(rank: str) -> None:
    import os
    import sys
    import time

    if os.environ["RANK"] == rank:
        print("fails")
        sys.exit(7)
    time.sleep(600)


def test_work_that_is_asked_to_leave_goes_on_where_it_saved_and_that_does_not_count(
    runner: Runner, alice: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = runner.jobs
    (tmp_path / "hold").touch()
    done = following(lambda: launch(alice, args=[str(tmp_path), 3], name="leaves", near="rack", restarts=0, grace_s=4))
    until("the gang", lambda: len(on_nodes(jobs, 0)) == 2 and (tmp_path / "step-1").exists(), 60)
    # The node closes, as before a window, and the pod on it is asked.
    node = min(on_nodes(jobs, 0))
    jobs.shut(node, NAMES.maintenance)
    [pod] = [name for name, at in jobs.bound(TEAM).items() if at == node and name.startswith("leaves-")]
    ask(jobs, pod)
    until("the gang elsewhere", lambda: len(on_nodes(jobs, 1)) == 2, 60)
    assert node not in on_nodes(jobs, 1)
    jobs.let_in(node)
    # All pods have one address here: a rank 0 that still listens would take the next start's rank 1 for its own.
    began = step_of(tmp_path, 0)
    until("its ranks have met", lambda: step_of(tmp_path, 0) > began, 60)
    # Its nodes are taken back, and it gets some again.
    saved = int((tmp_path / "step-0").read_text())
    [workload] = [one for one in jobs.workloads(TEAM) if one["metadata"]["name"].startswith("jobset-leaves-")]
    path = f"/apis/{KUEUE}/namespaces/{TEAM}/workloads/{workload['metadata']['name']}"
    before = {pod["metadata"]["uid"] for pod in jobs.pods(TEAM)}
    for active in (False, True):
        reply = jobs.server.client(KUEUE_USER).request("PATCH", path, {"spec": {"active": active}}, MERGE_PATCH)
        assert reply.status == 200, reply.message
        until("its pods' end", lambda: active or not on_nodes(jobs, 1), 60)  # noqa: B023
    until("the gang again", lambda: len(on_nodes(jobs, 1)) + len(on_nodes(jobs, 2)) == 2, 60)
    assert not before & {pod["metadata"]["uid"] for pod in jobs.pods(TEAM) if pod["status"]["phase"] == "Running"}
    (tmp_path / "hold").unlink()
    assert done.result(60).succeeded
    assert "restartsCountTowardsMax" not in job_set(jobs, "leaves")["status"]
    out, told = capfd.readouterr()
    assert int(out.rpartition("goes on from step ")[2].split()[0]) >= saved
    assert "of which 0 count" in told


def test_a_gang_whose_node_is_lost_goes_on_elsewhere_and_that_does_not_count(
    runner: Runner, alice: Path, tmp_path: Path
) -> None:
    jobs = runner.jobs
    (tmp_path / "hold").touch()
    done = following(lambda: launch(alice, args=[str(tmp_path), 3], name="loses", near="rack", restarts=0, grace_s=4))
    until("the gang", lambda: len(on_nodes(jobs, 0)) == 2 and (tmp_path / "step-1").exists(), 60)
    node = min(on_nodes(jobs, 0))
    [pod] = [name for name, at in jobs.bound(TEAM).items() if at == node and name.startswith("loses-")]
    runner.kill_node(node)
    jobs.shut(node, NAMES.quarantine)
    # What the taint of an unreachable node comes to after a minute, and what Kueue does after another one.
    now = jobs.get(f"/api/v1/namespaces/{TEAM}/pods/{pod}")
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    body = {"status": {"phase": "Failed", "conditions": [*now["status"]["conditions"], evicted]}}
    reply = jobs.root.request("PATCH", f"/api/v1/namespaces/{TEAM}/pods/{pod}/status", body, MERGE_PATCH)
    assert reply.status == 200, reply.message
    jobs.gone(TEAM, pod)
    until("the gang elsewhere", lambda: len(on_nodes(jobs, 1)) == 2, 60)
    assert node not in on_nodes(jobs, 1)
    (tmp_path / "hold").unlink()
    assert done.result(60).succeeded
    status = job_set(jobs, "loses")["status"]
    assert status["restarts"] == 1 and "restartsCountTowardsMax" not in status


def give_storage(jobs: Jobs) -> None:
    """A claim of many nodes that is bound, one of one node, a Secret and a ConfigMap."""
    for name, mode in (("sets", "ReadWriteMany"), ("alone", "ReadWriteOnce")):
        size = {"storage": "1Gi"}
        claim = {"accessModes": [mode], "resources": {"requests": size}, "storageClassName": "", "volumeName": name}
        volume = {
            "accessModes": [mode],
            "capacity": size,
            "hostPath": {"path": f"/srv/{name}"},
            "claimRef": {"namespace": TEAM, "name": name},
        }
        jobs.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
        about = {"name": name, "namespace": TEAM}
        jobs.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about, "spec": claim})
    for kind, name in (("Secret", "keys"), ("ConfigMap", "flags")):
        jobs.apply({"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": TEAM}})


def test_a_gang_gets_claims_variables_cpu_memory_and_a_hold(runner: Runner, alice: Path, tmp_path: Path) -> None:
    """Under the policies of teams and Pod Security: what the pods that run have."""
    give_storage(runner.jobs)
    more = {"volumes": ["sets:/sets:ro"], "env_from": ["keys", "flags"], "cpus": 48, "memory": "256Gi"}
    launched = launch(alice, args=[str(tmp_path), 3], name="given", hold_until="checkpoint", **more)
    assert launched.succeeded
    pods = [pod for pod in runner.jobs.pods(TEAM) if pod["metadata"]["name"].startswith("given-")]
    assert len(pods) == 2
    for pod in pods:
        [container] = pod["spec"]["containers"]
        assert pod["metadata"]["annotations"][NAMES.hold_until] == "checkpoint"
        [volume] = [one for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one]
        assert volume["persistentVolumeClaim"] == {"claimName": "sets", "readOnly": True}
        assert [one["mountPath"] for one in container["volumeMounts"] if one["name"] == volume["name"]] == ["/sets"]
        assert [next(iter(one)) for one in container["envFrom"]] == ["secretRef", "configMapRef"]
        assert {"cpu": "48", "memory": "256Gi"}.items() <= container["resources"]["requests"].items()


def test_what_cannot_be_had_is_refused_and_nothing_is_made(team: Jobs, alice: Path) -> None:
    give_storage(team)
    before = len(team.items(f"/api/v1/namespaces/{TEAM}/configmaps"))
    for options, words in (
        ({"nodes": 3}, "24 GPUs of h100-sxm5-80gb, and the team launchers can have 16 at most"),
        ({"kind": "b200"}, "no GPUs of the kind 'b200'; those it has: h100-sxm5-80gb"),
        ({"near": "room"}, "near is 'room'"),
        ({"team": "default"}, "you may not make jobs in the namespace default: .*; you may in: launchers"),
        ({"name": "plain"}, "launchers has a job named plain already"),
        ({"image": ""}, "no image is given"),
        ({"volumes": ["none:/data"]}, "launchers has no PersistentVolumeClaim none; those that there are: alone, sets"),
        ({"volumes": ["alone:/data"]}, "is for one node .ReadWriteOnce., and the job has 2"),
        ({"env_from": ["none"]}, "launchers has no Secret or ConfigMap none"),
    ):
        with pytest.raises(LaunchError, match=words):
            launch(alice, **{"args": ["x", 1], **options})
    assert len(team.items(f"/api/v1/namespaces/{TEAM}/configmaps")) == before
