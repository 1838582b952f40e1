"""What the GPUs of a node are to each other: the P2P matrix of the page, with what was blamed on a link or a GPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from gpu_burnin.report.grid import STEPS, Cell, Outline, grid
from gpu_burnin.report.model import Report
from gpu_burnin.report.units import gpu_name, results_of, without_name
from gpu_burnin.report.words import GB, number, rate
from gpu_burnin.system.values import mapping_of, names_of, number_of, rows_of, text_of
from gpu_burnin.types import COPY_DIRECTIONS

_PATHS: Mapping[str, str] = {"nvlink": "NVLink", "nvswitch": "NVLink and NVSwitch", "pcie": "PCIe"}


@dataclass(frozen=True)
class Pair:
    """One direction of a pair of GPUs (UUIDs): `gpu` writes to `peer`, or reads from it.

    `bytes_per_s` is None where nothing was moved; `why` says why. `wrong` counts the transfers that delivered wrong
    data, `verified` says that some were looked at and all were right.
    """

    gpu: str
    peer: str
    direction: str
    bytes_per_s: float | None
    wrong: int
    verified: bool
    path: str
    why: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in the evidence of the attribution."""
        return self.gpu, self.peer, self.direction


@dataclass(frozen=True)
class Blame:
    """What was blamed on a link (two GPUs), a GPU (one) or the node (all): UUIDs, severity, sentence.

    `severity` is FAIL, INCONCLUSIVE or WARNING, `word` slow, wrong or dead; `transfers` are the bad ones: (GPU, peer,
    direction).
    """

    kind: str
    gpus: tuple[str, ...]
    severity: str
    word: str
    message: str
    transfers: frozenset[tuple[str, str, str]]


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


def pairs(report: Report) -> list[Pair]:
    """Both directions of every pair that the nvlink check has something to say about."""
    rows = {
        (str(check["gpu"]), text_of(row, "peer")): row
        for check in results_of(report, "nvlink")
        for row in rows_of(check["coverage"], "p2p")
        if text_of(row, "peer")
    }
    return [_pair(rows, gpu, peer, direction) for gpu, peer in rows for direction in COPY_DIRECTIONS]


def _pair(rows: Mapping[tuple[str, str], Mapping[str, Any]], gpu: str, peer: str, direction: str) -> Pair:
    """The receiver sees what arrived wrong: of writes that is the peer."""
    row = rows[gpu, peer]
    seen_by = row if direction == "read" else rows.get((peer, gpu), {})
    wrong, looked_at = (
        number_of(mapping_of(seen_by, key), direction) for key in ("transfers_wrong", "transfers_checked")
    )
    return Pair(
        gpu,
        peer,
        direction,
        number_of(row, f"{direction}_bytes_per_s"),
        int(wrong or 0),
        not wrong and bool(looked_at),
        text_of(row, "path"),
        text_of(row, "why"),
    )


def blames(report: Report) -> list[Blame]:
    """The reasons and warnings that name a link or a GPU as the cause, the worst first."""
    found = []
    for item in (*report["reasons"], *report["warnings"]):
        attributed = mapping_of(item["evidence"], "attributed")
        gpus = tuple(names_of(attributed, "gpus"))
        if gpus and attributed.get("kind") in ("link", "gpu", "node"):
            severity = item.get("severity", "WARNING")
            message, word = without_name(report, item), text_of(attributed, "problem")
            found.append(Blame(str(attributed["kind"]), gpus, severity, word, message, _transfers(attributed)))
    return found


def _transfers(attributed: Mapping[str, Any]) -> frozenset[tuple[str, str, str]]:
    listed = attributed.get("transfers")
    return frozenset(
        (str(item[0]), str(item[1]), str(item[2]))
        for item in (listed if isinstance(listed, list | tuple) else ())
        if isinstance(item, list | tuple) and len(item) == 3
    )


def peers(report: Report) -> Peers | None:
    """The section, None where the nvlink check gave no result."""
    checks = results_of(report, "nvlink")
    if not checks:
        return None
    found, blamed = pairs(report), blames(report)
    if not found:
        said = "Nothing was measured." if len(report["gpus"]) > 1 else "One GPU: there is no pair to test."
        return Peers(tuple(blamed), (said,), (), "", (), ())
    highest = max((pair.bytes_per_s or 0.0 for pair in found), default=0.0)
    maps = tuple(
        HeatMap(*_TITLES[direction], _map(report, direction, found, blamed, highest))
        for direction in COPY_DIRECTIONS
        if any(pair.direction == direction and (pair.bytes_per_s is not None or pair.why) for pair in found)
    )
    marks = tuple(dict.fromkeys(cell.mark for pair in found if (cell := _cell(report, pair, blamed, 1.0)).mark))
    return Peers(
        tuple(blamed),
        tuple(summary(report)),
        maps,
        number(round(highest / GB)),
        marks,
        _together(report, checks),
    )


_TITLES: Mapping[str, tuple[str, str]] = {
    "write": ("Write", "each row's GPU writes into the memory of each column's GPU, GB/s"),
    "read": ("Read", "each row's GPU reads from the memory of each column's GPU, GB/s"),
}


def _map(report: Report, direction: str, found: Iterable[Pair], blamed: list[Blame], highest: float) -> Markup:
    uuids = [gpu["uuid"] for gpu in report["gpus"]]
    known = {(pair.gpu, pair.peer): pair for pair in found if pair.direction == direction}
    cells = {
        (row, column): _cell(report, known.get((gpu, peer)), blamed, highest)
        for row, gpu in enumerate(uuids)
        for column, peer in enumerate(uuids)
        if row != column
    }
    names = [
        gpu_name(report, uuid) if uuid else f"GPU {gpu['index']}"
        for uuid, gpu in zip(uuids, report["gpus"], strict=True)
    ]
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


def _cell(report: Report, pair: Pair | None, blamed: Iterable[Blame], highest: float) -> Cell:
    if pair is None:
        return Cell("", None, "no result", "this GPU gave no result for this pair", "missing")
    verb = "writes to" if pair.direction == "write" else "reads from"
    over = f" over {path_name(pair.path)}" if pair.path else ""
    told = f"{gpu_name(report, pair.gpu)} {verb} {gpu_name(report, pair.peer)}{over}"
    word = next((blame.word for blame in blamed if pair.key in blame.transfers), "")
    mark = "wrong" if pair.wrong else word if word in ("slow", "dead") else ""
    why = f": {pair.why}" if pair.why else ""
    if not pair.bytes_per_s:
        mark = mark or ("none" if pair.why else "missing")
        return Cell("", None, _NO_NUMBER.get(mark, mark), f"{told}{why}", mark)
    state = f", {pair.wrong:,} transfers delivered wrong data" if pair.wrong else ""
    if not mark and not pair.verified:
        mark, state = "unseen", ", the data was not compared"
    step = min(int(pair.bytes_per_s / (highest or 1.0) * STEPS), STEPS - 1)
    number_text = number(_short(pair.bytes_per_s / GB))
    detail = f"{told}: {rate(pair.bytes_per_s, 'B/s')}{state}{why}"
    return Cell(number_text, step, mark, detail, mark)


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
    found = pairs(report)
    if not found:
        return
    count = len(report["gpus"])
    wanted = count * (count - 1)
    good = {
        key
        for key in {(pair.gpu, pair.peer) for pair in found}
        if all(pair.verified and pair.bytes_per_s for pair in found if (pair.gpu, pair.peer) == key)
    }
    told = f"All {wanted}" if len(good) == wanted else f"{len(good)} of {wanted}"
    plural = "directions" if wanted != 1 else "direction"
    yield f"{told} {plural} between {count} GPUs moved data, and all that was compared arrived right."
    for path in dict.fromkeys(pair.path for pair in found):
        moved = [pair for pair in found if pair.path == path and pair.bytes_per_s]
        if not moved:
            continue
        lowest = min(moved, key=lambda pair: pair.bytes_per_s or 0.0)
        middle = statistics.median(pair.bytes_per_s or 0.0 for pair in moved)
        way = f"Over {path_name(path)}" if path else "One at a time"
        least = f"{rate(lowest.bytes_per_s, 'B/s')} ({in_words(report, lowest)})"
        yield f"{way}: median {rate(middle, 'B/s')}, lowest {least}."


def slowest(report: Report) -> Pair | None:
    """The slowest of all copies between two GPUs, None where none were made."""
    moved = [pair for pair in pairs(report) if pair.bytes_per_s]
    return min(moved, key=lambda pair: pair.bytes_per_s or 0.0, default=None)


def in_words(report: Report, pair: Pair) -> str:
    """Who copies with whom: "GPU 5 reading from GPU 2"."""
    verb = "writing to" if pair.direction == "write" else "reading from"
    return f"{gpu_name(report, pair.gpu)} {verb} {gpu_name(report, pair.peer)}"


def _together(report: Report, checks: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    rates = {check["gpu"]: number_of(check["coverage"], "all_at_once_bytes_per_s") for check in checks}
    if not any(rates.values()):
        return ()
    return tuple(
        "-" if (value := rates.get(gpu["uuid"])) is None else number(_short(value / GB)) for gpu in report["gpus"]
    )
