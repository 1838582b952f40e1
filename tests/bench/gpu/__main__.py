"""`python -m tests.bench.gpu [--out DIR] [--no-tests] [--standard]`: the tests on a real GPU, then the measurements.

Prints the table of docs/verified-hardware.md and one JSON object; both, and the tests' JUnit file, go to --out too.
Exit code 1 when a test fails. Nothing is asserted of the figures: a person compares them with the goals in the table.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_burnin.compute.backend import BackendError
from gpu_burnin.compute.cuda import CudaBackend
from tests.bench.gpu.burnin import burn_in
from tests.bench.gpu.nccl import measure_all_gpus
from tests.bench.gpu.table import markdown

ROOT = Path(__file__).resolve().parents[3]


def run_tests(out: Path) -> dict[str, Any]:
    """pytest -m gpu tests/gpu, with its output on the terminal."""
    junit = out / "gpu-tests.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu", f"--junitxml={junit}"]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, check=False)
    return {"exit_code": done.returncode, "seconds": time.monotonic() - started}


def whole_run(level: str) -> dict[str, Any]:
    """Wall time of a burn-in, its verdict and the codes of its reasons."""
    ran = burn_in("--level", level)
    found: dict[str, Any] = {"exit_code": ran.exit_code, "seconds": ran.seconds}
    if ran.report is None:
        return {**found, "error": ran.errors.strip()[-500:]}
    seconds = {check["name"]: check["seconds"] for check in ran.report["checks"]}
    return {**found, "verdict": ran.report["verdict"], "reasons": ran.reasons, "check_seconds": seconds}


def measurements() -> dict[str, Any]:
    """Everything that needs the backend. Raises BackendError when there is no usable GPU."""
    from tests.bench.gpu import measure
    from tests.bench.gpu.host_link import measure_host_link
    from tests.bench.gpu.memory import measure_memory
    from tests.bench.gpu.nccl import measure_one_rank
    from tests.bench.gpu.power import measure_power

    backend = CudaBackend()
    backend.open(None)
    try:
        import cupy

        bandwidth = measure.read_bandwidth(cupy, backend.multiprocessors())
        result: dict[str, Any] = {"facts": dict(backend.facts()), "read_bandwidth": bandwidth, "rates": []}
        result["digest_shares"] = measure.digest_shares(backend, cupy, bandwidth)
        cupy.get_default_memory_pool().free_all_blocks()
        result["detection"] = []
        for precision in backend.precisions:
            rate = measure.rate(backend, cupy, precision, bandwidth)
            result["rates"].append({**asdict(rate), "ratio": rate.ratio})
            result["detection"].append(asdict(measure.detection(backend, cupy, precision)))
            cupy.get_default_memory_pool().free_all_blocks()
        result["shape"] = asdict(measure.RATE_SHAPE)
        result["memory"] = measure_memory(backend, cupy)
        result["nccl"] = measure_one_rank(backend)
        result["power"] = measure_power(backend, cupy)
        result["host_link"] = measure_host_link(backend, cupy)
    finally:
        backend.close()
    return result


def driver() -> str:
    """Version of the NVIDIA driver, by NVML."""
    import pynvml

    pynvml.nvmlInit()
    try:
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    finally:
        pynvml.nvmlShutdown()


def wheels() -> dict[str, str]:
    """Versions of the packages that matter."""
    names = (
        "cupy-cuda12x", "cupy-cuda13x", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
        "numpy", "ml-dtypes",
    )  # fmt: skip
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main() -> int:
    """Tests, quick run, measurements, table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder for JSON, table and JUnit")
    parser.add_argument("--no-tests", action="store_true", help="measure only")
    parser.add_argument("--standard", action="store_true", help="also a whole run of the level standard: 5 minutes")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "packages": wheels()}
    try:
        if not options.no_tests:
            result["tests"] = run_tests(out)
        # A burn-in needs the GPU for itself, so these come before the backend is opened here.
        result["quick"] = whole_run("quick")
        if options.standard:
            result["standard"] = whole_run("standard")
        result["nccl_all"] = measure_all_gpus()
        result |= measurements()
        result["driver"] = driver()
    except BackendError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    text = markdown(result)
    (out / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "bench.md").write_text(text)
    print(json.dumps(result, indent=1))
    print(text)
    return 1 if result.get("tests", {}).get("exit_code") else 0


if __name__ == "__main__":
    sys.exit(main())
