"""When Kubernetes' own gangs may be turned off, and what they hinder. Pure; for the controller."""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.muster.fleet.plugins.module_utils.host.program_versions import Version
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem

VARIABLE = "fleet_gang"
OFF, ENDING = "kueue", "ending"
# The one minor of Kubernetes that serves this version of their API.
_RELEASE, _VERSION = "1.36", "scheduling.k8s.io/v1alpha2"
PAGE = "docs/operations/gangs.md"
REMOVE = "kubectl delete podgroups.scheduling.k8s.io,workloads.scheduling.k8s.io --all --all-namespaces --wait=false"


def why_not_off(before: str, left: str) -> str:
    """Why the API servers have to serve them still; empty where they need not.

    `before`: VARIABLE of the last run. `left`: the objects there are, in words, empty without any. What is left nobody
    could see or remove any more, and a Job that is made while the servers change would leave some.
    """
    if before != ENDING:
        return (
            f"{VARIABLE} is {OFF} and was {before}, under which Jobs that are made meanwhile leave objects that nobody "
            f"can see or remove any more; set {VARIABLE}: {ENDING} and run site.yml first ({PAGE})"
        )
    if left:
        return (
            f"{VARIABLE} is {OFF}, and the cluster has {left} of {_VERSION}, which nobody could see or remove any "
            f"more; run `{REMOVE}`, wait until the pods of those that stay have ended, and run this again ({PAGE})"
        )
    return ""


def upgrade_problems(wanted: Version, servers: tuple[str, ...], gang: str, left: str) -> Iterator[Problem]:
    """What speaks against API servers of version `wanted`. `gang`: VARIABLE; `left`: the objects, in words."""
    if wanted.release == _RELEASE:
        return
    fix = f"turn native gangs off first, as {PAGE} says"
    if gang != OFF:
        yield Problem(f"{VARIABLE} is {gang}, and Kubernetes {wanted} has no {_VERSION}", fix, servers)
    if left:
        yield Problem(f"the cluster has {left} of {_VERSION}, which Kubernetes {wanted} cannot read", fix, servers)
