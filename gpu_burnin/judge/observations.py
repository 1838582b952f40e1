"""What a run saw, the rules it is judged by, and what a judge finds in it: the one form in and out of every judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gpu_burnin.engine.plan import Plan
from gpu_burnin.hardware.policy import TelemetryPolicy, load_policy
from gpu_burnin.hardware.skus import SkuTable, load_skus
from gpu_burnin.hardware.xid import XidTable, load_xids
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.types import CheckResult, Gpu, Notice, Reason, SelftestResult


class Findings(NamedTuple):
    """What a judge says: `reasons` against the node, `notices` for a person."""

    reasons: tuple[Reason, ...] = ()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class Rules:
    """The data that a run is judged by: the shipped tables unless given."""

    xids: XidTable = field(default_factory=load_xids)
    skus: SkuTable = field(default_factory=load_skus)
    telemetry: TelemetryPolicy = field(default_factory=load_policy)


@dataclass(frozen=True)
class KernelLogFindings:
    """What the kernel log gave since boot. `alive`: it was there to be read, to the end of the run.

    `before` are the events it held just before the first check started: the run did not cause them. `gaps`: at least
    so many messages are lost. `simulated`: a file stands in for the kernel's log, as the lab's hosts have.
    """

    source: str
    alive: bool
    gaps: int = 0
    events: tuple[XidEvent, ...] = ()
    before: tuple[XidEvent, ...] = ()
    simulated: bool = False


@dataclass(frozen=True)
class Observations:
    """Everything one run saw, and the rules to judge it by.

    `gpus` are all GPUs of the node, tested or not. `killed_pids` are processes the executor killed itself.
    `extra` are reasons found outside the checks (a host that died during the run before). `left_out` are checks
    and `shortfalls` sentences on where the run was asked to do less than this host's configuration wants. `notices`
    are warnings that do not come of the checks.
    `passed_this_boot`: a run of this boot had passed before, so that users' work may have run since.
    `last_reasons` are those of the run before, and `restarted` says that the host was restarted since then.
    `opens_gate`: a PASS is signed, and must know of what happened since boot.
    `no_real_gpu`: NVML is a simulation, or it does not answer and the PCI bus has no GPU.
    """

    plan: Plan
    gpus: tuple[Gpu, ...]
    results: tuple[CheckResult, ...]
    selftests: tuple[SelftestResult, ...]
    kernel_log: KernelLogFindings
    simulated: bool
    allow_simulated: bool
    killed_pids: frozenset[int] = frozenset()
    telemetry: TelemetryFindings = field(default_factory=TelemetryFindings)
    extra: tuple[Reason, ...] = ()
    left_out: tuple[str, ...] = ()
    shortfalls: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    interrupted: bool = False
    passed_this_boot: bool = False
    last_reasons: tuple[Reason, ...] = ()
    restarted: bool = False
    opens_gate: bool = True
    no_real_gpu: bool = False
    rules: Rules = field(default_factory=Rules)

    @property
    def watched(self) -> tuple[Gpu, ...]:
        """The GPUs that samplers had to watch: none where nothing was started on any GPU, as when one is busy."""
        return self.plan.gpus if any(check.per_gpu for check in self.plan.checks) else ()

    @property
    def models(self) -> dict[str, str]:
        """The model (SKU) of each GPU and MIG instance, by UUID."""
        return {uuid: gpu.sku for gpu in self.gpus for uuid in gpu.uuids}
