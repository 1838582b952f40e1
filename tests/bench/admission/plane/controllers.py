"""The real controller manager and scheduler, with the flags of the roles, for an API server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.fleet.plan import sizing
from tests.integration.kube import NO_BINARIES, Part, Server, binaries, ended
from tests.integration.kube_files import render

# The bench renews no Lease between its steps, so no node may be taken for lost meanwhile.
_PATIENT = "24h"


@dataclass(frozen=True)
class Controllers:
    """Both, running."""

    manager: Part
    scheduler: Part


@contextmanager
def controllers(server: Server, directory: Path, nodes: int) -> Iterator[Controllers]:
    """Both, sized for so many nodes, until the block ends. Raises FileNotFoundError without the binaries."""
    place = binaries()
    if place is None or not (place / "kube-controller-manager").exists():
        raise FileNotFoundError(NO_BINARIES)
    manager = Part(_manager(server, place, directory, nodes), directory / "controller-manager.log")
    scheduler = Part(_scheduler(server, place, directory, nodes), directory / "scheduler.log")
    with ended(manager, scheduler):
        manager.start()
        scheduler.start()
        yield Controllers(manager, scheduler)


def _manager(server: Server, place: Path, directory: Path, nodes: int) -> list[str]:
    ca, key = server.authority.ca, server.authority.ca.with_suffix(".key")
    signers = [
        f"--cluster-signing-kubelet-{kind}-{what}-file={path}"
        for kind in ("client", "serving")
        for what, path in (("cert", ca), ("key", key))
    ]
    return [
        str(place / "kube-controller-manager"),
        f"--kubeconfig={server.kubeconfig('system:kube-controller-manager')}",
        f"--cert-dir={directory}",
        "--secure-port=0",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
        f"--root-ca-file={ca}",
        *signers,
        "--cluster-signing-duration=720h",
        "--allocate-node-cidrs=false",
        f"--kube-api-qps={sizing.client_qps(nodes)}",
        f"--kube-api-burst={sizing.client_burst(nodes)}",
        f"--node-monitor-grace-period={_PATIENT}",
    ]


def _scheduler(server: Server, place: Path, directory: Path, nodes: int) -> list[str]:
    config = directory / "scheduler.yaml"
    variables = {
        "kube_scheduler_api_qps": sizing.client_qps(nodes),
        "kube_scheduler_api_burst": sizing.client_burst(nodes),
        "kube_scheduler_profiles": [],
    }
    text = render("kube_scheduler", "scheduler.yaml.j2", variables)
    kubeconfig = server.kubeconfig("system:kube-scheduler")
    text = text.replace("/etc/kubernetes/scheduler/kubeconfig", str(kubeconfig)).replace("Elect: true", "Elect: false")
    config.write_text(text)
    return [str(place / "kube-scheduler"), f"--config={config}", "--secure-port=0", f"--cert-dir={directory}"]
