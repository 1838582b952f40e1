"""What a report's values are called in plain words: times, sizes, actions, what a check covered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from gpu_burnin.checks.dcgm.result import DcgmCoverage
from gpu_burnin.checks.gemm.result import DataPath, GemmCoverage
from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.checks.sm.result import SmCoverage
from gpu_burnin.checks.state.result import StateCoverage
from gpu_burnin.report.model import Report
from gpu_burnin.report.said import common_codes
from gpu_burnin.settings import expectations
from gpu_burnin.settings.expectations import summary
from gpu_burnin.system.values import mapping_of, names_of, number_of, numbers_of, rows_of, text_of
from gpu_burnin.telemetry import node_links
from gpu_burnin.types import JSON, CheckResult, Coverage, Untyped

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


def _pcie(coverage: Mapping[str, JSON]) -> list[str]:
    verified, moved = number_of(coverage, "copies_verified"), number_of(coverage, "pcie_bytes_moved")
    copies = number_of(coverage, "copies_moved")
    part = f" of {copies:,} moved" if copies is not None and copies != verified else ""
    link = mapping_of(coverage, "link")
    generation, width = number_of(link, "generation"), number_of(link, "width")
    known = generation is not None and width is not None
    return [
        *([f"{size(moved)} copied between host and GPU"] if moved else []),
        *([f"{_count(verified, 'copy', 'copies')}{part} verified word by word"] if verified is not None else []),
        *([f"link at generation {generation} x{width} under load"] if known else []),
    ]


def _nvlink(coverage: Mapping[str, JSON]) -> list[str]:
    if why := coverage.get("why"):
        return [str(why)]
    total, covered = number_of(coverage, "pairs_total"), number_of(coverage, "pairs_covered")
    checked, verified = number_of(coverage, "transfers_checked"), number_of(coverage, "bytes_verified")
    return [
        *([f"{covered} of {total} other GPUs, both ways"] if total is not None and covered is not None else []),
        *([f"{_count(checked, 'transfer')} ({size(verified)}) verified"] if checked and verified else []),
    ]


def _power(coverage: Mapping[str, JSON]) -> list[str]:
    waves, mixed, power = (mapping_of(coverage, key) for key in ("waves", "mixed", "power"))
    hertz = [f"{value:g}" for value in numbers_of(waves, "frequencies_hz")]
    edges, mixed_s = number_of(waves, "edges"), number_of(mixed, "seconds")
    reached = number_of(mapping_of(mapping_of(power, "phases"), "mixed"), "share_of_limit")
    load = mapping_of(mixed, "pcie")
    copies, seen = number_of(load, "copies_moved"), number_of(load, "copies_verified")
    return [
        *([f"waves of {', '.join(hertz)} Hz together"] if hertz else []),
        *([f"no waves ({waves.get('why')})"] if waves and not waves.get("run") else []),
        *([f"{_count(edges, 'edge')} with exact products"] if edges else []),
        *([f"mixed load for {duration(mixed_s)}"] if mixed_s else []),
        *(
            [f"its copies are load, {seen:,} of {copies:,} with the host verified"]
            if copies and seen is not None
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


def _nccl(coverage: Mapping[str, JSON]) -> list[str]:
    ranks, planned = number_of(coverage, "ranks"), number_of(coverage, "gpus_in_plan")
    if ranks is None:
        return []
    verified, types = number_of(coverage, "operations_verified"), names_of(coverage, "types")
    rows = rows_of(coverage, "curves")
    algorithms = [*dict.fromkeys(str(row.get("algorithm")) for row in rows if row.get("points"))]
    ways = [*dict.fromkeys(str(way) for row in rows for way in names_of(row, "transport"))]
    together = f"{ranks:,} of {_count(planned or ranks, 'GPU')} together"
    return [
        together if ranks > 1 else "one GPU alone, so nothing between GPUs",
        *([f"{_count(verified, 'collective')} compared on every GPU"] if verified else []),
        *([f"types {', '.join(types)}"] if types else []),
        *([f"algorithms {', '.join(algorithms)}"] if algorithms else []),
        *([f"over {', '.join(ways)}"] if ways else []),
    ]


_COVERED: Mapping[type[Coverage], Callable[[Any], list[str]]] = {
    StateCoverage: _state,
    GemmCoverage: _gemm,
    SmCoverage: _sm,
    HbmCoverage: _hbm,
    DcgmCoverage: _dcgm,
}
_UNTYPED = {"pcie": _pcie, "nvlink": _nvlink, "nccl": _nccl, "power": _power}


def covered(result: CheckResult) -> str:
    """What a check looked at, in words; how long it ran where it does not say."""
    say = _COVERED.get(type(result.coverage))
    parts = say(result.coverage) if say else []
    if isinstance(result.coverage, Untyped):
        parts = _UNTYPED[result.name](result.coverage)
    if result.coverage.bytes_moved:
        parts.append(f"{size(result.coverage.bytes_moved)} moved")
    return ", ".join(parts) or f"ran for {duration(result.seconds)}"
