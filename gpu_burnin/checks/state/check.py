"""The state check: does each GPU look as its model should, before any load is put on it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.state.node import judge_state, layout, persistence_off
from gpu_burnin.checks.state.pci import judge_pci, pci_measurements
from gpu_burnin.checks.state.result import LinkSource, MigCoverage, StateCoverage
from gpu_burnin.checks.state.rules import MODEL_RULES, NAME, RULES, Expected, HostLink
from gpu_burnin.hardware import SkuTable, make_reason
from gpu_burnin.hardware.corrected import CorrectedErrors
from gpu_burnin.settings.expectations import expectations_of
from gpu_burnin.telemetry.node_links import node_links_of
from gpu_burnin.telemetry.pci import GENERATION, PciLink, gpu_addresses, read_link
from gpu_burnin.telemetry.state import GpuState, NodeState, Unsupported, known
from gpu_burnin.types import JSON, CheckResult, Coverage, Gpu, Measurement, Reason, SelftestResult, verdict_of

__all__ = ["Check", "Examined", "Expected", "examine", "judge_state"]

_ANY_SLOT = HostLink(max(GENERATION.values()), 32)


def own_family(proc: Path = Path("/proc")) -> frozenset[int]:
    """This process, its supervisor, and the supervisor's other workers."""
    parent = os.getppid()
    family = {os.getpid(), parent}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            # Bytes: the kernel cuts a process's name after 15 of them, also in the middle of a character.
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # the process ended meanwhile
        if len(fields) > 1 and int(fields[1]) == parent:
            family.add(int(stat.parent.name))
    return frozenset(family)


def expected_from(
    options: Mapping[str, JSON], gpus: Sequence[Gpu], own_pids: frozenset[int], on_bus: Sequence[str] = ()
) -> tuple[Expected, str]:
    """What the options of a plan expect, and where the expected number of GPUs comes from.

    `gpus` must all be there, `own_pids` may use them, `on_bus` are the addresses of the GPUs on the PCI bus.
    """
    configured = expectations_of(options)
    count, source = configured.gpus, "expect.gpus"
    if count is None:
        count, source = (len(on_bus), "PCI bus") if on_bus else (None, "none")
    return (
        Expected(
            configured=configured,
            links=node_links_of(options),
            gpu_count=count,
            gpu_uuids=frozenset(gpu.uuid for gpu in gpus),
            own_pids=own_pids,
        ),
        source,
    )


@dataclass(frozen=True)
class Examined:
    """What the state check says of a node."""

    reasons: tuple[Reason, ...]
    coverage: StateCoverage
    measurements: tuple[Measurement, ...]


def examine(
    node: NodeState, options: Mapping[str, JSON], gpus: Sequence[Gpu] = (), own_pids: frozenset[int] = frozenset()
) -> Examined:
    """Judge what NVML reads of a node beside what sysfs says now; arguments as for expected_from."""
    # Behind a fake there is no PCI device; whatever has the same address in this machine is another one.
    on_bus = () if node.simulated else gpu_addresses()
    seen = [] if node.simulated else [read_link(gpu.pci_bus_id) for gpu in node.gpus]
    links = {link.address: link for link in seen if link}
    expected, source = expected_from(options, gpus, own_pids, on_bus)
    expected = replace(expected, host_links=host_links(node, links))
    coverage = StateCoverage(
        gpus=len(node.gpus),
        gpu_count_expected=expected.gpu_count,
        gpu_count_source=source,
        expected=expected.configured.to_json(),
        node_links=LinkSource(str(expected.links.source), expected.links.why),
        rules=len(RULES) + len(MODEL_RULES),
        simulated=node.simulated,
        pci_links_read=len(links),
        persistence_off=tuple(persistence_off(node.gpus)),
        fabric_info={gpu.label: known(gpu.fabric_version) for gpu in node.gpus},
        corrected={
            gpu.uuid: found for gpu in node.gpus if (found := corrected_errors(gpu, expected.table)) is not None
        },
        mig={gpu.label: told for gpu in node.gpus if (told := mig_coverage(gpu))},
        unread={gpu.label: _whys(gpu.unread()) for gpu in node.gpus},
    )
    return Examined(
        reasons=(*judge_state(node.gpus, expected), *judge_pci(node.gpus, on_bus, links)),
        coverage=coverage,
        measurements=(*_measurements(node), *pci_measurements(node.gpus, links)),
    )


class Check:
    """Reads NVML and sysfs once and judges the whole node; also counts what could not be read."""

    name = NAME

    def run(self, ctx: CheckContext) -> CheckResult:
        """Read and judge; NVML that cannot be used at all is an inconclusive result."""
        from gpu_burnin.telemetry.nvml import NvmlUnavailableError, read_node

        started = time.monotonic()
        try:
            node = read_node()
        except NvmlUnavailableError as error:
            reason = make_reason("NVML_UNAVAILABLE", NAME, str(error), details={"nvml_error": error.code})
            return _result(time.monotonic() - started, (reason,), Coverage(), ())
        found = examine(node, ctx.options, ctx.gpus, own_family())
        return _result(time.monotonic() - started, found.reasons, found.coverage, found.measurements)

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Nothing: this check reads values and compares them, it has no detector on a device."""
        return ()


def host_links(node: NodeState, links: Mapping[str, PciLink]) -> dict[str, HostLink]:
    """What the slots can do. Simulated GPUs have slots that can do whatever their models can."""
    if node.simulated:
        return {gpu.pci_bus_id: _ANY_SLOT for gpu in node.gpus}
    return {address: HostLink(link.host_max_generation, link.host_max_width) for address, link in links.items()}


def corrected_errors(state: GpuState, table: SkuTable) -> CorrectedErrors | None:
    """What a person should know of the errors that this GPU has corrected; None for what one in good order has too."""
    found = CorrectedErrors(
        known(state.ecc_volatile_corrected_dram),
        known(state.ecc_volatile_corrected_sram),
        known(state.remapped_corrected),
    )
    return found if found.is_much(table.limits) or found.remapped_rows else None


def mig_coverage(state: GpuState) -> MigCoverage | None:
    """What the MIG instances of a GPU reach; None where MIG is off, or the driver does not tell."""
    instances = known(state.mig_instances)
    if state.mig_enabled is not True or instances is None:
        return None
    total = known(state.memory_bytes)
    reached = sum(instance.memory_bytes for instance in instances)
    return MigCoverage(
        layout(instances),
        instances,
        sum(instance.multiprocessors for instance in instances),
        None if total is None else max(0, total - reached),
    )


def _whys(unread: dict[str, Unsupported]) -> dict[str, tuple[str, ...]]:
    """Names of the unread fields by why they are."""
    counts = Counter(value.why for value in unread.values())
    return {why: tuple(sorted(n for n, value in unread.items() if value.why == why)) for why in sorted(counts)}


def _result(
    seconds: float, reasons: tuple[Reason, ...], coverage: Coverage, measurements: tuple[Measurement, ...]
) -> CheckResult:
    return CheckResult(
        name=NAME,
        gpu=None,
        verdict=verdict_of(reasons),
        seconds=seconds,
        measurements=measurements,
        coverage=coverage,
        reasons=reasons,
    )


def _measurements(node: NodeState) -> tuple[Measurement, ...]:
    """Figures that a person wants to see though the check does not judge them."""
    wanted = (("temperature_c", "degC"), ("power_draw_w", "W"), ("pcie_replays", "1"),
              ("ecc_volatile_corrected_dram", "1"), ("ecc_aggregate_uncorrected_dram", "1"))  # fmt: skip
    return tuple(
        Measurement(f"gpu{gpu.index}_{name}", float(value), unit)
        for gpu in node.gpus
        for name, unit in wanted
        if (value := known(getattr(gpu, name))) is not None
    )
