"""What one burn-in does: level and its time, checks with their weights, shapes, seed. Plain data with a digest."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_burnin.api.levels import LEVELS
from gpu_burnin.checks import CHECK_NAMES, CHECKS, USUAL_CHECKS
from gpu_burnin.checks.spec import CheckSpec, Scope, Slot
from gpu_burnin.engine.deadlines import Deadlines, deadlines
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import JSON, Gpu

BACKENDS: tuple[str, ...] = ("cpu", "cuda")
CPU_LEAST_S = 0.1
# Kept for ending the workers, the kernel log, the verdict and the report.
CLOSING_S = 3.0

# Large enough that the launch of an FP8 product (0.3 ms at 1.7 PFLOP/s) costs little beside it.
# hbm_bytes 0: all that is free. transfer_bytes: one copy between two GPUs, and at most 64 MiB of it between host and
# GPU (checks.pcie.port.MOST_COPY_BYTES). collective_bytes: the largest message of a collective operation.
CUDA_SHAPES: Mapping[str, int] = {
    "gemm_m": 8192, "gemm_n": 8192, "gemm_k": 4096, "hbm_bytes": 0, "transfer_bytes": 256 << 20,
    "collective_bytes": 8 << 30,
}  # fmt: skip
CPU_SHAPES: Mapping[str, int] = {
    "gemm_m": 256, "gemm_n": 256, "gemm_k": 256, "hbm_bytes": 16 << 20, "transfer_bytes": 256 << 10,
    "collective_bytes": 256 << 10,
}  # fmt: skip
# Faults of the worker itself: --inject knows them for every check.
WORKER_FAULTS: tuple[str, ...] = ("hang", "wedge", "crash", "crash_once", "out_of_memory")


class PlanError(GpuBurninError):
    """A setting of the run is wrong: usage error, exit code 2."""


@dataclass(frozen=True)
class CheckPlan:
    """One check: its scope, its weight against the other checks, and the seconds it gets at least. Its budget is
    decided when it starts (share)."""

    name: str
    scope: Scope
    weight: float
    least_s: float

    @property
    def per_gpu(self) -> bool:
        """Whether it gives a result for each GPU."""
        return self.scope.per_gpu


@dataclass(frozen=True)
class Injection:
    """A fault to inject on purpose: into one check, on one GPU (UUID or index as text) or on all of them."""

    check: str
    fault: str
    gpu: str | None = None

    def hits(self, check: str, gpu: Gpu | None) -> bool:
        """Whether this fault is meant for the given check and GPU."""
        if check != self.check:
            return False
        return self.gpu is None or (gpu is not None and self.gpu in (gpu.uuid, str(gpu.index)))


@dataclass(frozen=True)
class Plan:
    """A whole run, to be over in `total_s` seconds, and given up at its `deadlines`. `inject` holds fault
    specifications; a plan with any of them can never be evidence. `selftest_full` asks for the whole table of faults,
    `checks_off` for self-tests alone."""

    level: str
    total_s: float
    seed: int
    backend: str
    gpus: tuple[Gpu, ...]
    checks: tuple[CheckPlan, ...]
    shapes: Mapping[str, int]
    deadlines: Deadlines
    options: Mapping[str, JSON] = field(default_factory=dict)
    inject: tuple[str, ...] = ()
    selftest: bool = True
    selftest_full: bool = False
    checks_off: bool = False

    @property
    def units(self) -> tuple[Gpu, ...]:
        """What has a worker of its own: each GPU, and in its place each instance of one in MIG mode."""
        return tuple(unit for gpu in self.gpus for unit in gpu.units)

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of the plan."""
        text = json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def injections(self, check: str, gpu: Gpu | None) -> tuple[str, ...]:
        """Names of the faults to inject into this check on this GPU."""
        return tuple(i.fault for i in map(parse_injection, self.inject) if i.hits(check, gpu))


def faults_of(check: str) -> tuple[str, ...]:
    """The faults that can be injected into a check: its own, and those of its worker."""
    return CHECKS[check].faults + WORKER_FAULTS


def parse_injection(spec: str) -> Injection:
    """Read "check:fault" or "check:fault:gpu=INDEX|UUID". Raises PlanError."""
    parts = spec.split(":")
    gpu: str | None = None
    if len(parts) == 3 and parts[2].startswith("gpu=") and len(parts[2]) > 4:
        gpu = parts.pop()[4:]
    if len(parts) != 2:
        raise PlanError(f"inject {spec!r}: write it as CHECK:FAULT or CHECK:FAULT:gpu=INDEX")
    check, fault = parts
    if check not in CHECKS:
        raise PlanError(f"inject {spec!r}: unknown check {check!r}, choose from {', '.join(CHECKS)}")
    known = faults_of(check)
    if fault not in known:
        raise PlanError(f"inject {spec!r}: unknown fault {fault!r} for {check}, choose from {', '.join(known)}")
    return Injection(check, fault, gpu)


def make_plan(
    level: str,
    *,
    backend: str,
    gpus: Sequence[Gpu],
    seed: int | None = None,
    checks: Sequence[str] | None = None,
    shapes: Mapping[str, int] | None = None,
    options: Mapping[str, JSON] | None = None,
    inject: Sequence[str] = (),
    duration_s: float | None = None,
    cpu_time_s: float | None = None,
    selftest: bool = True,
) -> Plan:
    """Choose checks, time and shapes for a level.

    `seed` None draws a random one; `checks` None means the usual ones; `shapes` overrides single sizes;
    `duration_s` (extended only) is the time of the whole run, `cpu_time_s` that of one on the CPU. Raises PlanError
    naming the wrong setting and the allowed values.
    """
    level_s = level_time_s(level, duration_s)
    if backend not in BACKENDS:
        raise PlanError(f"unknown backend {backend!r}: choose from {', '.join(BACKENDS)}")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise PlanError(f"seed {seed} is out of range: give an integer from 0 to 2^64 - 1")
    names = _check_names(checks)
    _check_injections(inject, names, gpus)
    on_cpu, chosen = backend == "cpu", LEVELS[level]
    total_s = (cpu_time_s or chosen.cpu_total_s) if on_cpu and duration_s is None else level_s
    made = Plan(
        level=level,
        total_s=total_s,
        seed=secrets.randbits(64) if seed is None else seed,
        backend=backend,
        gpus=tuple(gpus),
        checks=tuple(
            CheckPlan(
                name,
                row.scope,
                slot.weight,
                min(slot.least_s, CPU_LEAST_S) if on_cpu else slot.least_s,
            )
            for name, row in CHECKS.items()
            if name in names and (slot := _slot(level, row, len(gpus)))
        ),
        shapes=_shapes(backend, shapes or {}),
        deadlines=deadlines(level_s),
        options=dict(options or {}),
        inject=tuple(inject),
        selftest=selftest,
    )
    if duration_s is not None:
        _refuse_too_short(made)
    return made


def _slot(level: str, check: CheckSpec, gpus: int) -> Slot:
    """The time of a check; a check that has nothing to do leaves it to all others."""
    return check.slots[level] if gpus >= check.least_gpus else Slot(0.0, 0.0)


def _refuse_too_short(plan: Plan) -> None:
    """Checks get their least however little time there is: a shorter run would take longer than it says."""
    least_s = sum(check.least_s for check in plan.checks if check.scope is not Scope.AFTER) + CLOSING_S
    if plan.total_s < least_s:
        raise PlanError(
            f"duration {plan.total_s:g} s is too short: these checks take {math.ceil(least_s)} s at least; "
            "give more time, or skip some"
        )


def _check_names(checks: Sequence[str] | None) -> tuple[str, ...]:
    if checks is None:
        return USUAL_CHECKS
    unknown = [c for c in checks if c not in CHECK_NAMES]
    if unknown or not checks:
        raise PlanError(f"unknown checks {', '.join(unknown) or '(none)'}: choose from {', '.join(CHECK_NAMES)}")
    return tuple(n for n in CHECK_NAMES if n in checks)


def _shapes(backend: str, overrides: Mapping[str, int]) -> dict[str, int]:
    shapes = dict(CPU_SHAPES if backend == "cpu" else CUDA_SHAPES)
    for key, value in overrides.items():
        if key not in shapes:
            raise PlanError(f"unknown shape {key!r}: choose from {', '.join(shapes)}")
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise PlanError(f"shape {key} is {value!r}: give a positive integer")
        shapes[key] = value
    for key in ("gemm_m", "gemm_n", "gemm_k"):
        if shapes[key] % 16 or not 16 <= shapes[key] <= 32768:
            raise PlanError(f"shape {key} is {shapes[key]}: give a multiple of 16 from 16 to 32768")
    if shapes["gemm_k"] > 4096:
        raise PlanError(f"shape gemm_k is {shapes['gemm_k']}: products are proved exact up to 4096")
    for key in ("hbm_bytes", "transfer_bytes", "collective_bytes"):
        if shapes[key] % 4096:
            raise PlanError(f"shape {key} is {shapes[key]}: give a multiple of 4096 bytes")
    return shapes


def level_time_s(level: str, duration_s: float | None) -> float:
    """Seconds that a run of this level takes on GPUs; `duration_s` sets those of extended. Raises PlanError."""
    if level not in LEVELS:
        raise PlanError(f"unknown level {level!r}: choose from {', '.join(LEVELS)}")
    if duration_s is None:
        return LEVELS[level].total_s
    if level != "extended":
        raise PlanError(f"a duration goes only with the level extended, not with {level}")
    if not 60 <= duration_s <= 30 * 86400:
        raise PlanError(f"duration {duration_s:g} s is out of range: give 60 s to 30 days")
    return duration_s


def _check_injections(specs: Sequence[str], names: Sequence[str], gpus: Sequence[Gpu]) -> None:
    """A fault that could change nothing would make the run look better than it is."""
    for spec in specs:
        injection = parse_injection(spec)
        if injection.check not in names:
            raise PlanError(f"inject {spec!r}: the check {injection.check} is not part of this run")
        units = (unit for gpu in gpus for unit in gpu.units)
        if injection.gpu is not None and not any(injection.gpu in (unit.uuid, str(unit.index)) for unit in units):
            raise PlanError(f"inject {spec!r}: no GPU {injection.gpu} is part of this run; give its index or UUID")


def share(left_s: float, check: CheckPlan, later: Sequence[CheckPlan]) -> float:
    """Seconds for `check` out of the `left_s` of the run, by its weight against the checks that come `later`.

    What start, self-tests and earlier checks have cost is in `left_s`, so a run keeps its time whatever they cost,
    as long as every check still gets its least. A check without a weight takes the time it takes and gets its least.
    """
    if not check.weight:
        return check.least_s
    timed = [other for other in later if other.weight]
    others_s = sum(other.least_s for other in later)
    whole = check.weight + sum(other.weight for other in timed)
    wanted = min((left_s - CLOSING_S) * check.weight / whole, left_s - CLOSING_S - others_s)
    return max(check.least_s, wanted)


@dataclass(frozen=True)
class Expected:
    """When a check begins and how long it takes, in seconds of the plan, where nothing else costs time."""

    check: CheckPlan
    begins_s: float
    budget_s: float


def schedule(plan: Plan) -> tuple[Expected, ...]:
    """The plan's time as the executor shares it out (share), with start and self-tests that cost nothing.

    A check without a weight is taken to need its least; in a run it is over when it is done.
    """
    expected: list[Expected] = []
    now_s = 0.0
    for scopes in ({Scope.NODE}, {Scope.EACH, Scope.TOGETHER}, {Scope.AFTER}):
        checks = [check for check in plan.checks if check.scope in scopes]
        for place, check in enumerate(checks):
            budget_s = share(plan.total_s - now_s, check, checks[place + 1 :])
            expected.append(Expected(check, now_s, budget_s))
            now_s += budget_s
    return tuple(expected)
