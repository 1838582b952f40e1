"""Ways in which a worker, its host or the disk fails under the supervisor, as data."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_burnin.types import Verdict
from tests.campaign.model import MISSED, NOT_TESTED, SEEN

FAIL, INCONCLUSIVE = Verdict.FAIL, Verdict.INCONCLUSIVE


@dataclass(frozen=True)
class ExecutorFault:
    """One misbehaviour of one GPU's worker: the mode of proxy_worker.py, and what has to come of it.

    `deaf`: no signal reaches the worker, as with a process that hangs in the driver. `kills` are the kernel's kills
    for lack of memory that are counted from the worker's start on.
    `gpu_burn` and `dcgm` say what those tools make of it (sources in test_executor.py).
    """

    mode: str
    code: str
    verdict: Verdict
    deaf: bool = False
    kills: int = 0
    gpu_burn: str = NOT_TESTED
    dcgm: str = NOT_TESTED

    @property
    def name(self) -> str:
        """How the matrix calls it."""
        extra = ", cannot be killed" if self.deaf else ", by the kernel for memory" if self.kills else ""
        return f"worker {self.mode}{extra}"


def _death(mode: str) -> ExecutorFault:
    """A process that dies shows in both tools: gpu-burn prints DIED!, DCGM's diagnostic process is gone."""
    return ExecutorFault(mode, "WORKER_DIED", FAIL, gpu_burn=SEEN, dcgm=SEEN)


def _protocol(mode: str) -> ExecutorFault:
    return ExecutorFault(mode, "WORKER_DIED", FAIL)


def _hang(mode: str, code: str = "HUNG", *, deaf: bool = False) -> ExecutorFault:
    """Without a report there is no error for gpu-burn, which then says OK; DCGM has hang detection."""
    return ExecutorFault(mode, code, FAIL, deaf=deaf, gpu_burn=MISSED, dcgm=SEEN)


EXECUTOR_FAULTS: dict[str, ExecutorFault] = {
    fault.name: fault
    for fault in (
        _death("killed"),
        _death("segfault"),
        _death("bus error"),
        _death("exits with 0"),
        _death("exits with 1"),
        ExecutorFault("once killed", "WORKER_DIED", INCONCLUSIVE, gpu_burn=SEEN, dcgm=SEEN),
        ExecutorFault("killed", "OUT_OF_MEMORY", INCONCLUSIVE, kills=1),
        _hang("hangs"),
        _hang("ignores sigterm"),
        _hang("hangs", "WEDGED", deaf=True),
        ExecutorFault("closes its output", "WORKER_DIED", FAIL),
        ExecutorFault("dies at start", "WORKER_DIED", FAIL, gpu_burn=SEEN, dcgm=SEEN),
        ExecutorFault("once dies at start", "WORKER_DIED", INCONCLUSIVE, gpu_burn=SEEN, dcgm=SEEN),
        _hang("hangs at start"),
        ExecutorFault("cannot open", "CHECK_ERROR", INCONCLUSIVE),
        ExecutorFault("fails", "CHECK_ERROR", INCONCLUSIVE),
        *map(
            _protocol,
            ("text", "binary", "array", "no type", "unknown message", "progress without data", "endless line",
             "half a result", "result of another check", "result of another gpu", "result with an unknown verdict",
             "result without a verdict", "result with a number for a list"),
        ),
        ExecutorFault("failing result without a reason", "COVERAGE_LOW", FAIL),
        _death("selftest killed"),
        _death("selftest segfault"),
        _death("selftest bus error"),
        _death("selftest abort"),
        ExecutorFault("once selftest segfault", "WORKER_DIED", INCONCLUSIVE, gpu_burn=SEEN, dcgm=SEEN),
        ExecutorFault("selftest reports damage", "ECC_UNCORRECTED", FAIL),
        ExecutorFault("selftest was wrong before a fault", "HBM_BIT_ERROR", FAIL),
        ExecutorFault("selftest could not run", "SELFTEST_BLIND", INCONCLUSIVE),
        _hang("selftest hangs"),
        ExecutorFault("selftest did not see a fault", "SELFTEST_BLIND", INCONCLUSIVE),
        ExecutorFault("selftest injected nothing", "SELFTEST_BLIND", INCONCLUSIVE),
        ExecutorFault("selftest without faults", "SELFTEST_BLIND", INCONCLUSIVE),
    )
}  # fmt: skip
