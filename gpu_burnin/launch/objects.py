"""The objects of a job: one JobSet with one Indexed Job, and the ConfigMap that holds its source."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Mapping
from importlib import resources
from typing import Any

from gpu_burnin.api.jobs import GPUS, GROUP, JOBSET_API_VERSION, QUEUE_NAME, START_AGAIN
from gpu_burnin.api.names import GPU_LABEL, LOCAL_QUEUE, MANAGED_BY, Names
from gpu_burnin.launch.pod_options import SECRET
from gpu_burnin.launch.request import Request

KIND = "JobSet"
REPLICATED_JOB, CONTAINER = "node", "node"
PRIORITY_LABEL = f"{GROUP}/priority-class"
REQUIRED_TOPOLOGY = f"{GROUP}/podset-required-topology"
PREFERRED_TOPOLOGY = f"{GROUP}/podset-preferred-topology"
UNCONSTRAINED_TOPOLOGY = f"{GROUP}/podset-unconstrained-topology"
# Kueue may take a pod away from a node that no longer answers (where its gate FailureRecoveryPolicy is on): without
# that the gang would wait for the dead node's kubelet to say that the pod has ended.
FORCEFULLY = f"{GROUP}/safe-to-forcefully-delete"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
ATTEMPT_LABEL = "jobset.sigs.k8s.io/restart-attempt"
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
MASTER_PORT = 29500
# A process that asks to be started again before this, unasked, would do so for ever.
LEAST_RUN_S = 10
# So long a job that is over is kept, with the logs of its last pods and up to 1 MiB of etcd.
KEPT_S = 7 * 86400
# Kubernetes' own default is five minutes, in which the other nodes of the gang stand still.
_UNREACHABLE_S = 60
_USER = 1000
_LAUNCH, _WORK, _LEAVE = "/run/muster/launch", "/run/muster/work", "/run/muster/leave"
_LAUNCHER, _ARCHIVE, _SETTINGS, _JOB = "launcher.pyz", "source.tar.gz", "launch.json", "job.py"
JOB_MODULES = ("launcher", "leave", "output", "ranks", "setup", "signals", "source")
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def config_map(request: Request, archive: bytes | None, owner: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the pods mount: the launcher, its settings, and the source where that is no URL.

    `owner` is the JobSet as the API server keeps it, with which the ConfigMap goes.
    """
    settings = {
        "entry": request.entry,
        "argv": list(request.argv),
        **({"url": request.url, "sha256": request.sha256} if request.url else {}),
    }
    files = {_LAUNCHER: launcher(), **({} if archive is None else {_ARCHIVE: archive})}
    metadata: dict[str, Any] = {
        "name": request.name,
        "namespace": request.team,
        "labels": {JOBSET_LABEL: request.name, **MANAGED_BY},
    }
    if owner is not None:
        metadata["ownerReferences"] = [
            {"apiVersion": JOBSET_API_VERSION, "kind": KIND, "name": request.name, "uid": owner["metadata"]["uid"]}
        ]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": {_SETTINGS: json.dumps(settings), _JOB: _text_of("gpu_burnin", "job.py")},
        "binaryData": {name: base64.b64encode(data).decode() for name, data in sorted(files.items())},
    }


def launcher() -> bytes:
    """gpu_burnin.launch.pod as a program in one file: the same bytes for the same files."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:

        def add(name: str, text: str) -> None:
            packed.writestr(zipfile.ZipInfo(name, _ZIP_TIME), text, zipfile.ZIP_DEFLATED)

        add("__main__.py", "import sys\n\nfrom gpu_burnin.launch.pod.launcher import main\n\nsys.exit(main())\n")
        for room in ("gpu_burnin", "gpu_burnin/launch", "gpu_burnin/launch/pod"):
            add(f"{room}/__init__.py", "")
        for module in JOB_MODULES:
            add(f"gpu_burnin/launch/pod/{module}.py", _text_of("gpu_burnin.launch.pod", f"{module}.py"))
    return out.getvalue()


def _text_of(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def job_set(request: Request, names: Names) -> dict[str, Any]:
    """The JobSet: Kueue starts it when the whole gang has its nodes."""
    labels = {QUEUE_NAME: LOCAL_QUEUE, **MANAGED_BY}
    if request.priority:
        labels[PRIORITY_LABEL] = request.priority
    annotations = {names.max_runtime: str(request.max_runtime_s)} if request.max_runtime_s else {}
    return {
        "apiVersion": JOBSET_API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": request.name,
            "namespace": request.team,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "suspend": True,
            "ttlSecondsAfterFinished": KEPT_S,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": _failure_policy(request),
            "replicatedJobs": [
                {"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": _job(request, names)}},
            ],
        },
    }


def _failure_policy(request: Request) -> dict[str, Any]:
    return {
        "maxRestarts": request.restarts,
        "rules": [
            # The Job's own rules below: it saved and asked for it, or the node went. Neither is the work's fault.
            {
                "name": "startAgain",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["PodFailurePolicy"],
            },
            {"name": "maxRuntime", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]},
        ],
    }


def _job(request: Request, names: Names) -> dict[str, Any]:
    job: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": request.nodes,
        "parallelism": request.nodes,
        # One that fails ends the gang: the others would wait for it.
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [START_AGAIN]},
                },
                # A lost or drained node; one that is shut while a pod of the gang waits for it (Kueue ends that pod).
                *(
                    {"action": "FailJob", "onPodConditions": [{"type": condition, "status": "True"}]}
                    for condition in ("DisruptionTarget", "TerminatedByKueue")
                ),
            ]
        },
        "template": {"metadata": {"annotations": _pod_annotations(request, names)}, "spec": _pod(request, names)},
    }
    if request.max_runtime_s:
        job["activeDeadlineSeconds"] = request.max_runtime_s
    return job


def _pod_annotations(request: Request, names: Names) -> dict[str, str]:
    if request.near:
        place = {REQUIRED_TOPOLOGY: request.near}
    elif request.close_by:
        place = {PREFERRED_TOPOLOGY: request.close_by}
    else:
        place = {UNCONSTRAINED_TOPOLOGY: "true"}
    hold = {names.hold_until: request.hold_until} if request.hold_until else {}
    return {**place, FORCEFULLY: "true", **hold}


def _pod(request: Request, names: Names) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": request.grace_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Pod Security "restricted".
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            # Of a claim with millions of files each would be given to the group again at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _UNREACHABLE_S,
            }
            for state in ("not-ready", "unreachable")
        ],
        "containers": [_container(request)],
        "volumes": _volumes(request, names),
    }
    if request.model:
        pod["nodeSelector"] = {GPU_LABEL: request.model}
    return pod


def _container(request: Request) -> dict[str, Any]:
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": ["python3", "-u", f"{_LAUNCH}/{_LAUNCHER}"],
        "workingDir": _WORK,
        "env": [
            *({"name": name, "value": value} for name, value in _variables(request).items()),
            {
                "name": "MUSTER_ATTEMPT",
                "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{ATTEMPT_LABEL}']"}},
            },
            {"name": "MUSTER_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "envFrom": [
            {"secretRef" if one.kind == SECRET else "configMapRef": {"name": one.name}} for one in request.variables
        ],
        "resources": _resources(request),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "launch", "mountPath": _LAUNCH, "readOnly": True},
            {"name": "leave", "mountPath": _LEAVE, "readOnly": True},
            {"name": "work", "mountPath": _WORK},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
            *(
                {"name": _claim(number), "mountPath": mount.path, "readOnly": mount.read_only}
                for number, mount in enumerate(request.mounts)
            ),
        ],
    }


def _resources(request: Request) -> dict[str, Any]:
    requests = {"cpu": request.cpus, "memory": request.memory}
    given = {name: amount for name, amount in requests.items() if amount is not None}
    return {"limits": {GPUS: str(request.gpus_per_node)}, **({"requests": given} if given else {})}


def _claim(number: int) -> str:
    return f"claim-{number}"


def _variables(request: Request) -> dict[str, str]:
    return {
        # Libraries ask who they are, and the user has no entry in the image.
        "USER": "muster",
        "LOGNAME": "muster",
        **request.env,
        "MASTER_ADDR": f"{request.name}-{REPLICATED_JOB}-0-0.{request.name}",
        "MASTER_PORT": str(MASTER_PORT),
        "MUSTER_JOB": request.name,
        "MUSTER_TEAM": request.team,
        "MUSTER_NODES": str(request.nodes),
        "MUSTER_PROCESSES": str(request.processes_per_node),
        "MUSTER_GRACE_S": str(request.grace_s),
        "MUSTER_LEAST_RUN_S": str(LEAST_RUN_S),
        "MUSTER_LAUNCH_DIR": _LAUNCH,
        "MUSTER_WORK_DIR": _WORK,
        # The launcher's, which has what the node asks and SIGTERM.
        "MUSTER_LEAVE_FILE": f"{_WORK}/leave.json",
        "MUSTER_NODE_LEAVE_FILE": f"{_LEAVE}/leave.json",
        "MUSTER_SOURCE_SHA256": request.sha256,
    }


def _volumes(request: Request, names: Names) -> list[dict[str, Any]]:
    # gpu_burnin without an __init__.py: a whole gpu_burnin of the image goes before it.
    paths = {_LAUNCHER: _LAUNCHER, _SETTINGS: _SETTINGS, _JOB: f"lib/gpu_burnin/{_JOB}"}
    if not request.url:
        paths[_ARCHIVE] = _ARCHIVE
    items = [{"key": key, "path": path} for key, path in paths.items()]
    leave = {"path": "leave.json", "fieldRef": {"fieldPath": f"metadata.annotations['{names.leave}']"}}
    return [
        {"name": "launch", "configMap": {"name": request.name, "items": items}},
        {"name": "leave", "downwardAPI": {"items": [leave]}},
        {"name": "work", "emptyDir": {}},
        # A container's own is 64 MiB; NCCL and workers that read data want more.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        *(
            {
                "name": _claim(number),
                "persistentVolumeClaim": {"claimName": mount.claim, "readOnly": mount.read_only},
            }
            for number, mount in enumerate(request.mounts)
        ),
    ]
