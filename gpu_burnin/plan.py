"""What one burn-in does: level, checks with budgets and deadlines, shapes, seed. Plain data with a digest."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_burnin.checks import CHECK_NAMES, PER_NODE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.types import JSON, Gpu

BACKENDS: tuple[str, ...] = ("cpu", "cuda")
# Wall-clock budget in seconds of each check, all GPUs at once (design, section 6: quick <= 60 s, standard
# <= 5 min).
BUDGETS_S: dict[str, dict[str, float]] = {
    "quick": {"state": 10.0, "gemm": 25.0, "hbm": 15.0},
    "standard": {"state": 10.0, "gemm": 140.0, "hbm": 120.0},
    "extended": {"state": 10.0, "gemm": 3600.0, "hbm": 3600.0},
}
# The CPU backend covers no GPU whatever the time. A round of everything is made however small the budget.
CPU_BUDGETS_S: dict[str, dict[str, float]] = {
    "quick": {"state": 10.0, "gemm": 0.1, "hbm": 0.1},
    "standard": {"state": 10.0, "gemm": 10.0, "hbm": 10.0},
    "extended": {"state": 10.0, "gemm": 60.0, "hbm": 60.0},
}
# A check is overdue at DEADLINE_FACTOR times its budget plus DEADLINE_SLACK_S (imports, library start, a
# busy host).
DEADLINE_FACTOR = 3.0
DEADLINE_SLACK_S = 60.0
SELFTEST_DEADLINE_S = 120.0

CUDA_SHAPES: dict[str, int] = {"gemm_m": 4096, "gemm_n": 4096, "gemm_k": 4096, "hbm_bytes": 0}
CPU_SHAPES: dict[str, int] = {"gemm_m": 256, "gemm_n": 256, "gemm_k": 256, "hbm_bytes": 16 << 20}
# Faults that --inject knows, by check; "hang", "wedge" and "crash" hit the worker itself and go with every
# check.
WORKER_FAULTS: tuple[str, ...] = ("hang", "wedge", "crash", "crash_once")
CHECK_FAULTS: dict[str, tuple[str, ...]] = {
    "state": (),
    "gemm": (
        "bitflip", "multibit", "wrong_value", "nan", "inf", "zero", "transposed", "permuted", "stale",
        "skipped_launch", "skipped_tile", "operand",
    ),
    "hbm": ("bitflip", "stuck"),
}  # fmt: skip


class PlanError(GpuBurninError):
    """A setting of the run is wrong: usage error, exit code 2."""


@dataclass(frozen=True)
class CheckPlan:
    """One check with its time budget and the deadline after which its worker is killed, both in seconds."""

    name: str
    per_gpu: bool
    budget_s: float
    deadline_s: float


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
    """A whole run. `inject` holds fault specifications; a plan with any of them can never be evidence."""

    level: str
    seed: int
    backend: str
    gpus: tuple[Gpu, ...]
    checks: tuple[CheckPlan, ...]
    shapes: Mapping[str, int]
    options: Mapping[str, JSON] = field(default_factory=dict)
    inject: tuple[str, ...] = ()
    selftest: bool = True
    selftest_deadline_s: float = SELFTEST_DEADLINE_S

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the form in which a plan travels to the workers and into the report."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON of the plan."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def injections(self, check: str, gpu: Gpu | None) -> tuple[str, ...]:
        """Names of the faults to inject into this check on this GPU."""
        return tuple(i.fault for i in map(parse_injection, self.inject) if i.hits(check, gpu))


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The inverse of Plan.to_json."""
    fields = dict(data)
    fields["gpus"] = tuple(Gpu(**gpu) for gpu in data["gpus"])
    fields["checks"] = tuple(CheckPlan(**check) for check in data["checks"])
    fields["inject"] = tuple(data["inject"])
    return Plan(**fields)


def parse_injection(spec: str) -> Injection:
    """Read "check:fault" or "check:fault:gpu=INDEX|UUID". Raises PlanError."""
    parts = spec.split(":")
    gpu: str | None = None
    if len(parts) == 3 and parts[2].startswith("gpu=") and len(parts[2]) > 4:
        gpu = parts.pop()[4:]
    if len(parts) != 2:
        raise PlanError(f"inject {spec!r}: write it as CHECK:FAULT or CHECK:FAULT:gpu=INDEX")
    check, fault = parts
    if check not in CHECK_FAULTS:
        raise PlanError(f"inject {spec!r}: unknown check {check!r}, choose from {', '.join(CHECK_FAULTS)}")
    known = CHECK_FAULTS[check] + WORKER_FAULTS
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
    selftest: bool = True,
) -> Plan:
    """Choose checks, budgets and shapes for a level.

    `seed` None draws a random one; `checks` None means all of them; `shapes` overrides single sizes;
    `duration_s` (extended only) is shared by the checks of the GPUs in proportion to their budgets.
    Raises PlanError naming the wrong setting and the allowed values.
    """
    if level not in BUDGETS_S:
        raise PlanError(f"unknown level {level!r}: choose from {', '.join(BUDGETS_S)}")
    if backend not in BACKENDS:
        raise PlanError(f"unknown backend {backend!r}: choose from {', '.join(BACKENDS)}")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise PlanError(f"seed {seed} is out of range: give an integer from 0 to 2^64 - 1")
    names = _check_names(checks)
    for spec in inject:
        parse_injection(spec)
    budgets = dict((CPU_BUDGETS_S if backend == "cpu" else BUDGETS_S)[level])
    if duration_s is not None:
        budgets = _stretch(level, budgets, names, duration_s)
    return Plan(
        level=level,
        seed=secrets.randbits(64) if seed is None else seed,
        backend=backend,
        gpus=tuple(gpus),
        checks=tuple(
            CheckPlan(n, n not in PER_NODE, budgets[n], budgets[n] * DEADLINE_FACTOR + DEADLINE_SLACK_S) for n in names
        ),
        shapes=_shapes(backend, shapes or {}),
        options=dict(options or {}),
        inject=tuple(inject),
        selftest=selftest,
    )


def _check_names(checks: Sequence[str] | None) -> tuple[str, ...]:
    if checks is None:
        return CHECK_NAMES
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
    if shapes["hbm_bytes"] % 4096:
        raise PlanError(f"shape hbm_bytes is {shapes['hbm_bytes']}: give a multiple of 4096 bytes")
    return shapes


def _stretch(level: str, budgets: dict[str, float], names: Sequence[str], duration_s: float) -> dict[str, float]:
    if level != "extended":
        raise PlanError(f"a duration goes only with the level extended, not with {level}")
    if not 60 <= duration_s <= 30 * 86400:
        raise PlanError(f"duration {duration_s:g} s is out of range: give 60 s to 30 days")
    timed = [n for n in names if n not in PER_NODE]
    total = sum(budgets[n] for n in timed)
    return {n: budgets[n] * duration_s / total if n in timed else budgets[n] for n in budgets}
