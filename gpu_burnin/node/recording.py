"""What a run that has its verdict leaves on the node: report, evidence, metrics, the GPUs that it makes known.

Nothing that cannot be written takes the verdict away. It is one sentence beside it, and a PASS without evidence is no
PASS for anybody: the gate stays closed.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpu_burnin.api import evidence
from gpu_burnin.api.run_files import EVIDENCE, JOURNAL
from gpu_burnin.engine.plan import Plan
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import signing
from gpu_burnin.node.known_gpus import KNOWN_GPUS, makes_known, remember
from gpu_burnin.node.passes import deepest, with_evidence
from gpu_burnin.node.store import RunDirectory, Store
from gpu_burnin.report import model, openmetrics, outputs
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.report.series import RunSeries
from gpu_burnin.settings.config import Config
from gpu_burnin.system.files import write_atomic
from gpu_burnin.system.host import Host
from gpu_burnin.system.own_name import host_name
from gpu_burnin.types import JSON, Verdict


@dataclass(frozen=True)
class Finished:
    """A run that has its verdict.

    `planted`: it was asked to inject faults. `signed`: evidence of it is due. `unjournaled` is what kept the journal
    from being written to its end, None for nothing; `revoked` why the gate was closed by hand or by the cluster when
    the run began. `hardware` is the identity whose hash the report has.
    """

    run: RunDirectory
    plan: Plan
    host: Host
    report: model.Report
    series: RunSeries
    planted: bool
    signed: bool
    unjournaled: OSError | None = None
    revoked: str | None = None
    hardware: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict:
        """PASS, FAIL or INCONCLUSIVE."""
        return self.report.verdict


@dataclass(frozen=True)
class Recorded:
    """Whether evidence was due and could not be left, and a sentence for each problem."""

    lost: bool
    problems: tuple[str, ...]


def record(finished: Finished, store: Store, config: Config) -> Recorded:
    """Leave all files of a run; call with the lock held. Raises ReportError for a report that does not fit its schema.

    Of a run with injected faults alerts, which watch the metrics, see nothing; nor of a PASS that does not count.
    """
    run, written = finished.run, outputs.write(finished.run.path, finished.report, finished.series)
    failed = dict(written.failed)
    if finished.unjournaled is not None:
        failed[JOURNAL] = _why(finished.unjournaled)
    problems = [_unwritten(run, failed)] if failed else []
    lost = _sign(finished, written, config) if finished.signed else None
    problems += [] if lost is None else [lost]
    if REPORT not in failed:
        problems += _tried(f"{store.latest} cannot be set", lambda: _finish(run, store))
    passed = finished.verdict is Verdict.PASS
    if passed and lost is None:
        problems += _opened(finished, store)
        problems += _made_known(finished, config)
    if not finished.planted and not (passed and lost is not None):
        problems += _exported(finished, config)
    return Recorded(lost is not None, tuple(problems))


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _tried(what: str, step: Callable[[], object]) -> list[str]:
    """The sentence for a step that an error of the system kept from being done."""
    try:
        step()
    except OSError as error:
        return [f"{host_name()}: {what}: {_why(error)}; make room or fix it"]
    return []


def _finish(run: RunDirectory, store: Store) -> None:
    """However many tests of idle nodes come after it, the pass of the deepest level that stands is kept with them."""
    stands = deepest(with_evidence(store))
    store.finish(run, spared=stands.run if stands is not None else None)


def _unwritten(run: RunDirectory, failed: Mapping[str, str]) -> str:
    reasons = dict.fromkeys(failed.values())
    whys = (f"{', '.join(name for name in failed if failed[name] == why)} ({why})" for why in reasons)
    return f"{host_name()}: not written in {run.path}: {'; '.join(whys)}; make room or repair the disk"


def _sign(finished: Finished, written: outputs.Written, config: Config) -> str | None:
    """Leave evidence once the report it is about exists; what came in between, and what that means."""
    run, report, verdict = finished.run, finished.report, finished.verdict
    means = (
        "this PASS does not count and the gate stays closed; fix it and run gpu-burnin run again"
        if verdict is Verdict.PASS
        else f"the {verdict} stands and the gate stays closed"
    )
    problem = f"{REPORT}, which the evidence describes, could not be written" if REPORT in written.failed else ""
    if not problem:
        statement = evidence.Statement(
            node=report.node,
            machine_id=finished.host.machine_id,
            boot_id=finished.host.boot_id,
            report_sha256=hashlib.sha256(written.report).hexdigest(),
            verdict=verdict,
            level=report.level,
            plan_sha256=report.plan_sha256,
            hardware_sha256=report.hardware_sha256,
            simulated=report.simulated,
            sequence=run.sequence,
            finished_at=report.finished_at,
            action=str(report.action) if verdict is Verdict.FAIL else "",
            **_first_reason(report),
        )
        try:
            signing.write_evidence(run.path, statement, finished.hardware, config.host_key)
        except GpuBurninError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot be written in {run.path}: {_why(error)}"
    if not problem:
        return None
    with contextlib.suppress(OSError):  # perhaps there, but not for certain on the disk
        (run.path / EVIDENCE).unlink(missing_ok=True)
    return f"{host_name()}: there is no evidence of this run ({problem}): {means}"


def _first_reason(report: model.Report) -> dict[str, str]:
    """Code and message of the reason that a report names first; none for a PASS."""
    first = next(iter(report.reasons), None)
    return {} if first is None else {"code": first.code, "message": evidence.one_line(first.message)}


def _opened(finished: Finished, store: Store) -> list[str]:
    """Take away what closed the gate before the run began."""
    reason = finished.revoked
    if reason is None or not finished.signed:
        return []
    return _tried(
        f"the gate stays closed, since {store.root}/revoked cannot be removed", lambda: store.clear_revocation(reason)
    )


def _made_known(finished: Finished, config: Config) -> list[str]:
    """Put the GPUs that have passed an extended burn-in on record, so that none asks for it again."""
    if not makes_known(finished.plan):
        return []
    report, run_id = finished.report, finished.run.run_id
    return _tried(
        f"{config.state_dir / KNOWN_GPUS} cannot be written, so these GPUs ask for an extended burn-in again",
        lambda: remember(
            config.state_dir,
            finished.plan.gpus,
            run_id=run_id,
            passed_at=report.finished_at,
            simulated=report.simulated,
        ),
    )


def _exported(finished: Finished, config: Config) -> list[str]:
    """Metrics for node_exporter, which is not root."""
    path = config.metrics_file
    if path is None:
        return []
    return _tried(
        f"metrics_file {path} cannot be written, so node_exporter shows the run before",
        lambda: write_atomic(path, openmetrics.to_openmetrics(finished.report), mode=0o644),
    )
