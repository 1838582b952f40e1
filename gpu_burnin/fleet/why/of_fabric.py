"""The fabric's part in a job: what tests between nodes found of its nodes, and when. Nothing where nothing is known.

A test needs idle nodes, so that it comes before a job or after its end: it is told beside the first cause, with its
time, and never as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.api.fabric_proof import FabricOutcome
from gpu_burnin.api.record import NodeAdmission
from gpu_burnin.fabric.claim import Claim, Part
from gpu_burnin.system.clock import time_of
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import duration

RUN = Path("fabric") / "run.json"
_MOST_NODES = 4


def of_ledger(records: Iterable[NodeAdmission], ended: datetime | None, now: datetime) -> list[str]:
    """A sentence for each node that tests by the admitter have named, or made a suspect. `ended`: when the job did."""
    found = []
    for record in records:
        proof = record.status.fabric
        if proof is None or proof.outcome is FabricOutcome.PASSED or (at := time_of(proof.tested_at)) is None:
            continue
        verb = "named" if proof.outcome is FabricOutcome.NAMED else "made a suspect"
        when = f"{at:%Y-%m-%d %H:%M:%S}, {_relative(at, ended, now)}"
        claim = proof.claim or "the ledger has no words on it"
        found.append(f"{record.name} was {verb} by tests with other nodes at {when}: {claim}")
    return found


def of_run(path: Path, nodes: Collection[str], ended: datetime | None, now: datetime) -> list[str]:
    """A sentence for each claim of the newest `muster fabric run` that is about these nodes, or a way between them.

    Raises GpuBurninError for a file that cannot be read.
    """
    try:
        at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except FileNotFoundError:
        return []
    # They need an extra that people of teams do not have, and neither do those have such a file.
    from gpu_burnin.fleet.fabric import results
    from gpu_burnin.fleet.fabric.claims import claims

    state = results.state_of(results.read(path))
    leaves = {state.fabric.by_name[name].leaf for name in nodes if name in state.fabric.by_name}
    when = f"muster fabric run, whose file was last written at {at:%Y-%m-%d %H:%M:%S}, {_relative(at, ended, now)}"
    return [
        f"{when}: {claim.sentence}{about}"
        for claim in claims(state)
        if (about := _about(claim, nodes, leaves)) is not None
    ]


def _about(claim: Claim, nodes: Collection[str], leaves: Collection[str]) -> str | None:
    """Which nodes of the job it is about, in words; None for none."""
    hit = [name for name in claim.nodes if name in nodes]
    if hit:
        return f" (of the job: {listed(sorted(hit), _MOST_NODES)})"
    ways = {cause.name for cause in claim.causes if cause.part is Part.PATH}
    pairs = {f"{first} and {second}" for first in leaves for second in leaves if first != second}
    return " (the job has nodes at both ends)" if ways & pairs else None


def _relative(at: datetime, ended: datetime | None, now: datetime) -> str:
    if ended is None:
        return f"{duration((now - at).total_seconds())} ago"
    after_s = (at - ended).total_seconds()
    return f"{duration(abs(after_s))} {'after' if after_s >= 0 else 'before'} its end"
