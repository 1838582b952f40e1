"""The sm check: every SM runs small kernels of every kind, and each result is compared with the host's.

GEMMs keep the tensor cores busy but say little about a single SM's other units. Here each block says on which
SM it ran, so a wrong word names its SM, and an SM that never ran is noticed.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gpu_burnin.checks import CheckContext, done_share, needed_device
from gpu_burnin.checks.selftest import hindered, injected
from gpu_burnin.checks.sm.expected import Expected
from gpu_burnin.checks.sm.faults import FAULT_NAMES, make_fault
from gpu_burnin.checks.sm.golden import expected
from gpu_burnin.checks.sm.judge import Verdicts, WrongSm, describe, judge, repeat_word
from gpu_burnin.checks.sm.kernels import FUNCTIONS, KERNELS, SmFault, SmRun, functions_at
from gpu_burnin.checks.sm.port import SmPort, sm_port
from gpu_burnin.checks.sm.result import SmCoverage
from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.exact.operands import mix
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, CheckResult, Reason, SelftestResult, Verdict, verdict_of

# Rounds of each kernel in a launch. On a GPU they fill some tenths of a millisecond while the host's part stays
# in the milliseconds, and the shared kernel goes four times through all windows of the largest block; the
# simulated SMs run thread by thread in Python.
ROUNDS = {"fp32": 256, "fp64": 128, "int": 256, "special": 2, "shuffle": 128, "shared": 32, "atomic": 16}
ROUNDS_SIMULATED = {"fp32": 4, "fp64": 4, "int": 4, "special": 1, "shuffle": 4, "shared": 2, "atomic": 2}
_MAX_EXAMINED = 8
_MAX_ERRORS = 32
_PROGRESS_EVERY_S = 0.5
_REPEAT_WORDS = {
    "right": "a repeat came out right",
    "same": "a repeat came out wrong in the same way",
    "other": "a repeat came out wrong in another way",
    "not reached": "a repeat did not reach it",
}


@dataclass
class _Tally:
    """What one run of the check has seen so far."""

    covered: dict[str, set[int]] = field(default_factory=dict)
    blocks: Counter[str] = field(default_factory=Counter)
    launches: int = 0
    seeds: int = 0
    moved_bytes: int = 0
    time: VerifiedTime = field(default_factory=lambda: VerifiedTime.of(KERNELS))
    wrong_blocks: int = 0
    errors: list[dict[str, JSON]] = field(default_factory=list)
    found: dict[tuple[JSON, ...], Reason] = field(default_factory=dict)

    @property
    def sms(self) -> set[int]:
        """SMs that ran every kernel."""
        return set.intersection(*self.covered.values()) if self.covered else set()

    def add(self, kernel: str, run: SmRun, verdicts: Verdicts) -> None:
        self.covered.setdefault(kernel, set()).update(verdicts.covered)
        self.blocks[kernel] += run.smid.size
        self.launches += run.launches
        self.time.add(run.seconds, kernel)
        self.moved_bytes += 2 * run.rows.nbytes  # written by the kernel, read for the host
        self.wrong_blocks += sum(entry.blocks for entry in verdicts.wrong) + verdicts.silent


class Check:
    """Goes through the kernels with ever new seeds until the budget is spent."""

    name = "sm"

    def run(self, ctx: CheckContext) -> CheckResult:
        """At least one whole round of the kernels. Raises DeviceError without a device."""
        sms = sm_port(needed_device(ctx, self.name))
        started = shown = time.monotonic()
        tally = _Tally()
        faults = [make_fault(name, ctx.seed) for name in ctx.inject if name in FAULT_NAMES]
        for index, (kernel, seed, optional) in enumerate(_schedule(ctx.seed)):
            now = time.monotonic()
            if optional and now - started >= ctx.budget_s:
                break
            fault = next((f for f in faults if f.hits(kernel)), None)
            _one(ctx, sms, kernel, seed, fault, tally)
            if index == 0 or now - shown >= _PROGRESS_EVERY_S:
                shown = now
                done = done_share(now - started, ctx.budget_s)
                ctx.progress({"phase": f"sm {kernel}", "errors": tally.wrong_blocks, "done": done})
        reasons = (*tally.found.values(), *_missing(ctx, sms, tally))
        return CheckResult(
            name=self.name,
            gpu=ctx.uuid,
            verdict=verdict_of(reasons),
            seconds=time.monotonic() - started,
            coverage=_coverage(sms, tally),
            errors=tuple(tally.errors),
            reasons=reasons,
        )

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Inject into every kernel, and the ways in which SMs can be missed; raises DeviceError without a device."""
        sms = sm_port(needed_device(ctx, self.name))
        results: list[SelftestResult] = []
        wrong: set[str] = set()  # kernels that came out wrong with no fault injected: no detector is proven with them
        for name, kernel in selftest_faults(ctx.selftest_full):
            if kernel not in wrong:
                results.append(_inject(ctx, sms, name, kernel))
                wrong |= {kernel} if results[-1].real else set()
        return tuple(results)


def selftest_faults(full: bool) -> Iterator[tuple[str, str]]:
    """Fault and kernel: one flipped bit in each kernel, and each fault of a kind of its own; all pairs when `full`."""
    for kernel in KERNELS:
        yield "bitflip", kernel
    own = {"dropped_lane": "shuffle", "lost_atomic": "atomic", "wrong_special": "special"}
    yield from own.items()
    yield "special_everywhere", "special"
    for kernel in ("fp32", "fp64", "int", "shared") if full else ("int",):
        yield "stuck_bit", kernel
    for name in ("absent_sm", "bad_smid", "skipped_launch"):
        for kernel in KERNELS if full else ("int",):
            yield name, kernel


def _schedule(seed: int) -> Iterator[tuple[str, int, bool]]:
    """Kernel, a seed that never comes twice, and whether it may be left out (all but the first round)."""
    for index in itertools.count():
        for number, kernel in enumerate(KERNELS):
            yield kernel, mix(seed + index * len(KERNELS) + number), index > 0


def _rounds(sms: SmPort, kernel: str) -> int:
    return (ROUNDS_SIMULATED if sms.simulated else ROUNDS)[kernel]


def _one(ctx: CheckContext, sms: SmPort, kernel: str, seed: int, fault: SmFault | None, tally: _Tally) -> None:
    rounds = _rounds(sms, kernel)
    golden = expected(kernel, seed, rounds)
    run = sms.run(kernel, seed, rounds, fault)
    verdicts = judge(run, golden)
    tally.seeds += 1
    tally.add(kernel, run, verdicts)
    if verdicts.clean:
        return
    again = _Repeat(sms, kernel, seed, rounds, fault, golden)
    for reason, entry in _reasons(ctx, kernel, verdicts, again):
        # The same thing wrong on the same SM in the same kernel is reported once; the entry's keys show what it is.
        tally.found.setdefault((kernel, entry["sm"], tuple(entry)), reason)
        if len(tally.errors) < _MAX_ERRORS:
            tally.errors.append({**entry, "seed": f"{seed:#x}", "rounds": rounds})


@dataclass
class _Repeat:
    """The same launch once more, made when first asked for."""

    sms: SmPort
    kernel: str
    seed: int
    rounds: int
    fault: SmFault | None
    golden: Expected
    verdicts: Verdicts | None = None

    def judged(self) -> Verdicts:
        if self.verdicts is None:
            run = self.sms.run(self.kernel, self.seed, self.rounds, self.fault)
            self.verdicts = judge(run, self.golden)
        return self.verdicts


def _reasons(
    ctx: CheckContext, kernel: str, verdicts: Verdicts, again: _Repeat
) -> Iterator[tuple[Reason, dict[str, JSON]]]:
    """Everything that is wrong in one run, with its entry among the errors."""

    def made(message: str, entry: dict[str, JSON], severity: Verdict | None = None) -> tuple[Reason, dict[str, JSON]]:
        reason = make_reason("SM_MISMATCH", "sm", message, gpu=ctx.uuid, details=entry, severity=severity)
        return reason, entry

    for wrong in verdicts.wrong[:_MAX_EXAMINED]:
        repeat = repeat_word(wrong, again.judged())
        who = "an SM that is not known" if wrong.sm is None else f"SM {wrong.sm}"
        entry = {**describe(kernel, wrong), "repeat": repeat, "bits": _bits(wrong)}
        yield made(f"{who} computed {_what(kernel, wrong, entry)}; {_REPEAT_WORDS[repeat]}", entry)
    if len(verdicts.wrong) > _MAX_EXAMINED:
        left: list[JSON] = [entry.sm for entry in verdicts.wrong]
        text = f"{len(verdicts.wrong)} SMs computed the {kernel} kernel wrong; {_MAX_EXAMINED} of them are shown"
        yield made(text, {"kernel": kernel, "sm": None, "sms": left})
    if verdicts.common is not None:
        repeat = repeat_word(verdicts.common, again.judged())
        entry = {**describe(kernel, verdicts.common), "repeat": repeat, "bits": _bits(verdicts.common)}
        text = (
            f"all {len(verdicts.covered)} SMs alike computed {_what(kernel, verdicts.common, entry)}; "
            f"this cannot tell the chip from its driver or compiler; {_REPEAT_WORDS[repeat]}"
        )
        yield made(text, entry, Verdict.INCONCLUSIVE)
    if verdicts.divided:
        text = f"the SMs of this GPU disagree in the {kernel} kernel and no result has a majority of them"
        yield made(text, {"kernel": kernel, "sm": None, "divided": True})
    if verdicts.unknown_ids:
        ids: list[JSON] = list(verdicts.unknown_ids)
        shown = ", ".join(str(i) for i in verdicts.unknown_ids[:4])
        yield made(f"blocks of the {kernel} kernel say they ran on SM {shown}, an id that this GPU does not have",
                   {"kernel": kernel, "sm": None, "unknown_ids": ids})  # fmt: skip
    if verdicts.silent:
        text = f"{verdicts.silent} blocks of the {kernel} kernel gave no result: a launch did not run"
        yield made(text, {"kernel": kernel, "sm": None, "silent_blocks": verdicts.silent})


def _what(kernel: str, wrong: WrongSm, entry: dict[str, JSON]) -> str:
    """The wrong word in one sentence."""
    if kernel == "atomic":
        place = f"{entry['space']} {entry['operation']}, cell {entry['cell']}"
    else:
        place = f"thread {entry['thread']}, lane {entry['lane']}"
    if kernel == "special":
        place += f", {' and '.join(functions_at(wrong.first))}"
    beside = "" if wrong.against == "expected" else " by most other SMs"
    return f"the {kernel} kernel wrong ({place}): expected {wrong.expected}{beside}, got {entry['got']}"


def _bits(wrong: WrongSm) -> list[JSON]:
    """Positions of the bits that differ in the word shown; none where only bounds are known."""
    if not wrong.expected.startswith("0x"):
        return []
    difference = int(wrong.expected, 16) ^ wrong.got
    return [i for i in range(64) if difference >> i & 1]


def _missing(ctx: CheckContext, sms: SmPort, tally: _Tally) -> Iterator[Reason]:
    """SMs that were not seen in every kernel."""
    total = sms.multiprocessors
    missing = total - len(tally.sms)
    if missing > 0:
        text = f"{missing} of {total} SMs did not run every kernel"
        yield make_reason(
            "COVERAGE_LOW",
            "sm",
            text,
            gpu=ctx.uuid,
            details={"sms_total": total, "sms_covered": len(tally.sms)},
        )


def _coverage(sms: SmPort, tally: _Tally) -> SmCoverage:
    return SmCoverage(
        sms_total=sms.multiprocessors,
        sms_covered=len(tally.sms),
        sms_by_kernel={kernel: len(seen) for kernel, seen in tally.covered.items()},
        runs=dict(tally.blocks),
        launches=tally.launches,
        seeds=tally.seeds,
        functions=FUNCTIONS,
        wrong_blocks=tally.wrong_blocks,
        **tally.time.counted(),
        bytes_moved=tally.moved_bytes,
        simulated=sms.simulated,
    )


def _inject(ctx: CheckContext, sms: SmPort, name: str, kernel: str) -> SelftestResult:
    """A run without a fault first, whose right result is known: where it is wrong, the fault is real."""
    seed, rounds = mix(ctx.seed ^ 0x5E1F), _rounds(sms, kernel)
    golden, total = expected(kernel, seed, rounds), sms.multiprocessors
    clean = sms.run(kernel, seed, rounds)
    before = judge(clean, golden)
    if not before.clean:
        again = _Repeat(sms, kernel, seed, rounds, None, golden)
        return hindered(ctx, "sm", f"{name} {kernel}", next(_reasons(ctx, kernel, before, again))[0])
    fault = make_fault(name, ctx.seed, kernel)
    started = time.perf_counter()
    faulty = sms.run(kernel, seed, rounds, fault)
    after = judge(faulty, golden)
    latency_s = time.perf_counter() - started
    missed = len(after.covered) < total == len(before.covered)
    detected = missed if name == "absent_sm" else not after.clean
    silent = {"absent_sm", "bad_smid", "skipped_launch"}  # they change no result, or leave none
    changed = None if name in silent else _changed_bits(clean, faulty)
    return injected(ctx, "sm", f"{name} {kernel}", detected, latency_s, changed_bits=changed)


def _changed_bits(clean: SmRun, faulty: SmRun) -> int:
    """Bits by which the faulty rows differ from the healthy one."""
    return int(np.bitwise_count(faulty.rows ^ clean.rows[0]).sum())
