"""How Kueue and JobSet are started beside a real etcd, API server, controller manager and scheduler on loopback."""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.names import JOBSET_USER, KUEUE_USER, SYSTEM_NAMESPACE
from tests.integration.jobs_stack import NAMES, Jobs
from tests.integration.kube import Part, Server, api_server, binaries, ended, free_ports, until
from tests.integration.kube_files import TEAM_POLICIES, gate_file
from tests.integration.native import gang_flags

# Kueue's and JobSet's webhooks that have a namespace of a job: those of teams alone.
_OF_JOBS = ("job", "jobset", "pod")
# Of Kueue's 43, those of its own kinds and of the frameworks that are on.
_KUEUES = (
    "admissioncheck", "clusterqueue", "cohort", "job", "jobset", "localqueue", "provisioningrequestconfig",
    "resourceflavor", "topology", "workload", "workloadpriorityclass",
)  # fmt: skip
_JOBSETS = ("jobset", "pod")
_OF_JOBSETS = "/mutate-jobset-x-k8s-io-v1alpha2-jobset"
# MultiKueue would want every Secret of its namespace, and Kueue does not lead without its rights.
_GATES = "VisibilityOnDemand=false,MultiKueue=false,FailureRecoveryPolicy=true"


@contextmanager
def jobs_stack(directory: Path, *flags: str, gang: str = "kueue") -> Iterator[Jobs]:
    """The stack, with Kueue's and JobSet's kinds served and both answering, until the block ends.

    Further flags are the API server's. `gang`: `fleet_gang`, by which roles give their programs flags.
    Raises FileNotFoundError without the binaries, and TimeoutError.
    """
    with api_server(directory, *flags, *gang_flags("kube_apiserver", gang)) as server:
        # What a fleet with teams has: all that Kueue, JobSet and tests do is under these.
        of_teams = {name: gate_file(name, directory) for name in TEAM_POLICIES}
        server.load({**server.policy_files(), **of_teams})
        ports = free_ports(6)
        jobs = Jobs(server, *controllers(server, gang), *_programs(server, ports))
        _define(jobs, ports)
        parts = (jobs.controller_manager, jobs.scheduler, jobs.kueue, jobs.jobset)
        with ended(*parts):
            for part in parts:
                part.start()
            for name, port in (("Kueue", ports[1]), ("JobSet", ports[4])):
                until(f"{name}'s readiness", lambda port=port: answers(port), 120)  # type: ignore[misc]
            # Kueue takes up a framework when it has found its kind, which its readiness does not wait for.
            until("Kueue's webhook of JobSets", lambda: _serves(server, ports[0], _OF_JOBSETS), 60)
            yield jobs


def controllers(server: Server, gang: str = "kueue") -> tuple[Part, Part]:
    """The controller manager and the scheduler, not started."""
    place = _place()
    manager = server.kubeconfig("system:kube-controller-manager")
    scheduler = server.kubeconfig("system:kube-scheduler")
    apiserver_key = next(word for word in server.apiserver.command if word.startswith("--service-account-signing-key"))
    return (
        Part(
            [
                str(place / "kube-controller-manager"),
                f"--kubeconfig={manager}",
                "--leader-elect=false",
                "--use-service-account-credentials=true",
                f"--service-account-private-key-file={apiserver_key.split('=')[1]}",
                f"--root-ca-file={server.authority.ca}",
                # No kubelet renews a Lease here.
                "--node-monitor-grace-period=24h",
                "--kube-api-qps=300",
                "--kube-api-burst=500",
                "--secure-port=0",
                *gang_flags("kube_controller_manager", gang),
            ],
            server.directory / "controller-manager.log",
        ),
        Part(
            [
                str(place / "kube-scheduler"),
                f"--kubeconfig={scheduler}",
                "--leader-elect=false",
                "--kube-api-qps=300",
                "--kube-api-burst=500",
                "--secure-port=0",
                *gang_flags("kube_scheduler", gang),
            ],
            server.directory / "scheduler.log",
        ),
    )


def _programs(server: Server, ports: Sequence[int]) -> tuple[Part, Part]:
    place, certificates = _place(), serving(server)
    team = {"matchExpressions": [{"key": NAMES.team, "operator": "Exists"}]}
    kueue = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": SYSTEM_NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports[1]}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": ports[0], "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "internalCertManagement": {"enable": False},
        "managedJobsNamespaceSelector": team,
        "waitForPodsReady": {"timeout": "10m", "recoveryTimeout": "5m"},
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
        "resources": {"excludeResourcePrefixes": ["cpu", "memory", "ephemeral-storage"]},
        "fairSharing": {"preemptionStrategies": ["LessThanOrEqualToFinalShare", "LessThanInitialShare"]},
    }
    jobset = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports[4]}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": ports[3], "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 300, "burst": 500},
        "internalCertManagement": {"enable": False},
    }
    parts = []
    for name, user, config in (("kueue", KUEUE_USER, kueue), ("jobset", JOBSET_USER, jobset)):
        path = server.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [str(place / name), f"--kubeconfig={server.kubeconfig(user)}", f"--config={path}"]
        if name == "kueue":
            command = in_etc(server.directory / "etc", [*command, f"--feature-gates={_GATES}"])
        parts.append(Part(command, server.directory / f"{name}.log"))
    return parts[0], parts[1]


def in_etc(folder: Path, command: Sequence[str]) -> list[str]:
    """A command that sees `folder` as /etc: where Kueue takes its metrics' certificate from is fixed in its main.go."""
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *own, "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(folder), *command]


def serving(server: Server) -> Path:
    """The folder of the certificate that both show as webhooks, and Kueue with its metrics."""
    folder = server.directory / "etc/kueue/metrics/certs"
    folder.mkdir(parents=True)
    certificate, key = server.authority.issue("webhooks", server=True)
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    return folder


def _define(jobs: Jobs, ports: Sequence[int]) -> None:
    """Kinds, rights and webhooks from the modules' manifests."""
    bundle = base64.b64encode(jobs.server.authority.ca.read_bytes()).decode()
    for name, user, port, kept in (
        ("kueue", KUEUE_USER, ports[0], _KUEUES),
        ("jobset", JOBSET_USER, ports[3], _JOBSETS),
    ):
        for item in json.loads((_place() / f"{name}-manifests.json").read_text()):
            for hook in item.get("webhooks", ()):
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
                if hook["name"].split(".")[0][1:] in _OF_JOBS:
                    hook["namespaceSelector"] = {"matchExpressions": [{"key": NAMES.team, "operator": "Exists"}]}
            if "webhooks" in item:
                item["webhooks"] = [hook for hook in item["webhooks"] if hook["name"].split(".")[0][1:] in kept]
                item["metadata"]["name"] = name
            if item["kind"] == "ClusterRole":
                item["metadata"]["name"] = f"muster:{name}"
                jobs.apply(_binding(f"muster:{name}", user))
            jobs.apply(item)
    until("Kueue's kinds", lambda: jobs.root.request("GET", "/apis/kueue.x-k8s.io/v1beta2/workloads").status == 200)
    until("JobSet's kind", lambda: jobs.root.request("GET", "/apis/jobset.x-k8s.io/v1alpha2/jobsets").status == 200)


def _binding(role: str, user: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }


def _serves(server: Server, port: int, path: str) -> bool:
    """Whether a webhook is there, whatever it says."""
    context = ssl.create_default_context(cafile=str(server.authority.ca))
    context.check_hostname = False
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=context)
    try:
        connection.request("POST", path, "{}", {"Content-Type": "application/json"})
        return connection.getresponse().status != 404
    except OSError:
        return False
    finally:
        connection.close()


def answers(port: int) -> bool:
    """Whether what listens here says that it is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _place() -> Path:
    place = binaries()
    if place is None:
        raise FileNotFoundError("no binaries")
    return place
