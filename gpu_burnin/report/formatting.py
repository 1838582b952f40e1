"""What a report says in plain text: times, sizes, actions, what a check covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gpu_burnin.checks.dcgm.result import DcgmCoverage
from gpu_burnin.checks.gemm.result import DataPath, GemmCoverage
from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.checks.nccl.result import NcclCoverage
from gpu_burnin.checks.nvlink.result import NvlinkCoverage
from gpu_burnin.checks.pcie.result import PcieCoverage
from gpu_burnin.checks.power.result import PowerCoverage, WavesMade
from gpu_burnin.checks.sm.result import SmCoverage
from gpu_burnin.checks.state.result import StateCoverage
from gpu_burnin.report.check_findings import common_codes
from gpu_burnin.report.model import Report
from gpu_burnin.settings import expectations
from gpu_burnin.settings.expectations import summary
from gpu_burnin.system.entries import mapping_of, text_of
from gpu_burnin.telemetry import node_links
from gpu_burnin.types import CheckResult, Coverage

# The action of a report as an order to a person.
ACTIONS: Mapping[str, str] = {
    "none": "Nothing to do",
    "retest": "Test again",
    "reset_gpu": "Reset the GPU, then test again",
    "reboot": "Reboot the machine, then test again",
    "power_cycle": "Power the machine off and on, then test again",
    "repair": "Repair: have the hardware checked or replaced",
    "hold": "Keep the node out until a person has looked at it",
}
GB = 1e9
# Times below are given in microseconds.
SHORT_S = 0.01
_STEPS_S = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def next_step(report: Report) -> str:
    """The action of a report as an order to a person; what injected faults ask for is not the hardware's."""
    order = ACTIONS.get(report["action"], report["action"])
    if shared := common_cause(report):
        order = f"{shared}. If that is sound: {order[:1].lower()}{order[1:]}"
    if not report["coverage"]["injected"]:
        return order
    return f"Run again without --inject. Only if the fault was not injected: {order[:1].lower()}{order[1:]}"


def taken_for(report: Report) -> str:
    """What the run expected of the node, and which NVLinks it assumed; "" where the models say it all."""
    options = mapping_of(report["plan"], "options")
    told = (summary(mapping_of(options, expectations.KEY)), text_of(mapping_of(options, node_links.KEY), "why"))
    sentences = [f"{part[:1].upper()}{part[1:]}." for part in told if part]
    return " ".join(sentences)


def common_cause(report: Report) -> str | None:
    """Where to look first when all that failed, failed on every GPU: eight GPUs seldom break at once. Else None."""
    failed = {reason["code"] for reason in report["reasons"] if reason["severity"] == "FAIL"}
    if not failed or not failed <= common_codes(report):
        return None
    told = mapping_of(mapping_of(report["plan"], "options"), expectations.KEY)
    shared = ("what was expected of them, " if told else "") + "driver and libraries, power, cooling, board, host"
    return f"All {len(report['gpus'])} GPUs failed alike, so look first at what they share: {shared}"


def duration(seconds: float) -> str:
    """A time as people say it: 0.12 s, 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    left = round(seconds)
    for index, (step, unit) in enumerate(_STEPS_S):
        if left >= step:
            smaller, name = _STEPS_S[index + 1] if index + 1 < len(_STEPS_S) else (1.0, "s")
            rest = int(left % step // smaller)
            return f"{int(left // step)} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{left} s"


def size(size_bytes: float) -> str:
    """A size in binary units."""
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.4g} {units[0]}"


def number(value: float | None) -> str:
    """Four digits that count, whole numbers in groups of three: 0.02341, 12.3, 812.4, 1,482."""
    if value is None:
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def rate(value: float | None, unit: str) -> str:
    """A number with its unit; bytes per second and short times in the units people use."""
    if unit == "B/s" and value is not None:
        return f"{number(value / 1e9)} GB/s"
    if unit == "s" and value is not None and 0 < abs(value) < SHORT_S:
        return f"{number(float(f'{value * 1e6:.4g}'))} µs"
    return f"{number(value)} {unit}" if unit not in ("", "1") else number(value)


def bound(rate_per_s: float | None) -> str:
    """What the upper 95 % bound of a missed fault's rate means; empty when there is none."""
    if not rate_per_s:
        return ""
    return f"a fault that comes every {duration(1 / rate_per_s)} of verified work or more often would have shown"


def _count(value: object, one: str, many: str | None = None) -> str:
    return f"{value:,} {one if value == 1 else many or one + 's'}"


def _state(coverage: StateCoverage) -> list[str]:
    unread = sum(len(fields) for whys in coverage.unread.values() for fields in whys.values())
    return [
        f"{_count(coverage.gpus, 'GPU')} against {_count(coverage.rules, 'rule')}",
        *([f"{_count(unread, 'value')} could not be read"] if unread else []),
    ]


def _gemm(coverage: GemmCoverage) -> list[str]:
    products, missing = coverage.products, coverage.precisions_not_covered
    ranges = {name for names in coverage.ranges.values() for name in names}
    return [
        *([f"{_count(sum(products.values()), 'product')} in {', '.join(products)}"] if products else []),
        " x ".join(map(str, coverage.shape)),
        *([f"phases {', '.join(coverage.phases)}"] if coverage.phases else []),
        *([_count(len(ranges), "range of operands", "ranges of operands")] if ranges else []),
        *([] if coverage.simulated else _data_paths(coverage.data_path)),  # host arithmetic has no such paths
        *([f"not: {', '.join(missing)}"] if missing else []),
    ]


def _data_paths(paths: Mapping[str, DataPath]) -> list[str]:
    """How many precisions proved the unit that they ran on, which by rate, and which the model does not require."""
    asked = {name: path for name, path in paths.items() if path.asked}
    proven = {name: path for name, path in asked.items() if path.proven}
    by_rate = [name for name, path in proven.items() if path.rate_floor is not None]
    others = [name for name in paths if name not in asked]
    how = f" ({', '.join(by_rate)} by rate)" if by_rate else ""
    return [
        *([f"data path proven for {len(proven)} of {len(asked)} precisions{how}"] if asked else []),
        *([f"not required of this model: {', '.join(others)}"] if others else []),
    ]


def _sm(coverage: SmCoverage) -> list[str]:
    kernels = coverage.sms_by_kernel
    return [
        f"{coverage.sms_covered:,} of {coverage.sms_total:,} SMs",
        *([f"each with {', '.join(kernels)}"] if set(kernels.values()) == {coverage.sms_covered} else []),
    ]


def _hbm(coverage: HbmCoverage) -> list[str]:
    covered, memory = coverage.covered_bytes, coverage.gpu_memory_bytes
    if coverage.simulated:
        where = f"{size(covered)} of host memory, no GPU memory"
    elif memory:
        where = f"{size(covered)} of {size(memory)} ({covered / memory:.1%})"
    else:
        where = size(covered)
    return [
        where,
        *([f"{size(coverage.unreachable_bytes)} out of reach"] if coverage.unreachable_bytes else []),
        *([_count(len(coverage.patterns), "pattern")] if coverage.patterns else []),
        _count(coverage.rounds, "round"),
        *([f"kept for {duration(coverage.retention_s)}"] if coverage.retention_s else []),
    ]


def _pcie(coverage: PcieCoverage) -> list[str]:
    verified, copies, link = coverage.copies_verified, coverage.copies_moved, coverage.link
    part = f" of {copies:,} moved" if copies != verified else ""
    known = link is not None and link.generation is not None and link.width is not None
    return [
        *([f"{size(coverage.pcie_bytes_moved)} copied between host and GPU"] if coverage.pcie_bytes_moved else []),
        f"{_count(verified, 'copy', 'copies')}{part} verified word by word",
        *([f"link at generation {link.generation} x{link.width} under load"] if link and known else []),
    ]


def _nvlink(coverage: NvlinkCoverage) -> list[str]:
    if coverage.why:
        return [coverage.why]
    checked, verified = coverage.transfers_checked, coverage.bytes_verified
    return [
        f"{coverage.pairs_covered} of {coverage.pairs_total} other GPUs, both ways",
        *([f"{_count(checked, 'transfer')} ({size(verified)}) verified"] if checked and verified else []),
    ]


def _power(coverage: PowerCoverage) -> list[str]:
    waves, mixed, copies = coverage.waves, coverage.mixed, coverage.mixed.pcie
    made = waves if isinstance(waves, WavesMade) else None
    hertz = [f"{value:g}" for value in made.frequencies_hz] if made else []
    under_load = coverage.power.phases.get("mixed") if coverage.power else None
    reached = under_load.share_of_limit if under_load else None
    return [
        *([f"waves of {', '.join(hertz)} Hz together"] if hertz else []),
        *([] if made else [f"no waves ({waves.why})"]),
        *([f"{_count(made.edges, 'edge')} with exact products"] if made and made.edges else []),
        *([f"mixed load for {duration(mixed.seconds)}"] if mixed.seconds else []),
        *(
            [f"its copies are load, {copies.copies_verified:,} of {copies.copies_moved:,} with the host verified"]
            if copies.copies_moved
            else []
        ),
        *([f"at {reached:.0%} of the power limit"] if reached is not None else []),
    ]


def _dcgm(coverage: DcgmCoverage) -> list[str]:
    counts = Counter(row.result for row in coverage.tests)
    if not counts:
        return []
    return [
        f"DCGM {coverage.release} at its level {coverage.level}, an opinion of its own",
        ", ".join(f"{count} {result}" for result, count in counts.items()),
    ]


def _nccl(coverage: NcclCoverage) -> list[str]:
    ranks, verified, curves = coverage.ranks, coverage.operations_verified, coverage.curves
    algorithms = [*dict.fromkeys(curve.algorithm for curve in curves if curve.points)]
    ways = [*dict.fromkeys(way for curve in curves for way in curve.transport)]
    together = f"{ranks:,} of {_count(coverage.gpus_in_plan or ranks, 'GPU')} together"
    return [
        together if ranks > 1 else "one GPU alone, so nothing between GPUs",
        *([f"{_count(verified, 'collective')} compared on every GPU"] if verified else []),
        *([f"types {', '.join(coverage.types)}"] if coverage.types else []),
        *([f"algorithms {', '.join(algorithms)}"] if algorithms else []),
        *([f"over {', '.join(ways)}"] if ways else []),
    ]


_COVERED: Mapping[type[Coverage], Callable[[Any], list[str]]] = {
    StateCoverage: _state,
    GemmCoverage: _gemm,
    SmCoverage: _sm,
    HbmCoverage: _hbm,
    PcieCoverage: _pcie,
    NvlinkCoverage: _nvlink,
    NcclCoverage: _nccl,
    PowerCoverage: _power,
    DcgmCoverage: _dcgm,
}


def covered(result: CheckResult) -> str:
    """What a check looked at, in words; how long it ran where it does not say."""
    coverage = result.coverage
    describe = _COVERED.get(type(coverage))
    parts = describe(coverage) if describe else []
    if coverage.bytes_moved:
        parts.append(f"{size(coverage.bytes_moved)} moved")
    return ", ".join(parts) or f"ran for {duration(result.seconds)}"
