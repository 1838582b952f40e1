"""A look at this node without a test: what it has, and what the judges of a run say of it as it is now.

Nothing is written, no load is put on a GPU, and there is no verdict: what only shows under load is not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from gpu_burnin import __version__
from gpu_burnin.checks.state.check import examine
from gpu_burnin.checks.state.result import StateCoverage
from gpu_burnin.checks.state.rules import NAME as STATE
from gpu_burnin.engine.plan import make_plan
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.hardware import load_skus, make_reason
from gpu_burnin.judge.corrected import judge_corrected
from gpu_burnin.judge.ladder import worst_action
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.judge.persistence import judge_persistence
from gpu_burnin.judge.verdict import in_order
from gpu_burnin.judge.xid import judge_xids
from gpu_burnin.node.history import read_history
from gpu_burnin.node.prepare import RunOptions, plan_options
from gpu_burnin.node.store import Store
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.state_dir import ROOTS_STATE_DIR, default_state_dir
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.host import Host, read_host
from gpu_burnin.system.quantities import count
from gpu_burnin.telemetry.discover import Found, discover
from gpu_burnin.telemetry.kernel_log import open_kernel_log
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.node_links import absent, node_links_of
from gpu_burnin.telemetry.pci import gpu_addresses
from gpu_burnin.telemetry.state import GpuState, NodeState
from gpu_burnin.types import Action, CheckResult, Notice, Reason, Verdict

SCHEMA = "muster-scan/v1"
# What the state check says of a GPU at rest; one at work is no fault of it.
_OF_GPUS_AT_REST = frozenset({"GPU_BUSY", "THROTTLED"})


@dataclass(frozen=True)
class ScannedGpu:
    """One GPU as it is now: its readings, and the model's key in skus.yaml, "" for one that is not there."""

    sku: str
    state: GpuState


@dataclass(frozen=True)
class XidSeen:
    """An XID or SXid of one device since boot: how often it came, and the last line of it."""

    xid: int
    sxid: bool
    pci_bus_id: str
    count: int
    text: str


@dataclass(frozen=True)
class Software:
    """Versions; "" for what could not be read."""

    driver: str
    cuda: str
    nvml: str
    gpu_burnin: str = __version__


@dataclass(frozen=True)
class Scan:
    """What a look at this node found. Nothing was tested.

    `reasons` are what would keep a burn-in from a PASS, `warnings` what a person should know. `looked_at` and `unseen`
    say in words what was and was not seen. `kernel_log` names the sources that were read, "" for none.
    """

    node: str
    at: str
    simulated: bool
    host: Host
    software: Software
    gpus: tuple[ScannedGpu, ...]
    reasons: tuple[Reason, ...]
    warnings: tuple[Notice, ...]
    action: Action
    kernel_log: str
    lost_messages: int
    xids: tuple[XidSeen, ...]
    looked_at: tuple[str, ...]
    unseen: tuple[str, ...]
    tested: bool = False
    schema: str = SCHEMA

    @property
    def exit_code(self) -> int:
        """0 nothing found, 1 something that a burn-in would fail on, 3 a doubt or something that could not be seen."""
        if any(reason.severity is Verdict.FAIL for reason in self.reasons):
            return EXIT_FAIL
        return EXIT_INCONCLUSIVE if self.reasons else EXIT_PASS


def scan(config: Config) -> Scan:
    """Look at this node: NVML, the PCI bus, the kernel log since boot.

    The configuration says what is expected of the node; its defaults do where there is none. Raises GpuBurninError for
    a kernel log that cannot be meant, and in a lab for a wrong scenario.
    """
    log, host = open_kernel_log(config.kernel_log, writes=False), read_host()
    with ThreadPoolExecutor(1) as pool:
        logged = pool.submit(log.read)
        found = discover()
        kernel_log = _kernel_log(config, logged.result(), log.simulated)
    reasons, state, unseen = _state(config, found)
    passed, no_history = _passed_this_boot(config, host)
    seen = _observations(config, found, state, kernel_log, passed)
    xids = judge_xids(seen)
    busy = frozenset(found.busy)
    at_work = tuple(reason for reason in reasons if reason.code in _OF_GPUS_AT_REST and reason.gpu in busy)
    links = absent(node_links_of(seen.plan.options), found.gpus, load_skus())
    ordered = in_order((*(reason for reason in reasons if reason not in at_work), *xids.reasons))
    return Scan(
        node=config.node_name,
        at=rfc3339(datetime.now(UTC)),
        simulated=seen.simulated,
        host=host,
        software=Software(found.driver, found.cuda, found.nvml),
        gpus=tuple(ScannedGpu(gpu.sku, state) for gpu, state in zip(found.gpus, found.states, strict=True)),
        reasons=ordered,
        warnings=(
            *(_as_notice(reason) for reason in at_work),
            *((links,) if links else ()),
            *judge_persistence(seen).notices,
            *judge_corrected(seen).notices,
            *xids.notices,
        ),
        action=worst_action(ordered),
        kernel_log=kernel_log.source if kernel_log.alive else "",
        lost_messages=kernel_log.gaps,
        xids=_counted(kernel_log),
        looked_at=_sources_read(state, kernel_log),
        unseen=(*unseen, *((no_history,) if no_history and kernel_log.events else ())),
    )


def _kernel_log(config: Config, read: tuple[tuple[XidEvent, ...], int, str], simulated: bool) -> KernelLogFindings:
    """What the log has since boot: all of it was there before anything that could be called a run."""
    events, gaps, sources = read
    return KernelLogFindings(sources or config.kernel_log, bool(sources), gaps, events, events, simulated)


def _state(config: Config, found: Found) -> tuple[tuple[Reason, ...], StateCoverage | None, tuple[str, ...]]:
    """What the state check says of the node, what it covered, and what it could not see."""
    if found.error:
        on_bus = f"{count(len(addresses), 'NVIDIA GPU')} on the PCI bus" if (addresses := gpu_addresses()) else "no GPU"
        unseen = (f"the GPUs, since NVML does not answer (the kernel shows {on_bus})",)
        return (make_reason("NVML_UNAVAILABLE", STATE, found.error),), None, unseen
    node = NodeState(found.simulated, found.driver, found.cuda, found.nvml, found.states)
    examined = examine(node, plan_options(RunOptions(config=config), found))
    return examined.reasons, examined.coverage, tuple(_unread(examined.coverage, found))


def _unread(state: StateCoverage, found: Found) -> Iterator[str]:
    forbidden = {name for whys in state.unread.values() for name in whys.get("no_permission", ())}
    if forbidden:
        yield f"what NVML gives to root alone: {', '.join(sorted(forbidden))}"
    dark = len(found.gpus) - state.pci_links_read
    if dark and not found.simulated:
        yield f"the kernel's own view of the PCIe links of {count(dark, 'GPU')} (as in many virtual machines)"


def _passed_this_boot(config: Config, host: Host) -> tuple[bool, str]:
    """Whether a burn-in has passed since boot, so that an XID may be of users' work; why that is not known, or ""."""
    own = config.state_dir == default_state_dir()  # an ordinary user's own runs let nobody work here
    store = Store(ROOTS_STATE_DIR if own else config.state_dir)
    if store.root.is_dir() and not os.access(store.root, os.R_OK | os.X_OK):
        why = f"whether a burn-in has passed since boot ({store.root} is root's): XIDs are judged as if none had"
        return False, why
    return read_history(store, host.boot_id).passed_this_boot, ""


def _observations(
    config: Config, found: Found, state: StateCoverage | None, log: KernelLogFindings, passed: bool
) -> Observations:
    """What was seen, in the form that the judges of a run take."""
    plan = make_plan(
        "quick",
        backend="cuda",
        gpus=found.testable,
        seed=0,
        checks=(STATE,),
        options=plan_options(RunOptions(config=config), found),
    )
    return Observations(
        plan=plan,
        gpus=found.gpus,
        results=(CheckResult(STATE, None, Verdict.PASS, 0.0, coverage=state),) if state else (),
        selftests=(),
        kernel_log=log,
        simulated=log.simulated or (found.simulated and not found.error),
        allow_simulated=True,
        passed_this_boot=passed,
        no_real_gpu=found.no_real_gpu,
    )


def _as_notice(reason: Reason) -> Notice:
    return Notice(reason.code, reason.check, reason.message, reason.gpu, reason.details)


def _counted(log: KernelLogFindings) -> tuple[XidSeen, ...]:
    """The events by code and device, in the order of their first appearance."""
    found: dict[tuple[int, bool, str], list[XidEvent]] = {}
    for event in log.events:
        found.setdefault((event.xid, event.sxid, event.pci_bus_id), []).append(event)
    return tuple(XidSeen(*key, len(events), events[-1].text) for key, events in found.items())


def _sources_read(state: StateCoverage | None, log: KernelLogFindings) -> tuple[str, ...]:
    of_state = [*state.summary()] if state else []
    if state and state.pci_links_read:
        of_state.append(f"PCIe links of {count(state.pci_links_read, 'GPU')} by the kernel")
    return (*of_state, *([f"kernel log since boot ({log.source})"] if log.alive else []))
