"""Taking this node's admission back: the local gate first, then a signed statement, which is published like a run's.

Each step is on the disk before the next, and done again when the agent was killed between two.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gpu_burnin.api import evidence
from gpu_burnin.api.evidence_codes import FATAL
from gpu_burnin.api.run_files import EVIDENCE, HARDWARE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_reasons
from gpu_burnin.node import signing
from gpu_burnin.node.store import NoResult, Store
from gpu_burnin.node.watch.findings import Finding
from gpu_burnin.node.watch.kept import Memory, Pending
from gpu_burnin.settings.config import Config
from gpu_burnin.system import hardware_identity, host
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import rfc3339_s
from gpu_burnin.system.files import parse_json, read_bytes, write_atomic
from gpu_burnin.types import JSON, Action, Verdict

REVOCATION = "revocation.json"


@dataclass(frozen=True)
class Newest:
    """What the result that counts for the node says, where there is one."""

    statement: evidence.Statement
    hardware: Mapping[str, JSON]


class Revoker:
    """Revokes, and finishes what was begun. `simulated` says whether a real GPU is behind what was seen."""

    def __init__(self, config: Config, memory: Memory, root: Path = Path("/")) -> None:
        self.config, self.memory, self.root = config, memory, root
        self.store = Store(config.state_dir)
        self.simulated = config.kernel_log != "auto"

    def newest(self) -> Newest | None:
        """The result that counts for the node, of this machine; None where there is none that can be read."""
        try:
            return self._newest()
        except (GpuBurninError, OSError, ValueError):
            return None

    def wanted(self, finding: Finding) -> bool:
        """Whether a fatal finding changes anything: the newest FAIL of this boot may have said as much already.

        Before the first result of a boot there is nothing to take back: the gate is closed, and the burn-in to come
        judges what is there by then, and says more of it.
        """
        try:
            newest = self._newest()
        except NoResult:
            return False
        except (GpuBurninError, OSError, ValueError):
            return True  # what the node has said cannot be read: what was found must not be lost for it
        if newest.statement.boot_id != self.memory.kept.boot_id:
            return False
        if newest.statement.verdict is not Verdict.FAIL:
            return True
        return finding.code in FATAL and newest.statement.code not in FATAL

    def begin(self, finding: Finding) -> None:
        """Close the local gate, and note that the rest is due. Raises GpuBurninError and OSError."""
        message = evidence.one_line(finding.message)
        # Noted first: a gate that is closed by a file alone says nothing to the cluster.
        reason = load_reasons().get(finding.code)
        action = finding.action or (reason.action if reason is not None else Action.NONE)
        self.memory.change(pending=Pending(finding.code, message, self._counter(), str(action)))
        self.store.revoke(_reason(finding.code, message))

    def finish(self, now: datetime) -> bool:
        """Sign the statement that is due; False while a burn-in has the store. Raises GpuBurninError and OSError."""
        pending = self.memory.kept.pending
        if pending is None:
            return True
        if self.store.held():
            return False
        with self.store.locked():
            # A run that has begun since has judged what the kernel log and the GPUs said before it.
            if self.store.counter() == pending.after_sequence or pending.after_sequence is None:
                self.store.revoke(_reason(pending.code, pending.message))
                self._sign(pending, now)
            elif self._passed_since(pending.after_sequence):
                self.store.clear_revocation(_reason(pending.code, pending.message))
        self.memory.change(pending=None)
        return True

    def _newest(self) -> Newest:
        path = self.store.result().path
        statement = evidence.parse_statement(read_bytes(path / EVIDENCE, follow=False))
        return Newest(statement, hardware_identity.checked(parse_json(read_bytes(path / HARDWARE, follow=False))))

    def _counter(self) -> int | None:
        try:
            return self.store.counter()
        except GpuBurninError:
            return None

    def _passed_since(self, sequence: int) -> bool:
        newest = self.newest()
        return newest is not None and newest.statement.sequence > sequence and newest.statement.verdict is Verdict.PASS

    def _sign(self, pending: Pending, now: datetime) -> None:
        newest = self.newest()
        same_boot = newest is not None and newest.statement.boot_id == self.memory.kept.boot_id
        hardware = (
            newest.hardware
            if newest is not None and same_boot
            else hardware_identity.identity((), "", os.uname().release)
        )
        run = self.store.new_run(now)
        try:
            said = canonical_json(
                {
                    "schema": "muster-revocation/v1",
                    "node": self.config.node_name,
                    "boot_id": self.memory.kept.boot_id,
                    "code": pending.code,
                    "message": pending.message,
                    "found_after_run": pending.after_sequence,
                    "at": rfc3339_s(now),
                }
            )
            write_atomic(run.path / REVOCATION, said)
            statement = evidence.Statement(
                node=self.config.node_name,
                machine_id=host.machine_id(self.root),
                boot_id=self.memory.kept.boot_id,
                report_sha256=hashlib.sha256(said).hexdigest(),
                verdict=Verdict.FAIL,
                level=evidence.WATCHED,
                plan_sha256=hashlib.sha256(evidence.WATCHED.encode()).hexdigest(),
                hardware_sha256=hardware_identity.digest(hardware),
                simulated=newest.statement.simulated if newest is not None and same_boot else self.simulated,
                sequence=run.sequence,
                finished_at=rfc3339_s(now),
                code=pending.code,
                message=pending.message,
                action=pending.action,
            )
            signing.write_evidence(run.path, statement, hardware, self.config.host_key)
        except BaseException:
            shutil.rmtree(run.path, ignore_errors=True)
            raise
        self.store.begin(run)


def annotation(store: Store) -> tuple[bool, str | None]:
    """Whether the node has something to say, and the annotation: None where its newest run has left no evidence."""
    try:
        return True, signing.annotation_of(store.result().path)
    except NoResult as error:
        return error.run > 0, None
    except GpuBurninError:  # evidence or counter that cannot be read: nothing speaks for the node
        return True, None


def _reason(code: str, message: str) -> str:
    return f"{code}: {message} (gpu-burnin watch)"
