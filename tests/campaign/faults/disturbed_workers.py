"""Real workers under the real supervisor, disturbed from outside while they work together: signals, and noise in what
they share. Nothing in the program takes part in the disturbance."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from gpu_burnin.engine.plan import Plan
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import Gpu, Verdict
from tests.campaign.leftovers import memory_files, until
from tests.campaign.model import MISSED, NOT_TESTED, SEEN
from tests.campaign.node import observe, plan_of, verdict
from tests.support.executor_helpers import run_plan

_PAGE = 4096
# Seconds of a run, of which the check gets what is left after its end; how long a rank is waited for.
_TOTAL_S, _WAIT_S, _SLACK_S = 5.0, 1.0, 3.0
_NOISE_S, _FIND_S = 1.2, 5.0


@dataclass(frozen=True)
class Disturbance:
    """What happens to the worker of one GPU at a check, and what has to come of it: `code` on its GPU. `also` may be
    reported of it and of the others, which have nothing and must not fail, unless what is wrong `spreads` to all."""

    check: str
    inject: Callable[[int], None]
    code: str
    verdict: Verdict
    also: frozenset[str] = frozenset()
    nccl_tests: str = NOT_TESTED
    spreads: bool = False


def _signal(number: signal.Signals) -> Callable[[int], None]:
    def inject(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    return inject


def noise_into(name: str, first_byte: int) -> Callable[[int], None]:
    """Turns over bits in the memory that a worker shares under a name, again and again, from some byte on."""

    def inject(pid: int) -> None:
        threading.Thread(target=_noise, args=(pid, name, first_byte), daemon=True).start()

    return inject


def _noise(pid: int, name: str, first_byte: int) -> None:
    found: list[int] = []

    def look() -> bool:
        for path in memory_files(pid):
            with contextlib.suppress(OSError):
                if name in str(path.readlink()):
                    found.append(os.open(path, os.O_RDWR))
                    return True
        return False

    if not until(look, _FIND_S):
        return
    try:
        size = os.fstat(found[0]).st_size
        with mmap.mmap(found[0], size) as memory:
            source, end = random.Random(pid), time.monotonic() + _NOISE_S
            while time.monotonic() < end:
                memory[source.randrange(first_byte, size)] ^= 0x40
    finally:
        os.close(found[0])


_OTHERS = frozenset({"NCCL_TIMEOUT", "COVERAGE_LOW", "CHECK_ERROR"})
DISTURBANCES: Mapping[str, Disturbance] = {
    "rank killed": Disturbance(
        "nccl", _signal(signal.SIGKILL), "WORKER_DIED", Verdict.INCONCLUSIVE, also=_OTHERS, nccl_tests=SEEN
    ),
    "rank hangs": Disturbance("nccl", _signal(signal.SIGSTOP), "HUNG", Verdict.FAIL, also=_OTHERS, nccl_tests=MISSED),
    # The first page of a rank's block has its counters: noise there would be another fault, a rank that goes astray.
    "noise in what ranks share": Disturbance(
        "nccl", noise_into("gpu-burnin-nccl-ring", _PAGE), "NCCL_DATA", Verdict.FAIL, nccl_tests=SEEN, spreads=True
    ),
    "noise in a window of copies": Disturbance(
        "nvlink", noise_into("gpu-burnin-nvlink", 0), "P2P_CORRUPTED", Verdict.FAIL
    ),
}


def run_disturbed(
    disturbance: Disturbance, gpus: tuple[Gpu, ...], faulty: int, seed: int, variables: Mapping[str, str]
) -> tuple[Judgement, Plan]:
    """Run one check on real workers; disturb the faulty GPU's worker at the first progress that it reports."""
    made = plan_of(gpus, disturbance.check, seed=seed, options={"collective_wait_s": _WAIT_S})
    limits = replace(made.deadlines, slack_s=_SLACK_S, late_s=_SLACK_S, term_grace_s=0.3, kill_grace_s=5.0)
    plan = replace(made, total_s=_TOTAL_S, deadlines=limits)
    at_work: dict[str, int] = {}
    disturbed: list[int] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event.get("gpu") != gpus[faulty].uuid or event.get("check") != disturbance.check:
            return
        if event["event"] == "check_started":
            at_work["pid"] = int(event["pid"])
        elif event["event"] == "progress" and not disturbed and "pid" in at_work:
            disturbed.append(at_work["pid"])
            disturbance.inject(at_work["pid"])

    with mock.patch.dict(os.environ, variables):
        done = run_plan(plan, on_event=on_event)
    assert disturbed, "the worker reported no progress from within the check: nothing was disturbed"
    killed = frozenset(done.killed_pids)
    return verdict(observe(plan, done.results, done.selftests, killed_pids=killed)), plan
