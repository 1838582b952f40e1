"""What the GPUs of a node are to each other: the P2P matrix of the page, with what was blamed on a link or a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gpu_burnin.checks.nvlink.result import Matrix, NvlinkCoverage, Transfer, place_text
from gpu_burnin.report.grid import STEPS, Cell, Outline, grid
from gpu_burnin.report.model import Report
from gpu_burnin.report.units import results_of, without_name
from gpu_burnin.system.entries import mapping_of, names_of, text_of
from gpu_burnin.system.quantities import GB, number, rate
from gpu_burnin.types import COPY_DIRECTIONS, CheckResult, CopyDirection, Reason

_PATHS: Mapping[str, str] = {"nvlink": "NVLink", "nvswitch": "NVLink and NVSwitch", "pcie": "PCIe"}


@dataclass(frozen=True)
class Blame:
    """What was blamed on a link (two GPUs), a GPU (one) or the node (all): UUIDs, severity, sentence.

    `severity` is FAIL, INCONCLUSIVE or WARNING, `word` slow, wrong or dead; `transfers` are the bad ones.
    """

    kind: str
    gpus: tuple[str, ...]
    severity: str
    word: str
    message: str
    transfers: frozenset[Transfer]


@dataclass(frozen=True)
class HeatMap:
    """One matrix: its heading, how to read it, the picture."""

    title: str
    about: str
    svg: Markup


@dataclass(frozen=True)
class Peers:
    """The section of the page: what is to blame, what it comes to, the matrices, the scale of their colours.

    `together` are the rates (text) of all GPUs while all pairs moved data at once, in the report's order.
    """

    blames: tuple[Blame, ...]
    summary: tuple[str, ...]
    maps: tuple[HeatMap, ...]
    highest: str
    marks: tuple[str, ...]
    together: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether any of what is to blame failed the node."""
        return any(blame.severity == "FAIL" for blame in self.blames)


def matrix_of(report: Report) -> Matrix:
    """Both directions of every pair that the nvlink check has something to say about."""
    return Matrix.of(report.checks)


def blames(report: Report) -> list[Blame]:
    """The reasons and warnings that name a link or a GPU as the cause, the worst first."""
    found = []
    for item in report.reasons_and_warnings:
        attributed = mapping_of(item.details, "attributed")
        gpus = tuple(names_of(attributed, "gpus"))
        if gpus and attributed.get("kind") in ("link", "gpu", "node"):
            severity = item.severity if isinstance(item, Reason) else "WARNING"
            message, word = without_name(report, item), text_of(attributed, "problem")
            found.append(Blame(str(attributed["kind"]), gpus, severity, word, message, _transfers(attributed)))
    return found


def _transfers(attributed: Mapping[str, Any]) -> frozenset[Transfer]:
    listed = attributed.get("transfers")
    return frozenset(
        (str(item[0]), str(item[1]), direction)
        for item in (listed if isinstance(listed, list | tuple) else ())
        for direction in COPY_DIRECTIONS
        if isinstance(item, list | tuple) and len(item) == 3 and item[2] == direction
    )


def peers(report: Report) -> Peers | None:
    """The section, None where the nvlink check gave no result."""
    checks = results_of(report, "nvlink")
    if not checks:
        return None
    matrix, blamed = matrix_of(report), blames(report)
    if not matrix.transfers:
        about = "Nothing was measured." if len(report.gpus) > 1 else "One GPU: there is no pair to test."
        return Peers(tuple(blamed), (about,), (), "", (), ())
    highest = max(matrix.rate(transfer) or 0.0 for transfer in matrix.transfers)
    maps = tuple(
        HeatMap(*_TITLES[direction], _map(report, direction, matrix, blamed, highest))
        for direction in COPY_DIRECTIONS
        if any(way == direction and _is_known(matrix, (gpu, peer, way)) for gpu, peer, way in matrix.transfers)
    )
    cells = (_cell(report, matrix, transfer, blamed, 1.0) for transfer in matrix.transfers)
    marks = tuple(dict.fromkeys(cell.mark for cell in cells if cell.mark))
    return Peers(
        tuple(blamed),
        tuple(summary(report)),
        maps,
        number(round(highest / GB)),
        marks,
        _together(report, checks),
    )


def _is_known(matrix: Matrix, transfer: Transfer) -> bool:
    """Whether there is a rate, or why there is none."""
    return matrix.rate(transfer) is not None or bool(matrix.pair(transfer).why)


_TITLES: Mapping[CopyDirection, tuple[str, str]] = {
    "write": ("Write", "each row's GPU writes into the memory of each column's GPU, GB/s"),
    "read": ("Read", "each row's GPU reads from the memory of each column's GPU, GB/s"),
}


def _map(report: Report, direction: CopyDirection, matrix: Matrix, blamed: Sequence[Blame], highest: float) -> Markup:
    uuids = [gpu.uuid for gpu in report.gpus]
    cells = {
        (row, column): _cell(report, matrix, (gpu, peer, direction), blamed, highest)
        for row, gpu in enumerate(uuids)
        for column, peer in enumerate(uuids)
        if row != column
    }
    names = [gpu.short for gpu in report.gpus]
    outlines = [outline for blame in blamed for outline in _outlines(blame, uuids, direction)]
    return grid(f"P2P {direction} bandwidth between the GPUs in GB/s", names, cells, outlines)


def _outlines(blame: Blame, uuids: list[str], direction: str) -> Iterator[Outline]:
    """The row and the column of a GPU as far as its copies there are bad; each bad cell of a link."""
    css = "FAIL" if blame.severity == "FAIL" else "WARNING"
    bad = [(gpu, peer) for gpu, peer, way in blame.transfers if way == direction and {gpu, peer} <= set(uuids)]
    every = (0, len(uuids) - 1)
    if blame.kind == "node":
        yield from [Outline(every, every, css, blame.message)] * bool(bad)
        return
    if blame.kind == "gpu":
        for place in (uuids.index(uuid) for uuid in blame.gpus if uuid in uuids):
            if any(gpu == uuids[place] for gpu, _ in bad):
                yield Outline((place, place), every, css, blame.message)
            if any(peer == uuids[place] for _, peer in bad):
                yield Outline(every, (place, place), css, blame.message)
        return
    for gpu, peer in sorted(bad):
        row, column = uuids.index(gpu), uuids.index(peer)
        yield Outline((row, row), (column, column), css, blame.message)


def _cell(report: Report, matrix: Matrix, transfer: Transfer, blamed: Iterable[Blame], highest: float) -> Cell:
    if transfer not in matrix:
        return Cell("", None, "no result", "this GPU gave no result for this pair", "missing")
    pair, rate_bytes, wrong = matrix.pair(transfer), matrix.rate(transfer), matrix.wrong(transfer)
    gpu, peer, direction = transfer
    verb = "writes to" if direction == "write" else "reads from"
    over = f" over {path_name(pair.path)}" if pair.path else ""
    sentence = f"{report.name(gpu)} {verb} {report.name(peer)}{over}"
    word = next((blame.word for blame in blamed if transfer in blame.transfers), "")
    mark = "wrong" if wrong else word if word in ("slow", "dead") else ""
    why = f": {pair.why}" if pair.why else ""
    if not rate_bytes:
        mark = mark or ("none" if pair.why else "missing")
        return Cell("", None, _NO_NUMBER.get(mark, mark), f"{sentence}{why}", mark)
    state = f", {wrong:,} transfers delivered wrong data" if wrong else ""
    if not mark and not matrix.verified(transfer):
        mark, state = "unseen", ", the data was not compared"
    step = min(int(rate_bytes / (highest or 1.0) * STEPS), STEPS - 1)
    detail = f"{sentence}: {rate(rate_bytes, 'B/s')}{state}{why}"
    return Cell(number(_short(rate_bytes / GB)), step, mark, detail, mark)


# The words of cells without a number.
_NO_NUMBER: Mapping[str, str] = {"none": "no P2P", "missing": "no result"}


def _short(value: float) -> float:
    """What fits a cell: three digits that count."""
    return float(round(value)) if value >= 100 else float(f"{value:.3g}")


def path_name(path: str) -> str:
    """The way between two GPUs as people call it."""
    return _PATHS.get(path, path)


def summary(report: Report) -> Iterator[str]:
    """What was tested between the GPUs, then the usual and the lowest rate of each way; nothing without a matrix."""
    matrix = matrix_of(report)
    if not matrix.transfers:
        return
    count = len(report.gpus)
    names = {gpu.uuid: gpu.short for gpu in report.gpus}
    wanted = count * (count - 1)
    bad = {t[:2] for t in matrix.transfers if not (matrix.verified(t) and matrix.rate(t))}
    good = {t[:2] for t in matrix.transfers} - bad
    told = f"All {wanted}" if len(good) == wanted else f"{len(good)} of {wanted}"
    plural = "directions" if wanted != 1 else "direction"
    yield f"{told} {plural} between {count} GPUs moved data, and all that was compared arrived right."
    for path in dict.fromkeys(matrix.pair(t).path for t in matrix.transfers):
        moved = {t: value for t in matrix.transfers if matrix.pair(t).path == path and (value := matrix.rate(t))}
        if not moved:
            continue
        lowest = min(moved, key=lambda t: moved[t])
        way = f"Over {path_name(path)}" if path else "One at a time"
        least = f"{rate(moved[lowest], 'B/s')} ({place_text(lowest, names)})"
        yield f"{way}: median {rate(statistics.median(moved.values()), 'B/s')}, lowest {least}."


def _together(report: Report, checks: Iterable[CheckResult]) -> tuple[str, ...]:
    rates = {
        check.gpu: check.coverage.all_at_once_bytes_per_s
        for check in checks
        if isinstance(check.coverage, NvlinkCoverage)
    }
    if not any(rates.values()):
        return ()
    return tuple("-" if (value := rates.get(gpu.uuid)) is None else number(_short(value / GB)) for gpu in report.gpus)
