"""One look: read the audit log on, ask the API server, leave the numbers, say what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.gate_probe import numbers, state
from gpu_burnin.admission.gate_probe.ask import Gate, NotAsked, expected_webhooks, leases, probe
from gpu_burnin.admission.gate_probe.audit import read_on
from gpu_burnin.admission.gate_probe.jobs import SERVICES, Jobs, queues, ready
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, GpuBurninError
from gpu_burnin.system.files import write_atomic

_T = TypeVar("_T")
# A second may have a hundred: the log itself has all.
_MOST_TOLD = 20
# One answer, or none: the next look comes in a minute. With a member of etcd that is away, one answer in three of
# /metrics takes 20 s: the API server asks any member for the size of the database, and dials it so long.
_TIMEOUT_S = (5.0, 25.0)


@dataclass(frozen=True)
class Place:
    """Where everything is on the host of an API server. `metrics` None: nobody reads numbers here.

    `etc` has the folders of Kueue and JobSet, where there are teams.
    """

    kubeconfig: Path
    policies: Path
    audit_log: Path
    state_dir: Path
    metrics: Path | None
    etc: Path = Path("/etc")


def once(place: Place, say: Callable[[str], None], now_s: float) -> int:
    """Exit code: 0 the gate is in force, 1 it is not, 3 it could not be asked. Raises GpuBurninError (its files)."""
    kept, problems = _count(place, state.read(place.state_dir), say, now_s)
    unasked: list[str] = []
    gate, renewed, jobs = _ask(place, unasked)
    kept = kept if gate is None else replace(kept, gate_checked_s=now_s)
    for sentence in dict.fromkeys(unasked):
        say(sentence)
    try:
        state.write(place.state_dir, kept)
        if place.metrics is not None:
            write_atomic(place.metrics, numbers.text(gate, renewed, kept, jobs).encode(), mode=0o644)
    except OSError as error:
        raise GpuBurninError(
            f"{error.filename}: cannot be written ({error.strerror}); site.yml makes its folder"
        ) from error
    if gate is not None and not gate.in_force:
        say(_wrong(place, gate))
        return EXIT_FAIL
    if gate is not None and gate.changed_webhooks:
        say(
            f"{' and '.join(gate.changed_webhooks)} of the API server do not have the webhooks of Kueue and JobSet "
            f"that were installed in {place.policies}; see what changed there, then run site.yml for this host"
        )
        return EXIT_FAIL
    return EXIT_INCONCLUSIVE if problems or unasked else EXIT_PASS


def _ask(place: Place, unasked: list[str]) -> tuple[Gate | None, Mapping[str, float], Jobs | None]:
    """Gate, Leases and jobs: what one question does not answer hides no answer to another one.

    An API server that answers neither of the first two is asked no more: each takes half a minute to find that out.
    """
    api = _answer(lambda: KubeApi(place.kubeconfig, retries=0, timeout_s=_TIMEOUT_S), unasked)
    gate = renewed = None
    if api is not None:
        gate, renewed = _answer(partial(probe, api, place.policies), unasked), _answer(partial(leases, api), unasked)
    if not _answer(lambda: expected_webhooks(place.policies), unasked):
        return gate, renewed or {}, None
    jobs = Jobs({name: ready(place.etc / name) for name in SERVICES})
    if api is not None and (gate is not None or renewed is not None):
        led = _answer(partial(leases, api, SERVICES, SYSTEM_NAMESPACE), unasked) or {}
        jobs = replace(jobs, leases=led, queues=_answer(partial(queues, api), unasked) or ())
    return gate, renewed or {}, jobs


def _answer(question: Callable[[], _T], unasked: list[str]) -> _T | None:
    """What it answers; None where it cannot be asked, and why is in `unasked` then."""
    try:
        return question()
    except (NotAsked, ApiError) as error:
        unasked.append(str(error))
        return None


def _count(place: Place, before: state.State, say: Callable[[str], None], now_s: float) -> tuple[state.State, int]:
    try:
        found = read_on(place.audit_log, before.position)
    except OSError as error:
        say(f"{place.audit_log}: cannot be read ({error.strerror}); see whether kube-apiserver runs and writes it")
        return before, 1
    for use in found.uses[:_MOST_TOLD]:
        say(use.sentence)
    if len(found.uses) > _MOST_TOLD:
        say(f"and {len(found.uses) - _MOST_TOLD} more in {place.audit_log}")
    if found.gaps:
        say(f"{place.audit_log}: parts of it are gone or cannot be read, and were not counted ({found.gaps})")
    return before.counted(found, now_s), 0


def _wrong(place: Place, gate: Gate) -> str:
    if not gate.refused:
        return (
            "the gate is open: this API server takes a node without the preflight taint; take it out of the load "
            "balancer, then run site.yml for this host"
        )
    return (
        f"the API server has loaded {gate.loaded or 'no policies'}, and {gate.expected} were installed in "
        f"{place.policies}; see what changed there, then run site.yml for this host"
    )
