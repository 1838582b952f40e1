"""Plain words for numbers, times and what a check covered."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.report import formatting
from gpu_burnin.types import CheckResult, Verdict
from tests.support import coverages


def test_bound_is_the_other_way_round_than_the_rate() -> None:
    assert formatting.bound(3 / 150) == "would see a fault coming every 50 s of verified work"
    assert formatting.bound(None) == formatting.bound(0.0) == ""


# Of a link under load.
_LINK = {"generation": 5, "width": 16}
COVERED: list[tuple[str, dict[str, Any], str]] = [
    (
        "state",
        {"gpus": 8, "rules": 1, "unread": {"GPU 0": {"x": ["a", "b"]}}},
        "8 GPUs against 1 rule, 2 values could not be read",
    ),
    ("sm", {"sms_total": 132, "sms_covered": 131, "sms_by_kernel": {"fp32": 131, "int": 130}}, "131 of 132 SMs"),
    (
        "sm",
        {"sms_total": 132, "sms_covered": 132, "sms_by_kernel": {"fp32": 132, "int": 132}},
        "132 of 132 SMs, each with fp32, int",
    ),
    (
        "hbm",
        {"covered_bytes": 2**30, "gpu_memory_bytes": 2**31, "patterns": ["a"], "rounds": 2},
        "1 GiB of 2 GiB (50.0%), 1 pattern, 2 rounds",
    ),
    ("hbm", {"covered_bytes": 2**20, "simulated": True}, "1 MiB of host memory, no GPU memory, 0 rounds"),
    (
        "nvlink",
        {"pairs_total": 7, "pairs_covered": 6, "transfers_checked": 35, "bytes_verified": 2**30},
        "6 of 7 other GPUs, both ways, 35 transfers (1 GiB) verified",
    ),
    ("nvlink", {"pairs_total": 0, "pairs_covered": 0, "why": "no pair of GPUs"}, "no pair of GPUs"),
    (
        "gemm",
        {
            "products": {"bf16": 900, "fp64": 100},
            "shape": [4096, 4096, 4096],
            "phases": {"exact": 900, "random": 100},
            "data_path": {
                "bf16": {"proven": True, "rate_floor": 500.0},
                "tf32": {"proven": True, "rate_floor": None},
                "fp64": {"proven": False},
                "int8": {"proven": False, "asked": False},
            },
            "precisions_not_covered": ["fp8"],
            "bytes_moved": 2**40,
        },
        "1,000 products in bf16, fp64, 4096 x 4096 x 4096, phases exact, random, "
        "data path proven for 2 of 3 precisions (bf16 by rate), not required of this model: int8, "
        "not: fp8, 1 TiB moved",
    ),
    (
        "gemm",
        {"products": {"bf16": 1}, "data_path": {"bf16": {"proven": False}}, "simulated": True},
        "1 product in bf16, 0 x 0 x 0",
    ),
    (
        "hbm",
        {"covered_bytes": 2**30, "gpu_memory_bytes": 2**31, "unreachable_bytes": 2**20, "retention_s": 60.0},
        "1 GiB of 2 GiB (50.0%), 1 MiB out of reach, 0 rounds, kept for 1 min",
    ),
    (
        "pcie",
        {
            "pcie_bytes_moved": 2**37,
            "copies_moved": 720,
            "copies_verified": 720,
            "link": {"generation": 5, "width": 16},
        },
        "128 GiB copied between host and GPU, 720 copies verified word by word, link at generation 5 x16 under load",
    ),
    (
        "nvlink",
        {"pairs_total": 7, "pairs_covered": 6, "transfers_checked": 196, "bytes_verified": 2**35},
        "6 of 7 other GPUs, both ways, 196 transfers (32 GiB) verified",
    ),
    (
        "nvlink",
        {"pairs_total": 0, "pairs_covered": 0, "why": "no pair of GPUs: there is one GPU"},
        "no pair of GPUs: there is one GPU",
    ),
    (
        "nccl",
        {
            "ranks": 8,
            "gpus_in_plan": 8,
            "operations_verified": 1200,
            "types": ["int32", "bf16"],
            "curves": [
                {"collective": "", "algorithm": "ring", "points": [{"size_bytes": 8}], "transport": ["P2P/CUMEM"]},
                {"collective": "", "algorithm": "nvls"},
            ],
        },
        "8 of 8 GPUs together, 1,200 collectives compared on every GPU, types int32, bf16, algorithms ring, "
        "over P2P/CUMEM",
    ),
    ("nccl", {"ranks": 1, "operations_verified": 0}, "one GPU alone, so nothing between GPUs"),
    (
        "power",
        {
            "waves": {"run": True, "frequencies_hz": [0.5, 1.0, 20], "edges": 300, "started_s": 0, "ended_s": 1},
            "mixed": {
                "run": True,
                "started_s": 0,
                "ended_s": 5.6,
                "seconds": 5.6,
                "pcie": {"run": True, "copies_moved": 2400, "copies_verified": 12},
            },
            "power": {"phases": {"mixed": {"seconds": 5.0, "share_of_limit": 0.962}}},
        },
        "waves of 0.5, 1, 20 Hz together, 300 edges with exact products, mixed load for 5.6 s, "
        "its copies are load, 12 of 2,400 with the host verified, at 96% of the power limit",
    ),
    ("power", {"waves": {"wanted": True, "run": False, "why": "not granted"}}, "no waves (not granted)"),
    (
        "dcgm",
        {"release": "4.5.2", "level": 2, "tests": [{"result": "Pass"}, {"result": "Pass"}, {"result": "Skip"}]},
        "DCGM 4.5.2 at its level 2, an opinion of its own, 2 Pass, 1 Skip",
    ),
]


@pytest.mark.parametrize(("name", "coverage", "text"), COVERED)
def test_coverage_in_words(name: str, coverage: dict[str, Any], text: str) -> None:
    covered = coverages.coverage(name, **coverage)
    assert formatting.covered(CheckResult(name, "G", Verdict.PASS, 12.0, coverage=covered)) == text


@pytest.mark.parametrize("name", CHECKS)
def test_a_result_that_says_nothing_of_its_coverage_has_words(name: str) -> None:
    assert formatting.covered(CheckResult(name, "G", Verdict.PASS, 12.0)) == "ran for 12 s"
