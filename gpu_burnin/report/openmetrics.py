"""A report as metrics, for the textfile collector of node_exporter.

The text is valid both as Prometheus exposition format 0.0.4 (what the collector reads) and as OpenMetrics 1.0:
gauges only, no timestamps, "# EOF" at the end, which is a comment to the former.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.checks.nvlink.result import Matrix, Transfer
from gpu_burnin.checks.power.result import PowerCoverage
from gpu_burnin.report import curves, peers
from gpu_burnin.report.links import opinion
from gpu_burnin.report.model import Report
from gpu_burnin.report.units import measured, results_of
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.exposition import Family, Sample, page
from gpu_burnin.types import Gpu

# A node of 16 GPUs has 480 samples of pairs.
_MOST_GPUS_IN_PAIRS = 16
_VERDICTS = ("PASS", "FAIL", "INCONCLUSIVE")


def to_openmetrics(report: Report) -> bytes:
    """All metrics of a report; a value that was not read has no sample."""
    families = (Family(name, "gauge", text, samples) for name, text, samples in _families(report))
    return f"{page('gpu_burnin_', families)}# EOF\n".encode("utf-8", "replace")


def _families(report: Report) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    log = report.telemetry.kernel_log
    yield "info", "What ran where; always 1.", [(_info(report), 1)]
    yield "verdict", "1 for the verdict of the newest burn-in.", _verdicts({}, report.verdict)
    yield "sequence", "Number of the newest burn-in on this node.", [({}, report.sequence)]
    yield "simulated", "1 when the hardware was simulated and nothing is proved.", [({}, float(report.simulated))]
    yield "interrupted", "1 when the run was stopped before its end.", [({}, float(report.interrupted))]
    yield "started_timestamp_seconds", "When the run started, Unix time.", [({}, _unix(report.started_at))]
    yield "finished_timestamp_seconds", "When the run ended, Unix time.", [({}, _unix(report.finished_at))]
    yield "gpu_info", "Identity of a GPU; always 1.", ((_gpu_info(gpu), 1) for gpu in report.gpus)
    yield "gpu_verdict", "1 for the verdict on this GPU alone.", _gpu_verdicts(report)
    yield "reasons", "How many reasons of this code there are against a PASS.", _reasons(report)
    yield "warnings", "How many warnings of this code there are.", _warnings(report)
    yield "check_verdict", "1 for the verdict of this check.", _check_verdicts(report)
    yield "check_seconds", "How long this check ran.", _check_seconds(report)
    yield "measurement", "What a check measured, in the unit of the label.", _measurements(report, floor=False)
    yield "measurement_floor", "Floor that the measurement was judged by.", _measurements(report, floor=True)
    yield "p2p_bytes_per_second", "Rate of copies from a GPU to a peer, or from the peer.", _p2p(report)
    yield "p2p_wrong_transfers", "Transfers between two GPUs that delivered wrong data.", _p2p_wrong(report)
    yield "collective_bytes_per_second", "Highest bus bandwidth of a collective operation.", _collectives(report)
    yield "memory_covered_bytes", "Memory that was tested.", _memory(report, lambda c: c.covered_bytes)
    yield "memory_unreachable_bytes", "Memory that could not be tested.", _memory(report, lambda c: c.unreachable_bytes)
    yield "memory_wrong_words", "Memory words that came back wrong.", _memory(report, lambda c: c.wrong_words)
    yield "power_waves_run", "1 when the waves of load ran.", _waves_run(report)
    yield "dcgm_tests", "Tests of DCGM by result.", _opinion(report)
    yield (
        "verified_seconds",
        "Work on the GPU of which every result was verified; no check: over all.",
        _of_units(report, "verified_s"),
    )
    yield (
        "missed_fault_rate_upper95",
        "A fault with this rate or more (per second of verified work) would have been seen, 95 %; no check: over all.",
        _of_units(report, "missed_fault_rate_upper95_per_s"),
    )
    yield "selftest_faults", "Injected faults by whether their detector saw them.", _selftests(report)
    yield "counter_delta", "Change of a GPU counter over the run, in the unit of the label.", _counters(report)
    yield "kernel_log_alive", "1 when the kernel log was readable to the end.", [({}, float(log.alive))]
    yield "kernel_log_gaps", "At least how many kernel log messages are lost.", [({}, log.gaps)]
    yield "xid_events", "XID and SXid messages of this boot by code.", _xids(report)


def _unix(moment: str) -> float:
    return parse_rfc3339(moment).timestamp()


def _info(report: Report) -> dict[str, str]:
    software = report.software
    return {
        "node": report.node,
        "run_id": report.run_id,
        "level": report.level,
        "action": report.action,
        "version": software.get("gpu_burnin") or "",
        "driver": software.get("driver") or "",
        "kernel": report.host.kernel,
    }


def _unit(report: Report, uuid: str | None) -> dict[str, str]:
    """Labels that name a GPU; empty ones for the node."""
    gpu = report.gpu_of.get(uuid)
    return {"gpu": uuid or "", "index": str(gpu.index) if gpu else ""}


def _verdicts(labels: Mapping[str, str], verdict: str) -> Iterator[Sample]:
    for name in _VERDICTS:
        yield {**labels, "verdict": name}, float(verdict == name)


def _gpu_info(gpu: Gpu) -> dict[str, str]:
    identity = ("pci_bus_id", "serial", "name", "sku", "vbios")
    return {"gpu": gpu.uuid, "index": str(gpu.index), **{key: getattr(gpu, key) for key in identity}}


def _gpu_verdicts(report: Report) -> Iterator[Sample]:
    for gpu in report.gpus:
        # A lost GPU has no UUID; its place on the bus tells it from another lost one.
        labels = {"gpu": gpu.uuid, "index": str(gpu.index), "pci_bus_id": gpu.pci_bus_id}
        yield from _verdicts(labels, gpu.verdict)


def _reasons(report: Report) -> Iterator[Sample]:
    found = Counter((item.code, item.severity, item.check, item.gpu) for item in report.reasons)
    for (code, severity, check, gpu), count in found.items():
        yield {"code": code, "severity": severity, "check": check, **_unit(report, gpu)}, count


def _warnings(report: Report) -> Iterator[Sample]:
    for (code, gpu), count in Counter((item.code, item.gpu) for item in report.warnings).items():
        yield {"code": code, **_unit(report, gpu)}, count


def _check_verdicts(report: Report) -> Iterator[Sample]:
    for check in report.checks:
        yield from _verdicts({"check": check.name, **_unit(report, check.gpu)}, check.verdict)


def _check_seconds(report: Report) -> Iterator[Sample]:
    for check in report.checks:
        yield {"check": check.name, **_unit(report, check.gpu)}, check.seconds


def _measurements(report: Report, *, floor: bool) -> Iterator[Sample]:
    for check in report.checks:
        for item in check.measurements:
            # The check of the node measures single GPUs too; their numbers carry their labels.
            gpu, name = measured(report, check, item.name)
            labels = {"check": check.name, "name": name, "unit": item.unit, **_unit(report, gpu)}
            yield labels, item.floor if floor else item.value


def _transfers(report: Report) -> Iterator[tuple[dict[str, str], Matrix, Transfer]]:
    """Labels of the transfers between GPUs; of a node with very many GPUs none, so that the file stays small."""
    matrix = peers.matrix_of(report)
    for transfer in matrix.transfers if len(report.gpus) <= _MOST_GPUS_IN_PAIRS else ():
        gpu, uuid, direction = transfer
        peer = report.gpu_of.get(uuid)
        named = {"peer": uuid, "peer_index": str(peer.index) if peer else "", "direction": direction}
        yield {**_unit(report, gpu), **named, "path": matrix.pair(transfer).path}, matrix, transfer


def _p2p(report: Report) -> Iterator[Sample]:
    for labels, matrix, transfer in _transfers(report):
        yield labels, matrix.rate(transfer)


def _p2p_wrong(report: Report) -> Iterator[Sample]:
    for labels, matrix, transfer in _transfers(report):
        if matrix.wrong(transfer) or matrix.verified(transfer):
            yield labels, matrix.wrong(transfer)


def _collectives(report: Report) -> Iterator[Sample]:
    for (collective, algorithm), points in curves.busbw(report).items():
        yield {"collective": collective, "algorithm": algorithm}, max(points.values(), default=None)


def _memory(report: Report, value: Callable[[HbmCoverage], int | None]) -> Iterator[Sample]:
    for result in results_of(report, "hbm"):
        if isinstance(result.coverage, HbmCoverage):
            yield _unit(report, result.gpu), value(result.coverage)


def _waves_run(report: Report) -> Iterator[Sample]:
    for result in results_of(report, "power"):
        if isinstance(result.coverage, PowerCoverage):
            yield _unit(report, result.gpu), float(result.coverage.waves.run)


def _opinion(report: Report) -> Iterator[Sample]:
    second = opinion(report)
    for result, count in Counter(result for _, result, *_ in second.tests).items() if second else ():
        yield {"result": result}, count


def _of_units(report: Report, key: str) -> Iterator[Sample]:
    """A number of each check on each GPU, and of each GPU over all checks; an older report may not have it."""
    for unit in (*report.coverage.units, *report.coverage.gpus):
        yield {"check": unit.check, **_unit(report, unit.gpu)}, getattr(unit, key)


def _selftests(report: Report) -> Iterator[Sample]:
    found: Counter[tuple[str, str | None, str]] = Counter()
    for test in report.selftest:
        found[test.check, test.gpu, "detected"] += int(test.caught)
        found[test.check, test.gpu, "missed"] += int(not test.caught)
    for (check, gpu, result), count in found.items():
        yield {"check": check, "result": result, **_unit(report, gpu)}, count


def _counters(report: Report) -> Iterator[Sample]:
    for counter in report.telemetry.counters:
        labels = {"name": counter.name, "unit": counter.unit, **_unit(report, counter.gpu)}
        yield labels, counter.delta


def _xids(report: Report) -> Iterator[Sample]:
    found = Counter((event.xid, event.sxid, event.pci_bus_id) for event in report.telemetry.kernel_log.events)
    for (code, sxid, address), count in found.items():
        yield {"code": str(code), "kind": "SXid" if sxid else "XID", "pci_bus_id": address}, count
