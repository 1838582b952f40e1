"""The steps of the hardware day, and how the time is shared between them. Pure; standard library alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

# Seconds for everything: a run of ten minutes has to hold it.
TOTAL_S = 540.0
# At a step's deadline: SIGTERM, so long to end by itself, SIGKILL, so long to be gone. The step's own time holds both.
TERM_S, KILL_S = 6.0, 2.0
STOP_S = TERM_S + KILL_S
# Writing and printing after the last step.
CLOSING_S = 3.0


@dataclass(frozen=True)
class Step:
    """One thing to be done in a process of its own. With less than `least_s` it is of no use, `most_s` is its deadline.

    Both hold the time that it takes to be stopped. Time that is short goes to the lowest `priority` first. An
    `optional` step that found no time is no failure.
    """

    name: str
    title: str
    least_s: float
    most_s: float
    priority: int
    optional: bool = False


STEPS = (
    Step("versions", "versions of everything, and what is missing", 10, 30, 0),
    Step("node", "state of the node by NVML, and what could not be read", 10, 40, 0),
    Step("nvidia_smi", "nvidia-smi -q", 10, 25, 0),
    Step("test_kernels", "`tests/gpu/test_kernels.py`: kernels against the host", 15, 60, 2),
    Step("test_products", "`tests/gpu/test_products.py`: golden digests, data paths, planted faults", 20, 90, 2),
    Step("test_sm", "`tests/gpu/test_sm.py`: every SM", 15, 45, 2),
    Step("test_hbm", "`tests/gpu/test_hbm.py`: all of the memory, planted faults", 20, 90, 2),
    Step("test_pcie", "`tests/gpu/test_pcie.py`: PCIe", 15, 60, 2),
    Step("test_nccl", "`tests/gpu/test_nccl.py`: collectives", 15, 70, 2),
    Step("test_nvlink", "`tests/gpu/test_nvlink.py`: copies between GPUs", 15, 60, 2),
    Step("test_power", "`tests/gpu/test_power.py`: waves and mixed load", 30, 100, 2),
    Step("quick", "burn-in of the level quick", 80, 130, 1),
    Step("nccl_all", "NCCL with all GPUs", 15, 120, 3),
    Step("bandwidth", "read bandwidth and digest kernels", 15, 40, 3),
    Step("rates", "rates of products", 20, 70, 3),
    Step("detection", "time from a planted fault to its detection", 20, 60, 3),
    Step("hbm", "memory kernels and a round over all memory", 20, 60, 3),
    Step("pcie", "PCIe rates", 15, 45, 3),
    Step("nccl", "NCCL with one rank", 15, 45, 3),
    Step("power", "power check of the level standard", 45, 75, 3),
    Step("standard", "burn-in of the level standard", 315, 350, 4, optional=True),
)


def chosen(names: Sequence[str], standard: bool) -> tuple[Step, ...]:
    """The steps by name, all without any. `standard`: that burn-in right after the quick one, before what is measured.

    Raises ValueError for a name that is none.
    """
    unknown = set(names) - {step.name for step in STEPS}
    if unknown:
        raise ValueError(f"unknown step {sorted(unknown)[0]!r}: choose from {', '.join(step.name for step in STEPS)}")
    found = [step for step in STEPS if not names or step.name in names]
    if standard and (forced := next((step for step in found if step.name == "standard"), None)):
        found.remove(forced)
        first = next((i + 1 for i, step in enumerate(found) if step.name == "quick"), 3)
        found.insert(first, replace(forced, priority=1, optional=False))
    return tuple(found)


def allowance(steps: Sequence[Step], elapsed_s: float, total_s: float = TOTAL_S) -> float | None:
    """Seconds for the first of these steps, when they are what is left; None when there is no time for it.

    By priority, then by order, each step that still fits gets its least time kept; the first gets all that is not
    kept for others, up to its most. So no step, however long it hangs, takes the time of a more important one, and
    all together end before `total_s`.
    """
    left_s = total_s - CLOSING_S - elapsed_s
    kept_s, admitted = 0.0, False
    for step in sorted(steps, key=lambda step: step.priority):
        if kept_s + step.least_s <= left_s:
            kept_s += step.least_s
            admitted = admitted or step is steps[0]
    if not admitted:
        return None
    return min(steps[0].most_s, left_s - (kept_s - steps[0].least_s))
