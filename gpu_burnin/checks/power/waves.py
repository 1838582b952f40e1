"""The synchronised waves of the power check: one GPU's part in them, and what the GPUs together say of their edges."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.power.grant_request import Request
from gpu_burnin.checks.power.load import FALLING, HIGH, RISING, Load
from gpu_burnin.checks.power.result import GrantedWaves, WavesMade
from gpu_burnin.checks.power.wave import (
    LEAST_MADE,
    ON_DEVICE,
    WITHOUT_DEVICE,
    Period,
    Wave,
    WaveRecord,
    periods_of,
    starts,
)
from gpu_burnin.checks.together import Clock, Group
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import JSON, Reason, Series

# From the last GPU's word that it is ready to the first edge: an answer of the supervisor takes milliseconds, on a
# busy host more, and a first edge that is missed is one of few at low frequencies.
_LEAD_S, _LEAD_SIMULATED_S = 0.25, 0.05
# Edges of one wave that go into the series; what comes after them looks the same.
_SHOWN_EDGES = 120
SERIES = "wave load"


@dataclass
class Waves:
    """One GPU's waves. `skew_s` are the differences between the GPUs' first edges of each frequency (Hz)."""

    records: list[WaveRecord] = field(default_factory=list)
    errors: list[dict[str, JSON]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)
    skew_s: dict[float, float] = field(default_factory=dict)
    started_s: float = 0.0
    ended_s: float = 0.0

    @property
    def made_hz(self) -> list[float]:
        """Frequencies that were exercised: most of their periods were made."""
        return [record.wave.frequency_hz for record in self.records if record.share_made >= LEAST_MADE]


def run_waves(ctx: CheckContext, group: Group, load: Load, waves: Sequence[Wave], clock: Clock) -> Waves:
    """All waves from a common start. A GPU that made a wrong product makes no more waves, and stays in the group."""
    done = Waves()
    done.started_s = group.start_s(_LEAD_SIMULATED_S if load.device.simulated else _LEAD_S)
    at_s = starts(waves, done.started_s)
    limits = WITHOUT_DEVICE if load.device.simulated else ON_DEVICE
    with _no_collection():
        for index, (wave, start_s) in enumerate(zip(waves, at_s, strict=True)):
            record = WaveRecord(wave, start_s, limits, stopped=bool(done.reasons))
            done.records.append(record)
            if not record.stopped:
                _show(ctx, wave, index, len(waves))
                _run_wave(ctx, load, record, done, clock)
    done.ended_s = clock.now()
    firsts = group.gather([record.first_edge_s for record in done.records])
    done.skew_s = skews(waves, firsts)
    return done


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Without the collector of garbage: a full run of it takes longer than a half period of a fast wave."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _show(ctx: CheckContext, wave: Wave, index: int, count: int) -> None:
    ctx.progress({"phase": f"power waves {wave.frequency_hz:g} Hz", "done": index / count})


def _run_wave(ctx: CheckContext, load: Load, record: WaveRecord, done: Waves, clock: Clock) -> None:
    for period in periods_of(record.wave, record.start_s):
        if "late" in ctx.inject:  # --inject: the host is kept from its edge
            clock.until(period.rise_s + 2 * record.limits.late * record.wave.half_s)
        if record.missed(clock.now(), period):
            continue
        clock.until(period.rise_s)
        _load_period(ctx, load, record, period, done, clock)
        if record.wrong:
            record.stopped = True
            return


def _load_period(ctx: CheckContext, load: Load, record: WaveRecord, period: Period, done: Waves, clock: Clock) -> None:
    """The loaded half of one period: products for most of it, then rest until the next edge up."""
    wave = record.wave
    began_s = clock.now()
    seconds = period.rise_s + record.limits.fill * wave.half_s - began_s  # a late edge up moves no edge down
    if "idle" in ctx.inject:
        burst = load.lost_burst(load.count_for(seconds))
    else:
        burst = load.burst_for(seconds, ("bitflip",) if "wrong_edge" in ctx.inject else (), clock.now)
    ended_s = clock.now()
    record.add(period, began_s, ended_s, burst.seconds, burst.products)
    edges = {wrong.edge for wrong in burst.wrong}
    record.edges_verified += 2 - len(edges - {HIGH})
    record.wrong += len(burst.wrong)
    if len(record.edges) < _SHOWN_EDGES:
        record.edges += [(began_s, 1.0), (ended_s, 0.0)]
    if burst.wrong:
        wrong = next((one for one in burst.wrong if one.outcome.evidence is not None), burst.wrong[0])
        where = f"{edge_words(wrong.edge)} of a wave of {wave.frequency_hz:g} Hz, period {period.number + 1}"
        numbers: dict[str, JSON] = {"frequency_hz": wave.frequency_hz, "period": period.number}
        entries, reason = load.reason(wrong, where, numbers)
        done.errors += entries
        done.reasons.append(reason)


def edge_words(edge: str) -> str:
    """Where a product was, for a person."""
    words = {RISING: "the first product after an edge up", FALLING: "the last product before an edge down"}
    return words.get(edge, "a product under load")


def skews(waves: Sequence[Wave], firsts: Mapping[str, JSON]) -> dict[float, float]:
    """Between the first and the last GPU at the first edge of each frequency, in seconds; `firsts` by UUID.

    A frequency whose first edges fewer than two GPUs made has no entry.
    """
    found: dict[float, float] = {}
    for index, wave in enumerate(waves):
        rows = [row for row in firsts.values() if isinstance(row, list | tuple) and len(row) > index]
        times = [float(row[index]) for row in rows if isinstance(row[index], int | float)]
        # An edge that one GPU left out is made up a period later: that is counted as missed, not as skew.
        near = [at for at in times if at - min(times) < wave.half_s]
        if len(near) > 1:
            found[wave.frequency_hz] = max(near) - min(near)
    return found


def series(done: Waves) -> tuple[Series, ...]:
    """Load over time: 1 from an edge up, 0 from an edge down (each value holds until the next).

    Of a wave with many periods the first are shown, then its mean.
    """
    points: list[tuple[float, float]] = []
    for record in done.records:
        points += record.edges
        if len(record.edges) >= _SHOWN_EDGES and record.bursts > _SHOWN_EDGES // 2:
            points.append((record.edges[-1][0] + record.wave.half_s, 0.5))
            points.append((record.start_s + record.wave.seconds, 0.0))
    if not points:
        return ()
    return (Series(SERIES, "1", tuple(at for at, _ in points), tuple(value for _, value in points)),)


def waves_made(done: Waves, request: Request | None) -> WavesMade:
    """What the waves covered, for the report; `request` is what the site was asked or told."""
    made = WavesMade(
        frequencies_hz=tuple(done.made_hz),
        frequencies=tuple(record.result for record in done.records),
        edges=sum(2 * record.made for record in done.records),
        edges_missed=sum(record.edges_missed for record in done.records),
        products=sum(record.products for record in done.records),
        products_verified=sum(record.products - record.wrong for record in done.records),
        start_skew_s=round(max(done.skew_s.values()), 6) if done.skew_s else None,
        skew_s={f"{frequency:g} Hz": round(value, 6) for frequency, value in done.skew_s.items()},
        worst_lateness_s=round(max((record.worst_late_s for record in done.records), default=0.0), 6),
        started_s=round(done.started_s, 4),
        ended_s=round(done.ended_s, 4),
    )
    if request is None:
        return made
    asked_at, granted_at, over_at = request.asked_at, request.granted_at, request.over_at
    return GrantedWaves(**vars(made), asked_at=asked_at, granted_at=granted_at, over_at=over_at)


def low(ctx: CheckContext, done: Waves) -> list[Reason]:
    """COVERAGE_LOW where waves were not made: on hardware for each frequency, simulated only when none was at all.

    A host that simulates many GPUs on few cores is late for reasons of its own.
    """
    if done.reasons or not done.records:
        return []
    simulated = ctx.device is None or ctx.device.simulated
    if simulated:
        missing = [] if any(record.made for record in done.records) else done.records
    else:
        missing = [record for record in done.records if record.share_made < LEAST_MADE]
    if not missing:
        return []
    said = "; ".join(
        f"{record.wave.frequency_hz:g} Hz: {record.made} of {record.wave.periods} periods ({record.why_not})"
        for record in missing
    )
    details: dict[str, JSON] = {"waves": [to_json(record.result) for record in missing]}
    message = f"power waves did not run as planned: {said}; free the host's CPUs and test again"
    return [make_reason("COVERAGE_LOW", "power", message, gpu=ctx.uuid, details=details)]
