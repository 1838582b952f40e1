"""The rows for docs/verified-hardware.md. Pure: figures in, Markdown out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def markdown(result: Mapping[str, Any]) -> str:
    """A section for one machine: what it is, then each figure beside its goal."""
    facts = result["facts"]
    packages = ", ".join(f"{name} {version}" for name, version in result["packages"].items())
    lines = [
        f"### {facts['device']}, {result['date']}",
        "",
        f"Driver {result['driver']}, CUDA runtime {facts['cuda_runtime']}, cublasLt {facts['cublaslt']}; {packages}.",
        "",
        "| figure | measured | goal |",
        "|---|---|---|",
        *(f"| {name} | {value} | {goal} |" for name, value, goal in rows(result)),
        "",
        "{m} x {n} x {k}, rates in TFLOP/s (INT8: TOP/s):".format(**result["shape"]),
        "",
        "| precision | cublasGemmEx | cublasLt | verified | ratio | its bound | share of bound | worst detection |",
        "|---|---|---|---|---|---|---|---|",
        *(_rate_row(rate, found) for rate, found in zip(result["rates"], result["detection"], strict=True)),
        "",
    ]
    return "\n".join(lines)


def rows(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Figures of the machine as a whole: name, measured, goal."""
    tests = result.get("tests")
    if tests is not None:
        yield "`pytest -m gpu tests/gpu`", "passed" if tests["exit_code"] == 0 else "FAILED", "passed"
    quick = result["quick"]
    verdict = f"{quick['verdict']}: {', '.join(quick['reasons'])}" if "verdict" in quick else quick["error"]
    yield "quick run, wall time", f"{quick['seconds']:.1f} s", "60 s"
    yield "quick run, verdict", verdict, "INCONCLUSIVE: COVERAGE_LOW (hbm)"
    yield "read bandwidth", f"{result['read_bandwidth'] / 1e9:.0f} GB/s", "-"
    for storage, share in result["digest_shares"].items():
        yield f"digest kernel, {storage}, share of read bandwidth", f"{share:.0%}", "80%"


def _rate_row(rate: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    cublas = "-" if rate["cublas"] is None else f"{rate['cublas']:.1f}"
    cells = (
        rate["precision"],
        cublas,
        f"{rate['plain']:.1f}",
        f"{rate['verified']:.1f}",
        f"{rate['ratio']:.3f}",
        f"{rate['bound']:.3f}",
        f"{rate['ratio'] / rate['bound']:.3f}",
        f"{found['worst_s']:.2f} s",
    )
    return f"| {' | '.join(cells)} |"
