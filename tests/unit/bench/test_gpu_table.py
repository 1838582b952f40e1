"""The rows of docs/verified-hardware.md: every step has some, measured or not, and no cell breaks the table."""

from __future__ import annotations

from typing import Any

from tests.bench.gpu.plan import STEPS
from tests.bench.gpu.table import markdown

_RATE = {"precision": "bf16", "cublas": 700.0, "plain": 710.0, "verified": 690.0, "ratio": 0.97, "bound": 0.98}
FIGURES: dict[str, dict[str, Any]] = {
    "versions": {"packages": {"numpy": "2.4.6"}},
    "node": {
        "node": {"driver_version": "580.95", "nvml_version": "13.580", "gpus": [{"name": "NVIDIA H200"}]},
        "unread": {"GPU 0 (GPU-1)": {"fan": "not_supported", "brake": "not_supported", "x": "invalid_argument"}},
    },
    "test_sm": {"passed": 5, "failed": [], "skipped": {"one GPU": 1}},
    "quick": {
        "seconds": 55.2, "verdict": "INCONCLUSIVE", "reasons": ["COVERAGE_LOW (gemm)"], "shortfalls": [],
        "check_seconds": [["gemm", "GPU-1", 9.1]],
    },
    "bandwidth": {
        "facts": {"device": "NVIDIA H200", "cuda_runtime": 13020, "nvrtc": "13.5"}, "read_bandwidth": 4.2e12,
        "digest_shares": {"fp32": 0.91},
    },
    "rates": {"shape": {"m": 8192, "n": 8192, "k": 4096}, "rates": [_RATE]},
    "detection": {"detection": [{"precision": "bf16", "worst_s": 0.31}, {"precision": "int8", "worst_s": 0.4}]},
    "hbm": {"copy_bandwidth": 3.9e12},
    "pcie": {"plain": {"h2d": 5e10}, "link": {"h2d": 5.1e10}, "size_bytes": 64 << 20},
    "nccl": {"version": "2.32.3", "join_seconds": 0.8, "all_reduce_bytes_per_s": 1e12},
    "power": {
        "verdict": "PASS", "reasons": [], "power_limit_w": 700, "waves": {"frequencies": []},
        "power": {"phases": {"mixed": {"mean_power_w": 660, "share_of_limit": 0.94, "power_source": "energy"}}},
    },
}  # fmt: skip


def _result(**changes: Any) -> dict[str, Any]:
    steps = {one.name: {"title": one.title, "state": "done", "figures": FIGURES.get(one.name, {})} for one in STEPS}
    for name, change in changes.items():
        steps[name] = {**steps[name], **change}
    return {"date": "2026-01-01", "steps": steps}


def test_what_was_measured_is_in_its_row() -> None:
    text = markdown(_result())
    assert text.startswith("### NVIDIA H200, 2026-01-01\n\nDriver 580.95, NVML 13.580, CUDA runtime 13020, ")
    assert "NVRTC 13.5; numpy 2.4.6." in text
    for row in (
        "| values that NVML did not give, GPU 0 | invalid_argument: x; not_supported: brake, fan | - |",
        "every SM | 5 passed, 0 failed; 1 skipped: one GPU | passed |",
        "| quick run, wall time | 55.2 s | 60 s |",
        "| quick run, verdict | INCONCLUSIVE: COVERAGE_LOW (gemm) | PASS |",
        "| quick run, what every check of a GPU should do | done | done |",
        "| digest kernel, fp32, share of read bandwidth | 91% | 80% |",
        "| copy bandwidth on the device, read plus written | 3900 GB/s | - |",
        "| PCIe h2d, copies of 64 MiB | 51.0 GB/s | 50.0 GB/s plain, in the same run |",
        "| NCCL one rank, all_reduce | 1000 GB/s | - |",
        "| power under mixed load, by energy | 660 W of 700 W (94%) | 85% of the limit |",
        "8192 x 8192 x 4096, rates in TFLOP/s",
        "| bf16 | 700.0 | 710.0 | 690.0 | 0.970 | 0.980 | 0.990 | 0.31 s |",
        "| int8 | not measured | not measured | not measured | not measured | not measured | not measured | 0.40 s |",
    ):
        assert row in text
    assert "not measured:" not in text


def test_what_was_not_measured_says_why_and_keeps_what_there_is() -> None:
    text = markdown(
        _result(
            test_sm={"state": "failed", "why": "1 failed: a | b", "figures": {"passed": 4, "failed": ["a"]}},
            test_kernels={"state": "failed", "why": "no test was run: no GPU", "figures": {}},
            hbm={"state": "cut", "why": "it was not over after 52 s"},
            standard={"state": "left out", "why": "no time was left"},
            power={"state": "not reached", "figures": {}},
        )
    )
    for row in (
        "every SM | FAILED (4 passed, 1 failed): 1 failed: a \\| b | passed |",
        "kernels against the host | not measured: no test was run: no GPU | passed |",
        "| copy bandwidth on the device, read plus written | 3900 GB/s | - |",
        "| memory kernels and a round over all memory, the rest | not measured: it was not over after 52 s | - |",
        "| burn-in of the level standard | not measured: no time was left | - |",
        "| power check of the level standard | not measured: not reached | - |",
    ):
        assert row in text


def test_a_simulation_is_called_one() -> None:
    node = {"simulated": True, "gpus": [{"name": "NVIDIA H100"}]}
    text = markdown(_result(node={"figures": {"node": node}}, bandwidth={"figures": {}}))
    assert text.startswith("### NVIDIA H100 (simulated), 2026-01-01")


def test_a_session_that_has_just_begun_has_a_row_for_each_step() -> None:
    steps = {one.name: {"title": one.title, "state": "not reached"} for one in STEPS}
    text = markdown({"date": "2026-01-01", "steps": steps})
    assert text.startswith("### no GPU, 2026-01-01")
    assert text.count("| not measured: not reached |") == len(STEPS)
