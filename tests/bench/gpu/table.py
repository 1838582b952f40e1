"""The rows for docs/verified-hardware.md. Pure, standard library alone: results in, Markdown out.

Every step of a session has its rows: what was measured, and "not measured: why" for what was not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Row = tuple[str, str, str]
Figures = Mapping[str, Any]


def markdown(result: Mapping[str, Any]) -> str:
    """A section for one machine: what it is, then each figure beside its goal."""
    steps = result["steps"]
    lines = [
        f"### {device(steps)}, {result['date']}",
        "",
        software(steps),
        "",
        "| figure | measured | goal |",
        "|---|---|---|",
        *(f"| {' | '.join(_cell(text) for text in row)} |" for row in rows(steps)),
        "",
        *_rates(steps),
    ]
    return "\n".join(lines)


def device(steps: Mapping[str, Any]) -> str:
    """Name of the GPU: as CUDA gives it, else as NVML does."""
    names = [_facts(steps).get("device"), *(gpu.get("name") for gpu in _node(steps).get("gpus", ()))]
    name = next((str(name) for name in names if name), "no GPU")
    return f"{name} (simulated)" if _node(steps).get("simulated") is True else name


def software(steps: Mapping[str, Any]) -> str:
    """One line on driver, libraries and packages."""
    facts, node = _facts(steps), _node(steps)
    packages = _figures(steps, "versions").get("packages", {})
    told = {
        "Driver": node.get("driver_version"), "NVML": node.get("nvml_version"),
        "CUDA runtime": facts.get("cuda_runtime"), "CUDA driver": facts.get("cuda_driver"),
        "cublasLt": facts.get("cublaslt"), "NVRTC": facts.get("nvrtc"),
    }  # fmt: skip
    known = ", ".join(f"{name} {value if value else 'not known'}" for name, value in told.items())
    return f"{known}; {', '.join(f'{name} {version}' for name, version in packages.items()) or 'packages not known'}."


def rows(steps: Mapping[str, Any]) -> Iterator[Row]:
    """Name, measured, goal: of each step what it has told, and why not the rest."""
    for name, step in steps.items():
        figures = step.get("figures") or {}
        told = list(_ROWS.get(name, _nothing)(figures))
        yield from told
        title = step["title"]
        if name.startswith("test_"):
            yield title, _tests(step, figures), "passed"
        elif step["state"] != "done":
            yield f"{title}{', the rest' if told else ''}", f"not measured: {step.get('why', step['state'])}", "-"


def _tests(step: Mapping[str, Any], figures: Figures) -> str:
    """Outcome of one file of tests."""
    counts = f"{figures.get('passed', 0)} passed, {len(figures.get('failed', ()))} failed"
    skipped = "; ".join(f"{count} skipped: {why}" for why, count in figures.get("skipped", {}).items())
    if step["state"] == "done":
        return "; ".join(filter(None, (counts, skipped)))
    if figures.get("passed") or figures.get("failed"):
        return f"{'FAILED' if step['state'] == 'failed' else 'not all run'} ({counts}): {step.get('why', '')}"
    return f"not measured: {step.get('why', step['state'])}"


def _node_rows(node: Figures) -> Iterator[Row]:
    for number, whys in enumerate(node.get("unread", {}).values()):
        counts: dict[str, list[str]] = {}
        for name, why in whys.items():
            counts.setdefault(why, []).append(name)
        told = "; ".join(f"{why}: {', '.join(sorted(names))}" for why, names in sorted(counts.items()))
        yield f"values that NVML did not give, GPU {number}", told or "none", "-"


def _run_rows(level: str, goal: str) -> Callable[[Figures], Iterator[Row]]:
    def found(run: Figures) -> Iterator[Row]:
        if "seconds" in run:
            yield f"{level} run, wall time", f"{run['seconds']:.1f} s", goal
        if "verdict" in run:
            yield f"{level} run, verdict", ": ".join(filter(None, (run["verdict"], ", ".join(run["reasons"])))), "PASS"
            took = ", ".join(f"{name} {seconds:.1f}" for name, _, seconds in run["check_seconds"])
            yield f"{level} run, seconds of the checks", took, "-"
        if "shortfalls" in run:
            yield f"{level} run, what every check of a GPU should do", "; ".join(run["shortfalls"]) or "done", "done"

    return found


def _bandwidth_rows(found: Figures) -> Iterator[Row]:
    if "read_bandwidth" in found:
        yield "read bandwidth (the base of the rows below)", f"{found['read_bandwidth'] / 1e9:.0f} GB/s", "-"
    for storage, share in found.get("digest_shares", {}).items():
        yield f"digest kernel, {storage}, share of read bandwidth", f"{share:.0%}", "80%"


def _hbm_rows(memory: Figures) -> Iterator[Row]:
    if "copy_bandwidth" in memory:
        yield "copy bandwidth on the device, read plus written", f"{memory['copy_bandwidth'] / 1e9:.0f} GB/s", "-"
    if "sweep_seconds" in memory:
        yield "memory covered", f"{memory['covered_bytes'] / memory['total_bytes']:.1%}", "95%"
        sweep = f"{memory['sweep_seconds']:.1f} s on the device, {memory['sweep_wall_seconds']:.1f} s in all"
        yield f"one round of standard over all memory ({memory['sweep_verdict']})", sweep, "10 s on an H200"
    for name, share in memory.get("shares", {}).items():
        yield f"memory kernel, {name}, share of copy bandwidth", f"{share:.0%}", "85%"


def _power_rows(found: Figures) -> Iterator[Row]:
    if "verdict" not in found:
        return
    yield "power check of standard, verdict", ": ".join([found["verdict"], *found["reasons"]]), "PASS"
    mixed = ((found["power"] or {}).get("phases") or {}).get("mixed") or {}
    if mixed.get("mean_power_w") is not None:
        value = f"{mixed['mean_power_w']:.0f} W of {found['power_limit_w']} W ({mixed['share_of_limit']:.0%})"
        yield f"power under mixed load, by {mixed['power_source']}", value, "85% of the limit"
    else:
        yield "power under mixed load", f"not measured: {mixed.get('energy_why')}", "85% of the limit"
    for one in found["waves"].get("frequencies", ()):
        made = f"{one['periods_made']} of {one['periods_planned']} periods, load {one['load_share']:.0%}"
        late = f"latest edge {one['worst_lateness_s'] * 1e3:.2f} ms"
        yield f"wave of {one['frequency_hz']:g} Hz", f"{made}, {late}", "90% of the periods"


def _pcie_rows(link: Figures) -> Iterator[Row]:
    for direction, rate in link.get("link", {}).items():
        plain = link["plain"].get(direction)
        beside = f"{plain / 1e9:.1f} GB/s plain, in the same run" if plain else "-"
        yield f"PCIe {direction}, copies of {link['size_bytes'] >> 20} MiB", f"{rate / 1e9:.1f} GB/s", beside
    for direction, share in link.get("copying_share", {}).items():
        yield f"PCIe {direction}, share of copying beside verifying every copy", f"{share:.1%}", "-"
    for direction, seconds in link.get("small_copy_s", {}).items():
        yield f"PCIe {direction}, one copy of 4 KiB among many", f"{seconds * 1e6:.2f} us", "-"
    if "verified_share" in link:
        yield "PCIe copies verified, wrong", f"{link['verified_share']:.0%}, {link['wrong_copies']}", "100%, 0"


def _nccl_rows(one: Figures) -> Iterator[Row]:
    if "version" in one:
        yield f"NCCL {one['version']}, communicator of one rank", f"{one['join_seconds']:.1f} s", "-"
    for name, rate in one.items():
        if name.endswith("_bytes_per_s"):
            yield f"NCCL one rank, {name.removesuffix('_bytes_per_s')}", f"{rate / 1e9:.0f} GB/s", "-"
        elif name.endswith("_operating_share"):
            what = f"NCCL one rank, {name.removesuffix('_operating_share')}, share of operating beside comparing"
            yield what, f"{rate:.1%}", "-"


def _nccl_all_rows(together: Figures) -> Iterator[Row]:
    if "verdicts" in together:
        yield "NCCL with all GPUs, verdict", ", ".join(together["verdicts"]), "PASS"
    for curve in together.get("curves") or ():
        best = max((point["busbw_bytes_per_s"] for point in curve["points"]), default=None)
        if best is not None:
            what = f"NCCL {curve['collective']}, {curve['algorithm']}, bus bandwidth"
            yield what, f"{best / 1e9:.1f} GB/s over {', '.join(curve['transport'])}", "floor of the model"


def _nothing(_: Figures) -> Iterator[Row]:
    """Steps whose figures are in no row: those above the table, and the rates below it."""
    return iter(())


_ROWS: dict[str, Callable[[Figures], Iterator[Row]]] = {
    "node": _node_rows,
    "quick": _run_rows("quick", "60 s"),
    "standard": _run_rows("standard", "300 s"),
    "bandwidth": _bandwidth_rows,
    "hbm": _hbm_rows,
    "power": _power_rows,
    "pcie": _pcie_rows,
    "nccl": _nccl_rows,
    "nccl_all": _nccl_all_rows,
}


def _rates(steps: Mapping[str, Any]) -> Iterator[str]:
    """The table of products, of each precision that was measured; nothing when none was."""
    rates = {rate["precision"]: rate for rate in _figures(steps, "rates").get("rates", ())}
    seen = {found["precision"]: found for found in _figures(steps, "detection").get("detection", ())}
    if not rates and not seen:
        return
    if (shape := _figures(steps, "rates").get("shape")) is not None:
        yield "{m} x {n} x {k}, rates in TFLOP/s (INT8: TOP/s):".format(**shape)
        yield ""
    yield "| precision | cublasGemmEx | cublasLt | verified | ratio | its bound | share of bound | worst detection |"
    yield "|---|---|---|---|---|---|---|---|"
    for precision in dict.fromkeys((*rates, *seen)):
        yield _rate_row(precision, rates.get(precision), seen.get(precision))
    yield ""


def _rate_row(precision: str, rate: Figures | None, found: Figures | None) -> str:
    cells = ["not measured"] * 6
    if rate is not None:
        cells = [
            "-" if rate["cublas"] is None else f"{rate['cublas']:.1f}",
            f"{rate['plain']:.1f}",
            f"{rate['verified']:.1f}",
            f"{rate['ratio']:.3f}",
            f"{rate['bound']:.3f}",
            f"{rate['ratio'] / rate['bound']:.3f}",
        ]
    worst = "not measured" if found is None else f"{found['worst_s']:.2f} s"
    return f"| {' | '.join((precision, *cells, worst))} |"


def _figures(steps: Mapping[str, Any], name: str) -> Figures:
    return (steps.get(name) or {}).get("figures") or {}


def _node(steps: Mapping[str, Any]) -> Figures:
    return _figures(steps, "node").get("node") or {}


def _facts(steps: Mapping[str, Any]) -> Figures:
    """What the device said of itself in the first step that opened it."""
    found = (_figures(steps, name).get("facts") for name in steps)
    return next((facts for facts in found if facts), {})


def _cell(text: str) -> str:
    """Text as it may stand in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
