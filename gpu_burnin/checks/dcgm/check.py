"""The dcgm check: NVIDIA's own diagnostic as one more opinion, when it is asked for. Its pass covers nothing of ours.

Not yet run on hardware. `dcgmi diag --run LEVEL --json` (DCGM documentation, dcgmi diag) tests all GPUs that its host
engine knows, so it is not started where GPUs of the node are left out of the run: they may be in use.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from gpu_burnin.checks import CheckContext, done_share
from gpu_burnin.checks.dcgm import diagnostic as dcgm
from gpu_burnin.checks.dcgm.diagnostic import NAME, DcgmUnknown
from gpu_burnin.checks.dcgm.result import DcgmCoverage
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.system.children import child_environment
from gpu_burnin.telemetry.pci import gpu_addresses
from gpu_burnin.types import CheckResult, Reason, SelftestResult, verdict_of

# The longest answer that is read: 8 GPUs and all tests are some 100 KB.
_MOST_BYTES = 16 << 20
# Where the host engine listens that the role nvidia_dcgm has set up; others listen where dcgmi looks by itself.
_SOCKET = Path("/run/nvidia-dcgm/nv-hostengine")
# It pauses during a burn-in.
_ENGINE = "nvidia-dcgm.service"
_SYSTEMCTL_TIMEOUT_S = 60.0
# What dcgmi says when nv-hostengine cannot be reached.
_NO_ENGINE = ("unable to establish a connection", "unable to connect to host engine")


@dataclass(frozen=True)
class Answer:
    """How dcgmi ended: its exit status (negative: a signal, which is how it is ended) and what it wrote."""

    exit_status: int
    out: str
    errors: str
    seconds: float


class Check:
    """Runs dcgmi once and judges its answer. Option `dcgmi`: the program's path or name."""

    name = NAME

    def run(self, ctx: CheckContext) -> CheckResult:
        """Takes the time dcgmi takes; at ctx.budget_s (seconds) it is ended."""
        level, program = dcgm.DIAG_LEVELS[ctx.level], str(ctx.options.get("dcgmi") or "dcgmi")
        coverage = DcgmCoverage(release=None, level=level, tests=())
        path, on_bus = shutil.which(program), len(gpu_addresses())
        if on_bus > len(ctx.gpus):
            message = (
                f"dcgmi diag tests all GPUs of the node and {on_bus - len(ctx.gpus)} of {on_bus} are left out of this "
                "run: it was not started; run it with all GPUs or leave the check dcgm out"
            )
            return _result(coverage, (make_reason("COVERAGE_LOW", NAME, message),))
        if path is None:
            message = (
                f"{program} was not found: install datacenter-gpu-manager-4-cuda12 or -cuda13 and start nvidia-dcgm, "
                "or leave the check dcgm out"
            )
            return _result(coverage, (make_reason("DCGM_MISSING", NAME, message),))
        with _host_engine():
            where = ["--host", f"unix://{_SOCKET}"] if _SOCKET.exists() else []
            answer = _run(ctx, [path, "diag", *where, "--run", str(level), "--json"], level)
        reasons, covered = _judged(ctx, answer, coverage)
        return _result(covered, reasons, answer.seconds)

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """None: what DCGM's detectors see is not ours to prove."""
        return ()


@contextlib.contextmanager
def _host_engine() -> Iterator[None]:
    """With the host engine running. Where it was paused it stops again: the run's other checks have the GPUs alone."""
    started = not _systemctl("is-active", "--quiet") and _systemctl("start")
    try:
        yield
    finally:
        if started:
            _systemctl("stop")


def _systemctl(*words: str) -> bool:
    try:
        command = ["systemctl", *words, _ENGINE]
        done = subprocess.run(command, capture_output=True, check=False, timeout=_SYSTEMCTL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return False  # dcgmi says what is missing
    return done.returncode == 0


def _judged(ctx: CheckContext, answer: Answer, coverage: DcgmCoverage) -> tuple[tuple[Reason, ...], DcgmCoverage]:
    """Reasons, and the coverage with what the answer says of it."""
    output = f"{answer.out} {answer.errors}".lower()
    if answer.exit_status < 0:
        message = (
            f"dcgmi diag was ended after {answer.seconds:.0f} s (signal {-answer.exit_status}): see the log of "
            "nv-hostengine, or give the run a higher level's time"
        )
        return (make_reason("DCGM_UNKNOWN", NAME, message, details={"seconds": answer.seconds}),), coverage
    if any(sign in output for sign in _NO_ENGINE):
        message = "dcgmi does not reach its host engine: start nvidia-dcgm (nv-hostengine)"
        return (make_reason("DCGM_MISSING", NAME, message),), coverage
    try:
        opinion = dcgm.parse(answer.out)
    except DcgmUnknown as error:
        tail = " ".join(answer.errors.split())[-200:]
        message = f"{error} (exit status {answer.exit_status}{'; ' + tail if tail else ''})"
        return (make_reason("DCGM_UNKNOWN", NAME, message, details={"exit_status": answer.exit_status}),), coverage
    rows = dcgm.rows(opinion, ctx.gpus)
    skipped = sum(row.result in (dcgm.SKIP, dcgm.NOT_RUN) for row in rows)
    found = replace(coverage, release=opinion.release, tests=rows, skipped=skipped)
    return tuple(dcgm.judge(opinion, answer.exit_status, ctx.gpus, coverage.level)), found


def _run(ctx: CheckContext, command: Sequence[str], level: int) -> Answer:
    """Run the command in a process group of its own, under dcgm_child; report progress once a second."""
    started = time.monotonic()
    guard = [sys.executable, "-P", "-m", "gpu_burnin.checks.dcgm.child", str(ctx.budget_s), str(os.getpid()), *command]
    environment = {**child_environment(os.environ), "LC_ALL": "C"}
    # Files and not pipes: whatever a child of dcgmi holds open, this does not wait for it.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        with subprocess.Popen(
            guard, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment, process_group=0
        ) as process:
            while process.poll() is None:
                seconds = time.monotonic() - started
                done = done_share(seconds, ctx.budget_s)
                ctx.progress({"phase": f"dcgmi diag level {level}", "done": done})
                try:
                    process.wait(1.0)
                except subprocess.TimeoutExpired:
                    continue
        return Answer(process.returncode, _text(out), _text(errors), time.monotonic() - started)


def _text(stream: BinaryIO) -> str:
    stream.seek(0)
    return stream.read(_MOST_BYTES).decode(errors="replace")


def _result(coverage: DcgmCoverage, reasons: tuple[Reason, ...], seconds: float = 0.0) -> CheckResult:
    return CheckResult(NAME, None, verdict_of(reasons), seconds, coverage=coverage, reasons=reasons)
