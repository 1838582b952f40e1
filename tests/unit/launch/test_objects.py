"""The objects of a job."""

from __future__ import annotations

import base64
import json
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from gpu_burnin import launch
from gpu_burnin.api.names import GPU_LABEL, RACK_LABEL, Names
from gpu_burnin.launch.objects import JOB_MODULES, config_map, job_set, launcher
from gpu_burnin.launch.pod_options import Mount, Variables
from tests.unit.launch.examples import REQUEST

NAMES = Names()


def _pod(**of: object) -> dict:  # type: ignore[type-arg]
    [replicated] = job_set(replace(REQUEST, **of), NAMES)["spec"]["replicatedJobs"]  # type: ignore[arg-type]
    return replicated["template"]["spec"]["template"]


def test_one_indexed_job_holds_the_gang() -> None:
    made = job_set(REQUEST, NAMES)
    assert made["metadata"] == {
        "name": "train-x7k2p",
        "namespace": "vision",
        "labels": {"kueue.x-k8s.io/queue-name": "default", "app.kubernetes.io/managed-by": "muster"},
        "annotations": {},
    }
    [replicated] = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (replicated["name"], replicated["replicas"], made["spec"]["suspend"]) == ("node", 1, True)
    assert made["spec"]["ttlSecondsAfterFinished"] == 604_800
    assert (job["completionMode"], job["completions"], job["parallelism"], job["backoffLimit"]) == ("Indexed", 2, 2, 0)
    assert "activeDeadlineSeconds" not in job


def test_saved_and_lost_nodes_do_not_count_and_a_deadline_ends_it() -> None:
    made = job_set(replace(REQUEST, restarts=5, max_runtime_s=7200), NAMES)
    assert made["spec"]["failurePolicy"]["maxRestarts"] == 5
    rules = {rule["action"]: rule["onJobFailureReasons"] for rule in made["spec"]["failurePolicy"]["rules"]}
    assert rules == {
        "RestartJobSetAndIgnoreMaxRestarts": ["PodFailurePolicy"],
        "FailJobSet": ["DeadlineExceeded"],
    }
    [replicated] = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    saved, *lost = job["podFailurePolicy"]["rules"]
    assert saved["onExitCodes"]["values"] == [42]
    # The second is Kueue's, of a pod that waits for a node which was shut.
    assert [one["onPodConditions"][0]["type"] for one in lost] == ["DisruptionTarget", "TerminatedByKueue"]
    assert job["activeDeadlineSeconds"] == 7200
    assert made["metadata"]["annotations"] == {"muster.dev/max-runtime-s": "7200"}


@pytest.mark.parametrize(
    ("near", "close_by", "key", "value"),
    [
        (RACK_LABEL, None, "kueue.x-k8s.io/podset-required-topology", RACK_LABEL),
        (None, RACK_LABEL, "kueue.x-k8s.io/podset-preferred-topology", RACK_LABEL),
        (None, None, "kueue.x-k8s.io/podset-unconstrained-topology", "true"),
    ],
)
def test_where_the_nodes_stand(near: str | None, close_by: str | None, key: str, value: str) -> None:
    annotations = _pod(near=near, close_by=close_by)["metadata"]["annotations"]
    assert {name: text for name, text in annotations.items() if "topology" in name} == {key: value}


def test_the_pod_asks_for_its_gpus_on_the_model() -> None:
    pod = _pod()["spec"]
    assert pod["nodeSelector"] == {GPU_LABEL: "h100-sxm5-80gb"}
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert "nodeSelector" not in _pod(model="")["spec"]


def test_the_pod_fits_pod_security_restricted() -> None:
    pod = _pod()["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    kinds = {next(kind for kind in volume if kind != "name") for volume in pod["volumes"]}
    assert kinds == {"configMap", "downwardAPI", "emptyDir"}
    assert not pod["automountServiceAccountToken"] and not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)


def test_what_the_node_asks_comes_from_the_pods_own_annotation() -> None:
    [leave] = [volume for volume in _pod()["spec"]["volumes"] if volume["name"] == "leave"]
    [item] = leave["downwardAPI"]["items"]
    assert item == {"path": "leave.json", "fieldRef": {"fieldPath": "metadata.annotations['muster.dev/leave']"}}


def test_the_first_node_is_found_by_its_name() -> None:
    [container] = _pod()["spec"]["containers"]
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert (values["MASTER_ADDR"], values["MASTER_PORT"]) == ("train-x7k2p-node-0-0.train-x7k2p", "29500")


def test_variables_of_people_come_through() -> None:
    [container] = _pod(env={"NCCL_DEBUG": "INFO", "USER": "me"})["spec"]["containers"]
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert values["NCCL_DEBUG"] == "INFO" and values["USER"] == "me"


def test_claims_are_mounted_and_no_pod_may_write_one_that_is_read_only() -> None:
    pod = _pod(mounts=(Mount("data", "/data"), Mount("sets", "/mnt/sets", True)))["spec"]
    mounts = {one["mountPath"]: (one["name"], one["readOnly"]) for one in pod["containers"][0]["volumeMounts"][4:]}
    assert mounts == {"/data": ("claim-0", False), "/mnt/sets": ("claim-1", True)}
    claims = {one["name"]: one["persistentVolumeClaim"] for one in pod["volumes"] if "persistentVolumeClaim" in one}
    assert claims == {
        "claim-0": {"claimName": "data", "readOnly": False},
        "claim-1": {"claimName": "sets", "readOnly": True},
    }
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"


def test_variables_of_secrets_and_config_maps_are_named_and_not_copied() -> None:
    [container] = _pod(variables=(Variables("secret", "keys"), Variables("configmap", "flags")))["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "flags"}}]


def test_cpu_and_memory_are_asked_for_and_are_no_limit() -> None:
    [container] = _pod(cpus="64", memory="512Gi")["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"nvidia.com/gpu": "8"},
        "requests": {"cpu": "64", "memory": "512Gi"},
    }


def test_a_hold_is_an_annotation_of_the_pods() -> None:
    assert _pod(hold_until="checkpoint")["metadata"]["annotations"]["muster.dev/hold-until"] == "checkpoint"
    assert "muster.dev/hold-until" not in _pod()["metadata"]["annotations"]


def test_the_config_map_goes_with_the_job_set() -> None:
    made = config_map(replace(REQUEST, argv=("--steps", "3")), b"archive", {"metadata": {"uid": "u1"}})
    assert made["metadata"]["ownerReferences"] == [
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "train-x7k2p", "uid": "u1"}
    ]
    assert json.loads(made["data"]["launch.json"]) == {"entry": "train.py", "argv": ["--steps", "3"]}
    assert base64.b64decode(made["binaryData"]["source.tar.gz"]) == b"archive" and made["immutable"]
    assert made["data"]["job.py"].startswith('"""For jobs')


def test_a_url_takes_the_place_of_the_archive() -> None:
    request = replace(REQUEST, url="https://files.example/p.tar.gz", sha256="ab" * 32)
    made = config_map(request, None, None)
    settings = json.loads(made["data"]["launch.json"])
    assert (settings["url"], settings["sha256"]) == (request.url, request.sha256)
    assert set(made["binaryData"]) == {"launcher.pyz"}
    [volume] = [volume for volume in _pod(url=request.url)["spec"]["volumes"] if volume["name"] == "launch"]
    assert "source.tar.gz" not in {item["key"] for item in volume["configMap"]["items"]}


def test_the_launcher_holds_all_of_its_folder_and_is_always_the_same() -> None:
    assert launcher() == launcher()
    folder = Path(next(iter(launch.__path__))) / "pod"
    with zipfile.ZipFile(BytesIO(launcher())) as packed:
        names = {Path(name).stem for name in packed.namelist() if name.startswith("gpu_burnin/launch/pod/")}
    assert names == {path.stem for path in folder.glob("*.py")} == {*JOB_MODULES, "__init__"}
