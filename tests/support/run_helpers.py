"""A small plan and what a healthy run of it saw."""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.checks import SELFTESTED
from gpu_burnin.engine.plan import Plan, make_plan
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.report.build import RunFacts
from gpu_burnin.system.host import Host
from gpu_burnin.telemetry.discover import Found
from gpu_burnin.telemetry.findings import GpuSeries, Source, TelemetryFindings
from gpu_burnin.types import JSON, CheckResult, Coverage, Gpu, Measurement, SelftestResult, Verdict
from tests.support.coverages import coverage

GPUS = tuple(
    Gpu(i, f"GPU-{i}", f"165{i}", f"0000:{0x1B + i:02x}:00.0", "NVIDIA H200", "h200-sxm", 150 << 30, "96.00")
    for i in range(2)
)


def plan(backend: str = "cuda", **options: object) -> Plan:
    """The level quick on both GPUs."""
    return make_plan("quick", backend=backend, gpus=GPUS, seed=1, **options)  # type: ignore[arg-type]


PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8", "fp8_e4m3")
# The coverage that a full run has, by check.
_COPIES: dict[str, JSON] = {"copies_moved": 90, "copies_verified": 90}
COVERAGE: dict[str, dict[str, JSON]] = {
    "pcie": _COPIES,
    "nvlink": {"pairs_total": 1, "pairs_covered": 1, "nvlink_bytes_moved": 1 << 40, "simulated": False, **_COPIES},
    "nccl": {"ranks": 2, "gpus_in_plan": 2, "operations": 80, "operations_verified": 80},
    "sm": {"sms_total": 132, "sms_covered": 132, "bytes_moved": 1 << 20, "simulated": False},
    "gemm": {
        "precisions_not_covered": [],
        "data_path": {p: {"path": p, "proven": True, "why": "", "rate": 1.0, "rate_floor": None} for p in PRECISIONS},
        "bytes_moved": 1 << 40,
        "simulated": False,
    },
    "hbm": {
        "covered_bytes": 149 << 30,
        "gpu_memory_bytes": 150 << 30,
        "patterns": ["address", "inversions random", "inversions solid", "inversions checker", "walking", "modulo"],
        "bytes_moved": 1 << 40,
        "simulated": False,
    },
}


# The time of a check on a GPU; all of it was verified.
SECONDS = 12.0


def covered(name: str, **change: JSON) -> Coverage:
    """The coverage that a full run has, with another one of some entries."""
    return coverage(name, **{**COVERAGE.get(name, {}), "verified_s": SECONDS, **change})


def result(name: str, gpu: str | None, verdict: Verdict = Verdict.PASS) -> CheckResult:
    """A result with the coverage that a full run has."""
    measured = (Measurement(f"{name}_figure", 2.0, "B/s", 1.0, "x"),)
    return CheckResult(name, gpu, verdict, SECONDS, measured, covered(name))


def watched(gpus: tuple[Gpu, ...]) -> TelemetryFindings:
    """What the samplers see of GPUs that work well, in three buckets."""
    columns = {"temperature_c": (41.0, 60.0, 61.0), "power_w": (90.0, 690.0, 690.0), "clocks_event_reasons": (1, 4, 4)}
    return TelemetryFindings(
        series=tuple(GpuSeries(gpu.uuid, (1.0, 2.0, 3.0), columns, samples=30) for gpu in gpus),
        sources=tuple(Source("nvml_samples", gpu.uuid, alive=True) for gpu in gpus),
    )


def healthy(of: Plan | None = None) -> Observations:
    """Everything passed, on real hardware."""
    chosen = of or plan()
    results, tests = [], []
    for check in chosen.checks:
        for gpu in [unit.uuid for unit in chosen.units] if check.per_gpu else [None]:
            results.append(result(check.name, gpu))
            if check.name in SELFTESTED:
                tests.append(SelftestResult("bitflip", check.name, gpu, True, True, 0.1, "device buffers"))
    return Observations(
        plan=chosen,
        gpus=GPUS,
        results=tuple(results),
        selftests=tuple(tests),
        kernel_log=KernelLogFindings("journal,/dev/kmsg", alive=True),
        telemetry=watched(chosen.gpus),
        simulated=False,
        allow_simulated=False,
    )


def without(seen: Observations, name: str, gpu: str | None) -> Observations:
    """The same with the result of one check on one GPU missing."""
    return replace(seen, results=tuple(r for r in seen.results if (r.name, r.gpu) != (name, gpu)))


def exchanged(seen: Observations, new: CheckResult) -> Observations:
    """The same with one result exchanged."""
    results = tuple(new if (r.name, r.gpu) == (new.name, new.gpu) else r for r in seen.results)
    return replace(seen, results=results)


RUN = RunFacts(
    run_id="20260102T030405Z-000007",
    sequence=7,
    node="gpu-1",
    started_at="2026-01-02T03:04:05Z",
    finished_at="2026-01-02T03:05:05.123Z",
    host=Host("0" * 32, "11111111-2222-3333-4444-555555555555", "gpu-1", "6.1.0", {"sys_vendor": "X"}, {}),
    found=Found(gpus=GPUS, simulated=False, driver="580.95.05", cuda="13.0", nvml="13.580"),
    facts={"GPU-0": {"cupy": "14.2.0", "list": ["not a text"]}, "node": {}},
)
