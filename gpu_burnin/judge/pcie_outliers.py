"""Is one GPU's PCIe link slower than those of its neighbours? Pure.

A floor of the model says what a good link reaches; the neighbours say what this node's links reach. The share below
is derived (links of one node and model differ by a few per cent; half the lanes or one generation less is half the
rate), so it warns and fails nobody.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator

from gpu_burnin.judge.floors import SLOW
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.types import JSON, CheckResult, Notice

# Under this share of the median of the others of its model.
LEAST_SHARE = 0.8
MEASUREMENTS = ("h2d", "d2h")


def judge_pcie_outliers(seen: Observations) -> Findings:
    """SLOW for each GPU whose rate alone, in one direction, is under LEAST_SHARE of the median of its neighbours.

    Neighbours are the other GPUs of its model on the node. Simulated links are as fast as the computer and are not
    compared, nor are the instances of a GPU in MIG mode, which share its link. A rate that is no number is slow.
    """
    whole = {gpu.uuid: gpu.sku for gpu in seen.gpus}
    return Findings(notices=tuple(_notices(seen.results, whole)))


def _notices(results: tuple[CheckResult, ...], models: dict[str, str]) -> Iterator[Notice]:
    groups: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for result in results:
        if result.name != "pcie" or result.gpu is None or result.gpu not in models or result.coverage.simulated:
            continue
        for measurement in result.measurements:
            if measurement.name in MEASUREMENTS:
                groups[measurement.name, models.get(result.gpu, "")][result.gpu] = float(measurement.value)
    for (name, model), rates in groups.items():
        for gpu, rate in rates.items():
            others = [other for uuid, other in rates.items() if uuid != gpu and other > 0]
            if others and not rate >= LEAST_SHARE * statistics.median(others):
                yield _notice(name, model, gpu, rate, statistics.median(others), len(others))


def _notice(name: str, model: str, gpu: str, rate: float, median: float, others: int) -> Notice:
    message = (
        f"{name} is {rate / 1e9:.4g} GB/s, under {LEAST_SHARE:.0%} of {median / 1e9:.4g} GB/s, the median of the other "
        f"{others} GPUs of its model on this node: compare link width and generation, and the slot"
    )
    details: dict[str, JSON] = {
        "measurement": name, "value": rate, "unit": "B/s", "median_of_others": median, "others": others,
        "least_share": LEAST_SHARE, "confidence": "derived", "model": model,
    }  # fmt: skip
    return Notice(SLOW, "pcie", message, gpu, details)
