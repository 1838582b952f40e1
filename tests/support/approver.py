"""Approving kubelets' certificates where no admitter runs: in tests of single roles, and of what a node lacks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.admission.approve import (
    InventoryNode,
    Judgement,
    approval_of,
    judge_csr,
    missing_certificates,
    relevant,
)
from gpu_burnin.admission.client import Conflict, KubeApi

POLL_S = 1.0
WAIT_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """What was approved, what was left pending and why, and which nodes still lack what."""

    approved: tuple[Judgement, ...]
    pending: tuple[Judgement, ...]
    missing: Mapping[str, str]


def approve(
    api: KubeApi,
    inventory: Mapping[str, InventoryNode],
    wait_for: Collection[str],
    wait_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Outcome:
    """Approve until every node in `wait_for` has its serving certificate, for at most `wait_s` seconds."""
    deadline = clock() + wait_s
    approved: dict[str, Judgement] = {}
    while True:
        csrs = api.csrs()
        judged = {csr["metadata"]["name"]: (csr, judge_csr(csr, inventory)) for csr in csrs if relevant(csr)}
        done = [judgement for csr, judgement in judged.values() if not judgement.refusals and _write(api, csr)]
        pending = tuple(judgement for _, judgement in judged.values() if judgement.refusals)
        approved.update({judgement.csr: judgement for judgement in done})
        missing = missing_certificates(wait_for, csrs, api.nodes(), pending, now()) if wait_for else {}
        if (not missing and not done) or clock() >= deadline:
            return Outcome(tuple(approved.values()), pending, missing)
        sleep(POLL_S)


def main(kubeconfig: str, nodes: str, wait_for: str) -> int:
    """Nodes as NAME=ADDRESS,..., those to wait for as NAME,...; 1, and what is missing, when one does not come."""
    pairs = (item.split("=") for item in nodes.split(","))
    inventory = {name: InventoryNode.of(name, [address]) for name, address in pairs}
    missing = approve(KubeApi(Path(kubeconfig)), inventory, wait_for.split(","), WAIT_S).missing
    print("\n".join(missing.values()), file=sys.stderr)
    return 1 if missing else 0


def _write(api: KubeApi, csr: Mapping[str, object]) -> bool:
    try:
        api.put_csr_approval(approval_of(csr))
    except Conflict:
        # The next look reads and judges it again.
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
