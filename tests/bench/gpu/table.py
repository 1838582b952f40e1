"""The rows for docs/verified-hardware.md. Pure: figures in, Markdown out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.bench.gpu.power import power_rows


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
    for level, goal in (("quick", "60 s"), ("standard", "300 s")):
        if (run := result.get(level)) is not None:
            verdict = f"{run['verdict']}: {', '.join(run['reasons'])}" if "verdict" in run else run["error"]
            yield f"{level} run, wall time", f"{run['seconds']:.1f} s", goal
            yield f"{level} run, verdict", verdict, "PASS"
    yield "read bandwidth", f"{result['read_bandwidth'] / 1e9:.0f} GB/s", "-"
    for storage, share in result["digest_shares"].items():
        yield f"digest kernel, {storage}, share of read bandwidth", f"{share:.0%}", "80%"
    yield from _memory_rows(result["memory"])
    yield from power_rows(result["power"])
    yield from _link_rows(result["host_link"])
    yield from _nccl_rows(result["nccl"], result["nccl_all"])


def _memory_rows(memory: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The memory test beside a plain copy."""
    yield "copy bandwidth on the device, read plus written", f"{memory['copy_bandwidth'] / 1e9:.0f} GB/s", "-"
    for name, share in memory["shares"].items():
        yield f"memory kernel, {name}, share of copy bandwidth", f"{share:.0%}", "85%"
    yield "memory covered", f"{memory['covered_bytes'] / memory['total_bytes']:.1%}", "95%"
    sweep = f"{memory['sweep_seconds']:.1f} s on the device, {memory['sweep_wall_seconds']:.1f} s in all"
    yield f"one round of standard over all memory ({memory['sweep_verdict']})", sweep, "10 s on an H200"


def _link_rows(link: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Copies over PCIe beside plain pinned ones."""
    for direction, rate in link["link"].items():
        plain = link["plain"].get(direction)
        beside = f"{plain / 1e9:.1f} GB/s plain, in the same run" if plain else "-"
        yield f"PCIe {direction}, copies of {link['size_bytes'] >> 20} MiB", f"{rate / 1e9:.1f} GB/s", beside
    for direction, seconds in link["small_copy_s"].items():
        yield f"PCIe {direction}, one copy of 4 KiB among many", f"{seconds * 1e6:.2f} us", "-"
    yield "PCIe copies verified, wrong", f"{link['verified_share']:.0%}, {link['wrong_copies']}", "100%, 0"


def _nccl_rows(one: Mapping[str, Any], together: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Collectives of one GPU, and of all where there are several."""
    yield f"NCCL {one['version']}, communicator of one rank", f"{one['join_seconds']:.1f} s", "-"
    for name, rate in one.items():
        if name.endswith("_bytes_per_s"):
            yield f"NCCL one rank, {name.removesuffix('_bytes_per_s')}", f"{rate / 1e9:.0f} GB/s", "-"
    if "why" in together:
        yield "NCCL with all GPUs", f"not yet run: {together['why']}", "-"
        return
    yield "NCCL with all GPUs, verdict", ", ".join(together["verdicts"]), "PASS"
    for curve in together["curves"] or ():
        best = max((point["busbw_bytes_per_s"] for point in curve["points"]), default=None)
        if best is not None:
            what = f"NCCL {curve['collective']}, {curve['algorithm']}, bus bandwidth"
            yield what, f"{best / 1e9:.1f} GB/s over {', '.join(curve['transport'])}", "floor of the model"


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
