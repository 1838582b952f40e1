"""What the burn-in's machinery costs: start, memory, supervision, and how soon a planted fault is told.

Everything runs on this machine's CPU device and the lab's fake NVML: the figures are of the machinery, not of a GPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin import RunOptions, load_config, run_burnin
from gpu_burnin.api.levels import LEVELS
from tests.lab.fake_nvml.build import build
from tests.lab.paths import REPOSITORY

GPUS = 8
SCENARIO = REPOSITORY / "tests/lab/scenarios/healthy-8gpu.scenario"
HELP_GOAL_S, IDLE_GOAL, DETECTION_GOAL_S = 0.2, 0.02, 2.0
# A whole run of a level keeps to the level's time, and all its processes together to this memory.
MEMORY_GOAL_BYTES = {"quick": 1.5 * 2**30, "standard": 2.0 * 2**30}
FAULTS = (
    "sm:stuck_bit", "gemm:bitflip", "gemm:skipped_launch", "hbm:bitflip", "pcie:corrupted", "power:wrong_edge",
)  # fmt: skip
_IDLE_WINDOW_S = 10.0
_MEMORY_EVERY_S = 0.25
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figure:
    """One measured figure beside its goal; smaller is better."""

    name: str
    value: float
    goal: float
    unit: str

    def line(self) -> str:
        """The figure for a person."""
        met = "met" if self.value <= self.goal else "MISSED"
        return f"{self.name:44} {self.value:8.2f} {self.unit:4}  goal {self.goal:6.2f}  {met}"


@contextlib.contextmanager
def node(gpus: int = GPUS) -> Iterator[Path]:
    """A node of its own in a temporary folder: its configuration file. The fake NVML is in the environment."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        library = build(directory / "nvml")
        os.environ.update(LD_LIBRARY_PATH=str(library.parent), MUSTER_FAKE_NVML_SCENARIO=str(SCENARIO))
        key = directory / "ssh_host_ed25519_key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        (directory / "kmsg").write_text("6,0,100,-;Linux version 6.1\n")
        config = {
            "backend": "cpu",
            "allow_simulated": True,
            "expect": {"gpus": gpus},
            "host_key": str(key),
            "kernel_log": str(directory / "kmsg"),
            "state_dir": str(directory / "state"),
        }
        (directory / "config.yaml").write_text(yaml.safe_dump(config))
        try:
            yield directory / "config.yaml"
        finally:
            os.environ.clear()
            os.environ.update(before)


def _start(*arguments: str, **settings: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "gpu_burnin", *arguments], text=True, **settings)


def help_s(times: int = 7) -> float:
    """Wall seconds of `gpu-burnin --help`, the best of several: the rest is other programs' time."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        _start("--help", stdout=subprocess.DEVNULL).wait()
        taken.append(time.perf_counter() - started)
    return min(taken)


def family(pid: int) -> set[int]:
    """A process with all that descend from it."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def memory_bytes(pids: set[int]) -> int:
    """Memory of processes, what they share counted once (PSS)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            match = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            total += int(match[1]) * 1024 if match else 0
    return total


def whole_run(config: Path, level: str) -> tuple[float, int]:
    """Wall seconds and peak memory in bytes of a run of a level with its workers and samplers."""
    started = time.perf_counter()
    process = _start(
        "run", "--level", level, "--config", str(config), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    peak = 0
    ended = threading.Event()
    errors: list[str] = []

    def drain() -> None:
        errors.append(process.communicate()[1])
        ended.set()

    threading.Thread(target=drain).start()
    while not ended.wait(_MEMORY_EVERY_S):
        peak = max(peak, memory_bytes(family(process.pid)))
    seconds = time.perf_counter() - started
    if process.returncode != 0:
        raise SystemExit(f"the {level} run ended with exit code {process.returncode}:\n{errors[0]}")
    return seconds, peak


def _cpu_s(pid: int) -> float:
    """Processor seconds of one process with its threads, without its children (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def supervisor_share(config: Path, gpus: int = GPUS, window_s: float = _IDLE_WINDOW_S) -> float:
    """Share of a core that the supervisor takes while the workers of all GPUs are at the gemm check."""
    process = _start(
        "run", "--for", "10m", "--skip", "sm", "--config", str(config),
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    at_it = 0
    for line in process.stderr:
        at_it += "gemm started" in line
        if at_it == gpus:
            break
    threading.Thread(target=process.stderr.read, daemon=True).start()
    before, started = _cpu_s(process.pid), time.perf_counter()
    threading.Event().wait(window_s)
    share = (_cpu_s(process.pid) - before) / (time.perf_counter() - started)
    process.send_signal(signal.SIGINT)
    process.wait()
    return share


def detection_s(config: Path, fault: str) -> float:
    """Seconds from the start of a check with a planted fault (CHECK:FAULT) to the event that tells of it."""
    check = fault.split(":")[0]
    moments: dict[str, float] = {}

    def on_event(event: Mapping[str, Any]) -> None:
        if event.get("check") != check or event.get("gpu") is None:
            return
        if event["event"] == "check_started":
            moments.setdefault("started", time.perf_counter())
        elif event.get("errors") or event.get("codes"):
            moments.setdefault("told", time.perf_counter())

    def display(_: object) -> AbstractContextManager[Callable[[Mapping[str, Any]], None]]:
        return nullcontext(on_event)

    options = RunOptions(load_config(config), level="quick", checks=("state", check), gpus=("0",), inject=(fault,))
    outcome = run_burnin(options, display)
    if outcome.exit_code != 1:
        raise SystemExit(f"the planted fault {fault} was not found: verdict {outcome.verdict}")
    return moments["told"] - moments["started"]


def figures() -> Iterator[Figure]:
    """All figures, one after the other."""
    yield Figure("gpu-burnin --help", help_s(), HELP_GOAL_S, "s")
    with node() as config:
        for level, most_bytes in MEMORY_GOAL_BYTES.items():
            seconds, peak = whole_run(config, level)
            yield Figure(f"run --level {level}, {GPUS} simulated GPUs", seconds, LEVELS[level].total_s, "s")
            yield Figure("  peak memory with workers and samplers", peak / 2**30, most_bytes / 2**30, "GiB")
        yield Figure("supervisor while workers compute", supervisor_share(config) * 100, IDLE_GOAL * 100, "%")
        for fault in FAULTS:
            yield Figure(f"first detection of {fault}", detection_s(config, fault), DETECTION_GOAL_S, "s")


def main() -> int:
    """Print the table; 1 when a goal is missed."""
    load = os.getloadavg()[0]
    print(f"burn-in machinery on simulated hardware ({os.cpu_count()} cores, load {load:.1f})")
    missed = False
    for figure in figures():
        print(figure.line(), flush=True)
        missed = missed or figure.value > figure.goal
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
