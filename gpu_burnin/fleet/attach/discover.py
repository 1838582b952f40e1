"""What a cluster can do and has, found by asking it; a list of versions would be wrong of somebody's build."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpu_burnin.admission.client import NODES, KubeApi, Object
from gpu_burnin.admission.objects import path_of, shown_name
from gpu_burnin.api.attached import AGENT_ACCOUNT, attached_path, parse_attached, preflight_taint
from gpu_burnin.api.names import MANAGED_BY, SYSTEM_NAMESPACE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.attach import monitoring
from gpu_burnin.fleet.attach.ability import Refused
from gpu_burnin.fleet.attach.policies import ADMISSION
from gpu_burnin.fleet.attach.settings import Settings
from gpu_burnin.fleet.attach.workloads import CONFIG, SSH

_GPU = "nvidia.com/gpu"
_RELEASE = "meta.helm.sh/release-name"


@dataclass(frozen=True)
class Capabilities:
    """What the API server answers for. `missing` are sentences: what it lacks, and what that means."""

    version: str
    gate: bool
    taint_policy: bool
    monitoring: bool
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Found:
    """The cluster's GPU Nodes, and what stands in the way of tainting new ones."""

    nodes: tuple[str, ...]
    at_work: tuple[str, ...]
    without_gpus: tuple[str, ...]
    intolerant: tuple[str, ...]


def capabilities(api: KubeApi) -> Capabilities:
    """Ask. Raises ApiError."""
    version = str(api.get("/version", "read its version").get("gitVersion", "unknown"))
    kinds = _kinds(api, ADMISSION)
    gate, taint_policy = "ValidatingAdmissionPolicy" in kinds, "MutatingAdmissionPolicy" in kinds
    missing = []
    if not gate:
        missing.append(
            f"it has no ValidatingAdmissionPolicy in {ADMISSION} (1.30 and newer have it): nothing could hold the "
            "taint, nor keep a node's token to its own Node, so it cannot be attached"
        )
    if not taint_policy:
        missing.append(
            f"it has no MutatingAdmissionPolicy in {ADMISSION} (1.36 and newer have it): a webhook adds the taint, and "
            "while it is away new GPU Nodes join only where the node group registers them with it"
        )
    return Capabilities(version, gate, taint_policy, _kinds(api, monitoring.API) >= monitoring.KINDS, tuple(missing))


def _kinds(api: KubeApi, version: str) -> set[str]:
    listed = api.find(f"/apis/{version}", f"list what it has of {version}") or {}
    return {str(one.get("kind")) for one in listed.get("resources") or []}


def refuse_others(api: KubeApi, wanted: Iterable[Object]) -> None:
    """Raise Refused where one of these is there and not of an attach: a built fleet's, or somebody else's."""
    for one in wanted:
        found = api.find(path_of(one), f"read {shown_name(one)}")
        if found is not None and not MANAGED_BY.items() <= ((found["metadata"].get("labels") or {}).items()):
            raise Refused(
                f"{api.server}: {shown_name(one)} is there and was not made by attach, so this cluster is a fleet that "
                "site.yml built, or another program has the name, or `helm uninstall` has left it; nothing was "
                "changed: take another cluster, or remove it first"
            )


def release(api: KubeApi) -> str:
    """The release of Helm that has brought Muster, "" for none. Raises ApiError."""
    found = api.find(attached_path(), "read who attached it") or {}
    return str((found.get("metadata", {}).get("annotations") or {}).get(_RELEASE, ""))


def refuse_release(api: KubeApi, name: str, instead: str) -> None:
    """Raise Refused where there is a release: what is written beside Helm is undone by its next upgrade."""
    if name:
        raise Refused(f"{api.server}: Muster is here as release {name} of Helm in {SYSTEM_NAMESPACE}; {instead}")


def present(api: KubeApi) -> dict[str, str]:
    """How it is attached now, by option; empty where it is not, or not to be read. Raises ApiError."""
    base = f"/namespaces/{SYSTEM_NAMESPACE}"
    attached = api.find(attached_path(), "read how it is attached")
    config = api.find(f"/api/v1{base}/configmaps/{CONFIG}", "read the agents' configuration") or {}
    agents = api.find(f"/apis/apps/v1{base}/daemonsets/{AGENT_ACCOUNT}", "read the DaemonSet of the agents") or {}
    try:
        was = parse_attached(attached or {})
        agent = yaml.safe_load(config["data"]["agent.yaml"])
        volumes = agents["spec"]["template"]["spec"]["volumes"]
        [driver] = [one["hostPath"]["path"] for one in volumes if one["name"] == "driver"]
        return {
            "mode": str(was.mode),
            "--gpu-nodes": was.gpu_nodes.words,
            "--level": str(agent["level"]),
            "--driver-root": str(driver),
            "--ssh-host-keys": _yes(str(agent["host_key"]).startswith(SSH)),
        }
    except (GpuBurninError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return {}


def changes_of(was: Mapping[str, str], settings: Settings) -> tuple[str, ...]:
    """What is other than before, a sentence each: who leaves an option out has its default. Pure."""
    now = {
        "mode": str(settings.mode),
        "--gpu-nodes": settings.gpu_nodes.words,
        "--level": settings.level,
        "--driver-root": settings.driver_root,
        "--ssh-host-keys": _yes(settings.ssh_host_keys),
    }
    return tuple(f"{key} {now[key]}, was {old}" for key, old in was.items() if now[key] != old)


def _yes(whether: bool) -> str:
    return "yes" if whether else "no"


def look(api: KubeApi, settings: Settings) -> Found:
    """Its GPU Nodes and DaemonSets. Raises ApiError."""
    nodes = [node for node in api.items(NODES, "list the nodes") if settings.gpu_nodes.matches(node)]
    names = {str(node["metadata"]["name"]) for node in nodes}
    busy = {
        str(pod["spec"].get("nodeName"))
        for pod in api.items("/api/v1/pods", "list the pods", fieldSelector="spec.nodeName!=")
        if _takes_gpus(pod)
    }
    without = (node for node in nodes if _GPU not in ((node.get("status") or {}).get("capacity") or {}))
    sets = api.items("/apis/apps/v1/daemonsets", "list the DaemonSets")
    return Found(
        nodes=tuple(sorted(names)),
        at_work=tuple(sorted(names & busy)),
        without_gpus=tuple(sorted(str(node["metadata"]["name"]) for node in without)),
        intolerant=tuple(sorted(_named(one) for one in sets if blocked(one, nodes, settings))),
    )


def blocked(daemon_set: Mapping[str, Any], nodes: Iterable[Object], settings: Settings) -> bool:
    """Whether the taint keeps its pods from a new GPU Node that it is meant for. Affinities count as meant."""
    spec = ((daemon_set.get("spec") or {}).get("template") or {}).get("spec") or {}
    taint, selector = preflight_taint(settings.names), spec.get("nodeSelector") or {}
    if any(_tolerates(one, taint) for one in spec.get("tolerations") or []):
        return False
    labels = ((node["metadata"].get("labels") or {}) for node in nodes)
    return any(selector.items() <= one.items() for one in labels)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return toleration.get("key") == taint["key"] and not toleration.get("value")


def _takes_gpus(pod: Object) -> bool:
    from gpu_burnin.admission.service.cache import pod_of

    found = pod_of(pod, "")
    return bool(found.gpus) and not found.ended


def _named(one: Object) -> str:
    return f"{one['metadata'].get('namespace', '')}/{one['metadata']['name']}"
