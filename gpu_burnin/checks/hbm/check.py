"""The memory check: it writes and reads back every cell that it can get, under patterns that catch different faults.

Errors that ECC corrects do not show here: the run watches its counters, over all checks (telemetry).
"""

from __future__ import annotations

import time

from gpu_burnin.checks import CheckContext, done_share, needed_device
from gpu_burnin.checks.hbm import selftest as hbm_selftest
from gpu_burnin.checks.hbm.faults import FAULTS, FaultyMemory
from gpu_burnin.checks.hbm.patterns import WORD_BYTES
from gpu_burnin.checks.hbm.port import HbmPort, Taken, hbm_port
from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.checks.hbm.rounds import Scan, steps, tests_of, wrong_words
from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, CheckResult, Measurement, Reason, SelftestResult, Series, verdict_of

# The first round goes on after its budget, for this part of the time that is left until the worker is ended as hung.
_LATE_SHARE = 2 / 3
# One wait of the retention test, as a share of the budget; two of them make a round.
_RETENTION_SHARE, _RETENTION_LEAST_S = 1 / 16, 0.5
# Less memory than this many caches is mostly read from the cache.
_LEAST_CACHES = 16


class Check:
    """Runs the patterns over all of the memory, one round at least, then more while time is left.

    `retention_s` is the longest wait of the retention test (extended only), in seconds.
    """

    name = "hbm"
    retention_s = 60.0

    def run(self, ctx: CheckContext) -> CheckResult:
        """Raises DeviceError without a device or without memory for the test."""
        device = needed_device(ctx, self.name)
        started = time.monotonic()
        memory = hbm_port(device)
        try:
            taken = memory.take(ctx.shapes["hbm_bytes"])
            scan = Scan(_with_faults(ctx, memory, taken), taken.size_bytes)
            rounds, sweep_s = self._rounds(ctx, scan, started)
        finally:
            memory.give_back()
        return _result(ctx, scan, taken, rounds, sweep_s, time.monotonic() - started)

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Faults in a small piece of memory: one bit, or the whole table."""
        return hbm_selftest.run(ctx)

    def _rounds(self, ctx: CheckContext, scan: Scan, started: float) -> tuple[int, float]:
        """Whole rounds that were made, and the device time of the first, in seconds.

        The first round is made whole though the budget ends. More follow until it does, unless wrong words were seen.
        """
        wait_s = min(self.retention_s, max(_RETENTION_LEAST_S, ctx.budget_s * _RETENTION_SHARE))
        latest_s = ctx.budget_s + _LATE_SHARE * ctx.late_s

        def show() -> None:
            ctx.progress(_shown(ctx, scan, time.monotonic() - started))

        rounds, sweep_s = 0, 0.0
        while True:
            for step in steps(ctx.seed, ctx.level, rounds, wait_s, show):
                spent_s = time.monotonic() - started
                if spent_s >= (ctx.budget_s if rounds else latest_s):
                    return rounds, sweep_s
                scan.do(step)
                show()
            rounds += 1
            sweep_s = sweep_s or scan.memory.seconds
            if scan.damage.words or time.monotonic() - started >= ctx.budget_s:
                return rounds, sweep_s


def _with_faults(ctx: CheckContext, memory: HbmPort, taken: Taken) -> HbmPort:
    """The memory with the faults that are to be injected below the comparison."""
    for name in ctx.inject:
        if name in FAULTS:
            fault = FAULTS[name](taken.size_bytes, ctx.seed, "retention" in tests_of(ctx.level))
            memory = FaultyMemory(memory, fault)
    return memory


def _shown(ctx: CheckContext, scan: Scan, seconds: float) -> dict[str, JSON]:
    """For the live display."""
    return {
        "phase": f"memory {scan.test}",
        "rate": scan.rates[-1][1] / 1e9 if scan.rates else 0.0,
        "rate_unit": "GB/s",
        "errors": scan.damage.words,
        "done": done_share(seconds, ctx.budget_s),
    }


def _result(ctx: CheckContext, scan: Scan, taken: Taken, rounds: int, sweep_s: float, seconds: float) -> CheckResult:
    gpu = ctx.uuid
    reasons = (*wrong_words(gpu, scan), *_not_reached(gpu, ctx, scan, taken))
    rate = Measurement("hbm_rate", scan.moved_bytes / max(scan.memory.seconds, 1e-9), "B/s")
    times = tuple(at for at, _ in scan.rates)
    return CheckResult(
        name="hbm",
        gpu=gpu,
        verdict=verdict_of(reasons),
        seconds=seconds,
        measurements=(rate,),
        coverage=_coverage(ctx, scan, taken, rounds, sweep_s),
        errors=scan.damage.errors(),
        reasons=reasons,
        series=(Series("hbm_rate", "GB/s", times, tuple(value / 1e9 for _, value in scan.rates)),),
    )


def _not_reached(gpu: str | None, ctx: CheckContext, scan: Scan, taken: Taken) -> tuple[Reason, ...]:
    """A test that has not gone over all of the memory as often as one round does has not tested it."""
    missing = _missing(ctx, scan)
    if not missing:
        return ()
    message = (
        f"the time ended before {', '.join(missing)} had gone over all {taken.size_bytes} bytes of memory: "
        "give the run more time"
    )
    details: dict[str, JSON] = {"missing": list(missing), "reached": dict(scan.reached)}
    return (make_reason("COVERAGE_LOW", "hbm", message, gpu=gpu, details=details),)


def _missing(ctx: CheckContext, scan: Scan) -> tuple[str, ...]:
    wanted: dict[str, int] = {}
    for step in steps(ctx.seed, ctx.level, 0, 0.0, lambda: None):
        wanted[step.test] = wanted.get(step.test, 0) + 1
    return tuple(test for test, times in wanted.items() if scan.reached.get(test, 0) < times)


def _coverage(ctx: CheckContext, scan: Scan, taken: Taken, rounds: int, sweep_s: float) -> HbmCoverage:
    simulated = ctx.device is None or ctx.device.simulated
    total = ctx.gpu.memory_bytes if ctx.gpu else None
    where = "host memory, no GPU memory" if simulated else "device memory"
    if taken.size_bytes < _LEAST_CACHES * taken.cache_bytes:
        where += f", in part from the cache of {taken.cache_bytes} bytes before it"
    missing = _missing(ctx, scan)
    return HbmCoverage(
        memory=where,
        covered_bytes=taken.size_bytes if scan.reached else 0,
        gpu_memory_bytes=total,
        unreachable_bytes=None if simulated or total is None else max(0, total - taken.size_bytes),
        reserve_bytes=taken.reserve_bytes,
        pieces=len(taken.regions),
        bytes_written=scan.written_bytes,
        bytes_read_back=scan.read_bytes,
        bytes_moved=scan.moved_bytes,
        rounds=rounds,
        patterns=tuple(test for test in tests_of(ctx.level) if test not in missing),
        passes=dict(scan.reached),
        sweep_seconds=sweep_s,
        # Whatever a step of a round writes it reads back and compares.
        **VerifiedTime(scan.memory.seconds).counted(),
        retention_s=scan.held_s,
        wrong_words=scan.damage.words,
        wrong_words_at_least=scan.damage.more,
        wrong_reads=scan.damage.total_reads,
        wrong_words_by_pattern=dict(scan.damage.reads),
        wrong_reads_by_lane={str(lane): count for lane, count in sorted(scan.damage.lanes.items())},
        shape_words=scan.damage.shape(),
        word_bytes=WORD_BYTES,
        ecc="counters of corrected and uncorrected errors are judged over the whole run",
        simulated=simulated,
        of_instance=ctx.gpu is not None and ctx.gpu.instance is not None,
    )
