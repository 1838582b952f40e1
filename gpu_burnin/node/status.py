"""What this node knows of its own burn-in: newest run, evidence, gate, power waves, known GPUs. Reads files only.

What one of them cannot tell is a sentence in `problems`; the others are still reported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from gpu_burnin.api import evidence
from gpu_burnin.api import maintenance as window
from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.checks.power import grant_request as power_grant
from gpu_burnin.errors import EXIT_PASS, GpuBurninError
from gpu_burnin.hardware import load_reasons
from gpu_burnin.node import authentic, reports, signing, unit
from gpu_burnin.node.gate import GateClosed, check_gate
from gpu_burnin.node.known_gpus import KnownGpu, read_known
from gpu_burnin.node.maintenance import reader
from gpu_burnin.node.passes import deepest, with_evidence
from gpu_burnin.node.report_head import read_parts
from gpu_burnin.node.store import POWER_GRANT_DIR, RunDirectory, Store
from gpu_burnin.report.file_names import REPORT, REPORT_HTML
from gpu_burnin.report.order import ORDER_PARTS, Order, order_of
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from gpu_burnin.system.prose import STANDARD_WIDTH, wrap
from gpu_burnin.types import Action, Notice, Reason

SCHEMA = "muster-node-status/v1"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Unit:
    """The burn-in's systemd unit: whether a run is under way in it; why it failed, "" when it did not.

    `last_lines` is what its newest run of this boot printed last.
    """

    name: str
    running: bool
    failed: str = ""
    last_lines: str = ""


@dataclass(frozen=True)
class Run:
    """A run that has begun: its number, and its directory, "" where that is gone."""

    sequence: int
    path: str


@dataclass(frozen=True)
class Gate:
    """Whether kubelet may start; `exit_code` is that of `gpu-burnin gate`, `message` its sentence when closed.

    `under_test`: it was open until the test that is under way began, and what ran then may start again.
    """

    open: bool
    exit_code: int
    message: str = ""
    under_test: bool = False


@dataclass(frozen=True)
class Evidence:
    """The newest evidence that a run has left, and what the report it is about says.

    `problem` is one sentence when statement, signature and report do not belong together: then only its place is
    known. `this_boot`: it is of this boot of this machine. `passed_level`: the deepest level of the passes of this boot
    and hardware that end with it, "" for none. `order` is what to do next. `annotation` is what the node publishes.
    """

    run_id: str
    path: str
    sequence: int
    problem: str = ""
    this_boot: bool = False
    boot_id: str = ""
    verdict: str = ""
    level: str = ""
    passed_level: str = ""
    simulated: bool = False
    finished_at: str = ""
    action: str = ""
    order: Order | None = None
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[Notice, ...] = ()
    report: str = ""
    page: str = ""
    annotation: str = ""


@dataclass(frozen=True)
class Upkeep:
    """What is known of the cloud's maintenance; `notice` is None where there is no provider to ask.

    `near` is the window that keeps us from starting anything, `unknown` why nobody knows whether one is near.
    """

    notice: Maintenance | None = None
    near: str = ""
    unknown: str = ""


@dataclass(frozen=True)
class Status:
    """The state of one node. `revoked` is why the gate was closed by hand or by the cluster, None when it was not."""

    node: str
    unit: Unit
    newest_run: Run | None
    evidence: Evidence | None
    gate: Gate
    revoked: str | None
    power_grant: power_grant.Request
    known_gpus: tuple[KnownGpu, ...]
    maintenance: Upkeep = Upkeep()
    problems: tuple[str, ...] = ()
    schema: str = SCHEMA


def read_status(config: Config, root: Path = Path("/")) -> Status:
    """The state of this node. Raises GpuBurninError where the state directory may not be read."""
    store = Store(config.state_dir)
    if store.root.is_dir() and not os.access(store.root, os.R_OK | os.X_OK):
        raise GpuBurninError(f"{config.node_name}: {store.root} cannot be read; run as root")
    problems: list[str] = []

    def read_or(read: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return read()
        except GpuBurninError as error:
            problems.append(str(error))
            return otherwise

    def own_unit() -> Unit:
        found = unit.state()
        return Unit(unit.UNIT, found.running, found.failed, unit.last_lines())

    return Status(
        node=config.node_name,
        unit=read_or(own_unit, Unit(unit.UNIT, running=False)),
        newest_run=read_or(lambda: _newest_run(store), None),
        evidence=_newest_evidence(store, config, root),
        gate=_gate(config, root),
        revoked=store.revoked(),
        power_grant=read_or(lambda: power_grant.state(store.root / POWER_GRANT_DIR), power_grant.NO_REQUEST),
        known_gpus=read_or(lambda: read_known(config.state_dir), ()),
        maintenance=_upkeep(config, datetime.now(UTC)),
        problems=tuple(problems),
    )


def _upkeep(config: Config, now: datetime) -> Upkeep:
    notice = reader.kept(config, now)
    return Upkeep(notice, window.active(notice, now, config.maintenance_before_s), window.unknown(notice))


def _newest_run(store: Store) -> Run | None:
    number = store.counter()
    path = next((str(run.path) for run in store.runs() if run.sequence == number), "")
    return Run(number, path) if number else None


def _gate(config: Config, root: Path) -> Gate:
    try:
        check_gate(config, root)
    except GateClosed as error:
        under_test = False
        # Where evidence was refused, the run before it is not asked either: its signature is not verified again.
        with contextlib.suppress(GpuBurninError):
            under_test = not error.code and bool(check_gate(config, root, under_test=True))
        return Gate(open=False, exit_code=error.exit_code, message=str(error), under_test=under_test)
    except GpuBurninError as error:
        return Gate(open=False, exit_code=error.exit_code, message=f"gpu-burnin gate does not work: {error}")
    return Gate(open=True, exit_code=EXIT_PASS)


def _newest_evidence(store: Store, config: Config, root: Path) -> Evidence | None:
    runs = with_evidence(store)
    if not runs:
        return None
    run = runs[0]
    try:
        found = _evidence(run, config, root)
    except GpuBurninError as error:
        return Evidence(run.run_id, str(run.path), run.sequence, problem=str(error))
    stands = deepest(runs) if found.this_boot else None
    return replace(found, passed_level=stands.level) if stands is not None else found


def _evidence(run: RunDirectory, config: Config, root: Path) -> Evidence:
    """Raises GpuBurninError for what cannot be believed."""
    annotation = signing.annotation_of(run.path)
    envelope = evidence.decode_annotation(annotation)
    if not evidence.signature_holds(envelope.statement, envelope.signature, signing.own_public_key(config.host_key)):
        raise GpuBurninError(f"{run.path / EVIDENCE} is not signed by this host's key {config.host_key}")
    statement = evidence.read_envelope(envelope).statement
    this_boot = (statement.machine_id, statement.boot_id) == (host.machine_id(root), host.boot_id(root))
    found = Evidence(
        run_id=run.run_id,
        path=str(run.path),
        sequence=run.sequence,
        this_boot=this_boot,
        boot_id=statement.boot_id,
        verdict=str(statement.verdict),
        level=statement.level,
        simulated=statement.simulated,
        finished_at=statement.finished_at,
        annotation=annotation,
    )
    return _revoked(found, statement) if statement.level == evidence.WATCHED else _reported(found, run)


def _reported(found: Evidence, run: RunDirectory) -> Evidence:
    """With what the run's report says."""
    data = reports.read(run.path / REPORT)
    authentic.refuse_changed(run.path / REPORT, data)
    report, page = read_parts(run.path / REPORT, ORDER_PARTS), run.path / REPORT_HTML
    return replace(
        found,
        action=str(report.action),
        order=order_of(report),
        reasons=report.reasons,
        warnings=report.warnings,
        report=str(run.path / REPORT),
        page=str(page) if page.is_file() else "",
    )


def _revoked(found: Evidence, statement: evidence.Statement) -> Evidence:
    """With what the agent has signed; there is no report of it."""
    known = load_reasons().get(statement.code)
    action = Action(statement.action) if statement.action else known.action if known else Action.RETEST
    reason = Reason(statement.code, evidence.WATCHED, statement.message, action=action)
    return replace(found, action=str(action), reasons=(reason,))


_POWER = {
    power_grant.State.NONE: "nothing is asked",
    power_grant.State.WAITING: "a burn-in waits for a grant of {waves_s:.0f} s; give it with: gpu-burnin power-grant",
    power_grant.State.RUNNING: "under way, {waves_s:.0f} s in all",
    power_grant.State.OVER: "over",
    power_grant.State.GIVEN_UP: "the last burn-in waited {wait_s:.0f} s for a grant and went on without them",
}


def render(status: Status, width: int = STANDARD_WIDTH) -> str:
    """The status for people: one fact after the other."""
    newest, found = status.newest_run, status.evidence
    unit_text = "none under way"
    if status.unit.running:
        unit_text = f"under way in {status.unit.name}"
    elif status.unit.failed:
        unit_text = f"{status.unit.name} failed ({status.unit.failed}): {status.unit.last_lines}"
    elif status.unit.last_lines not in ("", unit.NOTHING) and not (found and found.this_boot):
        # One that tested nothing ends well for systemd. Of evidence with a problem nobody knows the boot.
        left = "said last" if found and found.problem else "left no evidence of this boot"
        unit_text = f"none under way; {status.unit.name} {left}: {status.unit.last_lines}"
    lines = [
        ("node", status.node),
        ("burn-in", unit_text),
        ("newest run", f"{newest.sequence} {newest.path}".strip() if newest else "none has begun"),
        ("evidence", _evidence_text(found) if found else "none"),
        *(("reason", f"{reason.code}: {reason.message}") for reason in (found.reasons if found else ())),
        *((("order", found.order.text),) if found and found.order and found.verdict != "PASS" else ()),
        ("gate", "open" if status.gate.open else status.gate.message.removeprefix(f"{status.node}: ")),
        ("power waves", _POWER[status.power_grant.state].format(**asdict(status.power_grant))),
        ("known GPUs", ", ".join(gpu.serial or gpu.uuid for gpu in status.known_gpus) or "none"),
        *((("maintenance", _maintenance_text(status.maintenance)),) if status.maintenance.notice else ()),
        *(("problem", problem) for problem in status.problems),
    ]
    wrapped = (wrap(text, width, f"{name + ':':13}", " " * 13) for name, text in lines)
    return "".join(f"{line}\n" for found_lines in wrapped for line in found_lines)


def _maintenance_text(found: Upkeep) -> str:
    notice = found.notice
    later = notice is not None and notice.state == window.SCHEDULED
    otherwise = f"announced from {notice.not_before}" if notice and later else "none is announced"
    return found.near or found.unknown or otherwise


def _evidence_text(found: Evidence) -> str:
    if found.problem:
        return found.problem
    boot = "of this boot" if found.this_boot else "of another boot"
    simulated = ", simulated" if found.simulated else ""
    if found.level == evidence.WATCHED:
        return f"taken back by the agent, {boot}{simulated}, {found.finished_at}"
    return f"{found.verdict} of run {found.sequence} at level {found.level}, {boot}{simulated}, {found.finished_at}"
