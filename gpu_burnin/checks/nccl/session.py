"""The collectives of one rank, step by step with the others: warm-up, curves, all types, then on until time is up.

Ranks go from step to step together: each step ends with an exchange of how it went, so that all know when one of them
is gone or has given up, and all stop at the same place.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from gpu_burnin.checks import CheckContext, done_share
from gpu_burnin.checks.nccl.judge import Hello, Report
from gpu_burnin.checks.nccl.operations import (
    COLLECTIVES,
    KINDS,
    Operation,
    Wrong,
    bus_factor,
    expected_bits,
    explain,
    operation,
)
from gpu_burnin.checks.nccl.port import NcclFailed, NcclMissing, NcclPort, NcclTimeout
from gpu_burnin.checks.nccl.result import Curve, Point
from gpu_burnin.checks.nccl.tally import SMALLEST_BYTES, Tally, sizes
from gpu_burnin.checks.together import Group
from gpu_burnin.exact.operands import mix, stream_key
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.types import JSON, word_text

# Operations of one timed point at most: nccl-tests runs 20.
_MOST_TIMES = 20
# Errors listed in the result, and of one operation; all are counted.
_MOST_ERRORS, _MOST_OF_ONE = 32, 8
# To make a communicator (libraries load, GPUs connect), and for one step, beside the budget of the check.
_JOIN_S, _STEP_S = 30.0, 10.0
# Of the budget, in one wait: a run of days does not wait for hours.
_MOST_WAIT_S = 60.0
# Of the budget: for curves, and for everything with the first algorithm where there are others.
_CURVES_SHARE, _FIRST_SHARE = 0.4, 0.6
# What a slow rank (fault injection) is late by at each operation: so much, or so many times what its last one took, so
# that the others wait longer for it than for each other, also on a busy host.
_SLOW_S, _SLOW_TIMES = 0.02, 5.0
# The operation that a fault is injected into, counted from 0: one that all ranks have come to.
_STRUCK = 2
# Type of the curves: nccl-tests measures with float.
_CURVE_KIND = "fp32"


class Stopped(Exception):
    """The step cannot go on: `lost` UUIDs did not come back, `reports` say how the others fared."""

    def __init__(self, what: str, lost: tuple[str, ...], reports: Mapping[str, Report]) -> None:
        super().__init__(what)
        self.what, self.lost, self.reports = what, lost, reports


class Session:
    """One rank among those of `group`."""

    def __init__(self, ctx: CheckContext, group: Group, port: NcclPort) -> None:
        self._ctx, self._group, self._port = ctx, group, port
        self._members = group.members
        self._last_s = 0.0
        self._rank = group.rank
        self._started = time.monotonic()
        self._key = stream_key(ctx.seed, "nccl")
        self._what = "joining"
        self._to_inject = set(ctx.inject)
        self.tally = Tally()
        self.largest_bytes = 0

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self._members)

    def hello(self) -> Mapping[str, Hello]:
        """Versions of all ranks, by UUID; before anything else. Raises Stopped when a rank does not answer."""
        try:
            mine = Hello(self._port.version(), self._port.expected_version(), None)
        except NcclMissing as error:
            mine = Hello(None, None, str(error))
        return {uuid: from_json(Hello, data) for uuid, data in self._step("the start", lambda: to_json(mine)).items()}

    def run(self, most_bytes: int) -> None:
        """Everything, with messages of up to `most_bytes`, the shape, or what has room on all GPUs.

        Raises Stopped when the ranks cannot go on together.
        """
        most = min(most_bytes, self._ctx.shapes["collective_bytes"])
        room = self._step("the start", lambda: min(most, self._port.room_bytes()))
        self.largest_bytes = max(SMALLEST_BYTES, min(int(str(given)) for given in room.values()) // 4096 * 4096)
        self._port.open(max(self.largest_bytes, SMALLEST_BYTES * self.ranks))
        known = self._port.algorithms
        wanted = known[:1] if self._ctx.level == "quick" else known
        self.tally.left_out.update(dict.fromkeys(known[len(wanted) :], "not part of the level quick"))
        for index, algorithm in enumerate(wanted):
            if algorithm == "nvls" and not self._all_have_multicast():
                self.tally.left_out[algorithm] = "not all GPUs have NVLS multicast"
                continue
            self._join(algorithm)
            collectives = COLLECTIVES if index == 0 else ("all_reduce",) if algorithm == "nvls" else COLLECTIVES[:3]
            for collective in collectives:
                self._curve(collective, algorithm)
            if index == 0:
                self._every_kind()
                self._go_on(_FIRST_SHARE if len(wanted) > 1 else 1.0)
            self.tally.transports[algorithm] = self._port.transports()
            self._step(f"leaving ({algorithm})", lambda: self._port.leave(self._limit_s(_STEP_S)))

    # --- steps ---

    def _step(self, what: str, work: Callable[[], JSON]) -> Mapping[str, JSON]:
        """Do this rank's part, tell the others how it went, and hear the same of them: what each rank gave."""
        self._what = what
        given: JSON = None
        report = Report(self.tally.operations)
        try:
            given = work()
            report = Report(self.tally.operations)
        except (NcclTimeout, NcclFailed) as error:
            self._port.abort()
            report = Report(self.tally.operations, str(error)[:500], isinstance(error, NcclTimeout))
        answers = self._group.gather({"report": to_json(report), "given": given})
        rows = {uuid: row for uuid, row in answers.items() if isinstance(row, Mapping)}
        reports = {uuid: from_json(Report, row["report"]) for uuid, row in rows.items()}
        lost = tuple(uuid for uuid in self._members if uuid not in rows)
        if lost or any(report.why is not None for report in reports.values()):
            self._port.abort()
            raise Stopped(self._what, lost, reports)
        return {uuid: row["given"] for uuid, row in rows.items()}

    def _join(self, algorithm: str) -> None:
        offers = self._step("the start", lambda: self._port.offer(self._rank, self.ranks))
        listed = [offers[uuid] for uuid in self._members]
        self._report_phase(f"connecting ({algorithm})")
        limit_s = self._limit_s(_JOIN_S)
        self._step(
            f"making a communicator ({algorithm})", lambda: self._port.join(listed, self._rank, algorithm, limit_s)
        )

    def _curve(self, collective: str, algorithm: str) -> None:
        """Each size once, as warm-up, then each size several times in a row. Every result is verified."""
        all_sizes = sizes(self.largest_bytes)
        what = f"{collective} ({algorithm})"
        self._report_phase(what)
        # The very first one connects the ranks, so it says nothing of the time that one takes.
        warming = (all_sizes[0], *all_sizes)
        warm = self._step(what, lambda: [[*self._verified(self._make(collective, size))] for size in warming])
        warm_rows = {uuid: _pairs(given)[1:] for uuid, given in warm.items()}
        # With its comparison: that is what it takes of the budget.
        slowest = [max(whole_s for _, whole_s in times) for times in zip(*warm_rows.values(), strict=True)]
        room_s = self._group.budget_s * _CURVES_SHARE / (len(COLLECTIVES) * len(all_sizes))
        counts = [max(1, min(_MOST_TIMES, int(room_s / max(seconds, 1e-6)))) for seconds in slowest]
        timed = self._step(
            what,
            lambda: [
                [*self._verified(self._make(collective, size), times, aligned=True)]
                for size, times in zip(all_sizes, counts, strict=True)
            ],
        )
        # A late rank shows where nothing has brought the ranks together before.
        self.tally.durations += [{uuid: times[i][0] for uuid, times in warm_rows.items()} for i in range(len(counts))]
        points = tuple(
            Point(size_bytes=self._make(collective, size, fresh=False).size_bytes, seconds=seconds)
            for size, (seconds, _) in zip(all_sizes, _pairs(timed[self._group.uuid]), strict=True)
        )
        self.tally.curves.append(Curve(collective=collective, algorithm=algorithm, points=points))

    def _every_kind(self) -> None:
        """Each collective with each type, at a size in the middle."""
        middle = sizes(self.largest_bytes)[-2:][0]
        self._report_phase("all types")
        for kind in KINDS:
            self._all_collectives(kind, middle)

    def _go_on(self, share: float) -> None:
        """Verified operations, other sizes and types each time, until the share of the budget is used up."""
        end_s = self._started + share * self._group.budget_s
        choices = [(kind, size) for size in reversed(sizes(self.largest_bytes)) for kind in KINDS]
        turn = 0
        while self._time_left(end_s):
            kind, size = choices[turn % len(choices)]
            turn += 1
            self._report_phase(f"all collectives, {kind}")
            self._all_collectives(kind, size)

    def _time_left(self, end_s: float) -> bool:
        """By the clock of the first rank, which decides for all."""
        given = self._step("the clock", lambda: time.monotonic() < end_s)
        return given[self._members[0]] is True

    def _all_collectives(self, kind: str, size: int) -> None:
        self._step(
            "all collectives",
            lambda: [[*self._verified(self._make(collective, size, kind))] for collective in COLLECTIVES],
        )

    def _all_have_multicast(self) -> bool:
        known = self.tally.transports.values()
        given = self._step("the start", lambda: any(found.multicast is True for found in known))
        return all(value is True for value in given.values())

    # --- one operation ---

    def _make(self, collective: str, size_bytes: int, kind: str = _CURVE_KIND, *, fresh: bool = True) -> Operation:
        """The next operation, with data of its own; the same on all ranks, which count alike."""
        older = self._key
        if fresh:
            self._key = mix(self._key + 1)
        return operation(collective, kind, size_bytes, self.ranks, self._rank, self._key, older)

    def _verified(self, op: Operation, times: int = 1, *, aligned: bool = False) -> tuple[float, float]:
        """Run an operation `times` times and compare each result: seconds of one on the device, and of one with its
        comparison on the host's clock.

        `aligned`: a small one goes before it, so that what is timed starts on all ranks at once where operations
        wait for each other on the device.
        """
        self._what = f"{op.collective} of {op.size_bytes} bytes ({op.kind})"
        port, tally = self._port, self.tally
        port.fill(op)
        self._hold_up()
        if aligned:
            port.begin(operation("all_reduce", op.kind, 0, op.ranks, op.rank, op.key), 1, self._limit_s(_STEP_S))
        began_s = time.monotonic()
        port.begin(op, times, self._limit_s(_STEP_S))
        seconds = port.finish(self._limit_s(_STEP_S))
        self._spoil(op)
        self._last_s = seconds / times
        outcome = port.verify(op)
        whole_s = time.monotonic() - began_s
        verified = outcome.compared // op.recv_elements
        tally.operations += verified
        tally.launched += times
        tally.elements += outcome.compared
        tally.kinds[op.kind] = None
        tally.time.add(seconds, share=verified / times)
        # Filled and poisoned once; each time sent, received, compared and, but for the last, poisoned again.
        tally.memory_bytes += (times + 1) * op.send_bytes + 3 * times * op.recv_bytes
        tally.wire_bytes += times * op.size_bytes * bus_factor(op.collective, op.ranks)
        if outcome.wrong:
            tally.wrong += outcome.wrong
            self._record(op, outcome.recorded)
            came_from = [self._members[rank] for rank, count in enumerate(outcome.by_source) if count]
            tally.sources.update(dict.fromkeys(came_from))
        return seconds / times, whole_s / times

    def _record(self, op: Operation, found: Sequence[Wrong]) -> None:
        entries = wrong_elements(op, found, self._members)
        self.tally.errors += entries[: min(_MOST_OF_ONE, _MOST_ERRORS - len(self.tally.errors))]
        self.tally.sources.update((str(entry["source_gpu"]), None) for entry in entries if entry["source_gpu"])

    def _limit_s(self, least_s: float) -> float:
        """Seconds to wait in one step; the option is for machines, and tests, that know better."""
        wanted = self._ctx.options.get("collective_wait_s")
        return float(wanted) if isinstance(wanted, int | float) else least_s + min(self._group.budget_s, _MOST_WAIT_S)

    # --- faults on purpose ---

    def _hold_up(self) -> None:
        """slow_rank, hang_rank and dead_rank: the others are in the operation already."""
        if "slow_rank" in self._ctx.inject:
            time.sleep(max(_SLOW_S, _SLOW_TIMES * self._last_s))
        if self.tally.operations < _STRUCK:
            return
        if "dead_rank" in self._to_inject:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang_rank" in self._to_inject:
            while True:
                threading.Event().wait()

    def _spoil(self, op: Operation) -> None:
        """wrong_element and stale: once, in the buffer, below the comparison."""
        if self.tally.operations < _STRUCK:
            return
        if "wrong_element" in self._to_inject:
            self._to_inject.discard("wrong_element")
            self._port.flip(op, mix(self._ctx.seed) % op.recv_elements, 1 << 2)
        if "stale" in self._to_inject:
            self._to_inject.discard("stale")
            self._port.forget(op)

    def _report_phase(self, phase: str) -> None:
        done = done_share(time.monotonic() - self._started, self._group.budget_s)
        self._ctx.progress({"phase": phase, "errors": self.tally.wrong, "done": done})


def wrong_elements(op: Operation, found: Sequence[Wrong], members: Sequence[str]) -> list[dict[str, JSON]]:
    """Entries of a report's list of errors, of one result; `members` are the ranks' GPUs."""
    size_bytes = KINDS[op.kind].size_bytes
    return [
        {
            "collective": op.collective,
            "type": op.kind,
            "size_bytes": op.size_bytes,
            "rank": op.rank,
            "element": wrong.position,
            "source_rank": source,
            "source_gpu": None if source is None else members[source],
            "expected": word_text(int(expected_bits(op, wrong.position, 1)[0]), size_bytes),
            "got": word_text(wrong.got, size_bytes),
            "kind": kind,
        }
        for wrong, (kind, source) in zip(found, explain(op, found), strict=True)
    ]


def _pairs(given: JSON) -> list[tuple[float, float]]:
    """Pairs of seconds, as _verified gives them and as they travel."""
    assert isinstance(given, list | tuple)
    found: list[tuple[float, float]] = []
    for pair in given:
        assert isinstance(pair, list | tuple)
        found.append((float(str(pair[0])), float(str(pair[1]))))
    return found


def settled(port: NcclPort, largest_bytes: int, seed: int) -> Iterator[tuple[str, Operation]]:
    """For the self-test: each collective of one rank with each type, its expected result in the buffer."""
    port.open(largest_bytes)
    for index, (collective, kind) in enumerate((c, k) for c in COLLECTIVES for k in KINDS):
        op = operation(collective, kind, largest_bytes, 1, 0, mix(seed + index))
        port.fill(op)
        port.loop(op)
        yield f"{collective} {kind}", op
