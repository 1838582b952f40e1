"""The local gate: does a pass of this very boot exist? Runs before each start of kubelet, so it is quick."""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.api import evidence
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, GpuBurninError
from gpu_burnin.node import signing
from gpu_burnin.node.store import NoResult, RunDirectory, Store
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.types import Verdict

SCHEMA = "muster-gate/v1"


class GateClosed(GpuBurninError):
    """The gate stays closed; exit code 3 when the last run was inconclusive or simulated, else 1.

    `code` is why evidence was refused (evidence_codes.CODES), "" where there was none to refuse; `statement` is what
    the evidence says, None unless its signature held.
    """

    def __init__(
        self, message: str, exit_code: int, code: str = "", statement: evidence.Statement | None = None
    ) -> None:
        super().__init__(message, exit_code)
        self.code = code
        self.statement = statement


def check_gate(
    config: Config, root: Path = Path("/"), now: datetime | None = None, *, under_test: bool = False
) -> evidence.Statement:
    """The statement that opens the gate; raises GateClosed with one sentence when there is none.

    Asks: not revoked; the newest run that has begun left evidence, which is a PASS of this machine and boot, signed by
    the host's own key, simulated only where the configuration allows it. The cluster decides on expiry. With
    `under_test` the run before speaks while the newest is under way: what ran when the test began may start again.
    """
    store, node = Store(config.state_dir), config.node_name
    if (reason := store.revoked()) is not None:
        raise GateClosed(f"{node}: closed: {store.root}/revoked says: {reason}; run gpu-burnin run", EXIT_FAIL)
    try:
        newest = store.result()
    except NoResult as error:
        closed = GateClosed(f"{node}: closed: {error}; run gpu-burnin run", error.exit_code)
        if under_test and (before := store.before_test()) is not None:
            with contextlib.suppress(GateClosed):
                return _opened_by(before, config, root, now)
        raise closed from error
    return _opened_by(newest, config, root, now)


def _opened_by(run: RunDirectory, config: Config, root: Path, now: datetime | None) -> evidence.Statement:
    node = config.node_name
    expect = evidence.Expectation(
        node=node,
        machine_id=host.machine_id(root),
        boot_id=host.boot_id(root),
        highest_sequence=run.sequence,
        ttl_s=None,
        allow_simulated=config.allow_simulated,
    )
    key = signing.own_public_key(config.host_key)
    try:
        return evidence.verify(signing.annotation_of(run.path), key, expect, now or datetime.now(UTC)).statement
    except evidence.EvidenceError as error:
        why = str(error).removeprefix(f"{node}: ")
        message = f"{node}: closed: {why} ({error.code}); {_advice(error, run.path)}"
        raise GateClosed(message, _exit(error), error.code, error.statement) from error


def document(node: str, answer: evidence.Statement | GateClosed) -> dict[str, Any]:
    """What check_gate found on this node as JSON values: the statement that opens the gate, or why it stays closed."""
    closed = answer if isinstance(answer, GateClosed) else None
    statement = answer.statement if isinstance(answer, GateClosed) else answer
    return {
        "schema": SCHEMA,
        "node": node,
        "open": closed is None,
        "exit_code": closed.exit_code if closed else EXIT_PASS,
        "why": str(closed).removeprefix(f"{node}: closed: ") if closed else None,
        "code": (closed.code or None) if closed else None,
        "statement": asdict(statement) if statement else None,
    }


def _exit(error: evidence.EvidenceError) -> int:
    statement = error.statement
    inconclusive = statement is not None and statement.verdict is Verdict.INCONCLUSIVE
    return EXIT_INCONCLUSIVE if inconclusive or error.code == "EVIDENCE_SIMULATED" else EXIT_FAIL


def _advice(error: evidence.EvidenceError, run_dir: Path) -> str:
    if error.code == "EVIDENCE_VERDICT":
        return f"see gpu-burnin report {run_dir}"
    if error.code == "EVIDENCE_SIMULATED":
        return "only a lab sets allow_simulated in its configuration"
    return "run gpu-burnin run"
