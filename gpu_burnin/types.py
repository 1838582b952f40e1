"""Shared value types of the burn-in: verdicts, reasons, measurements, results. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Literal, TypeAlias, TypeVar

# JSON values as they appear in reports, journals and on the worker pipes.
JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
# In a field's metadata: its name in JSON, whether JSON leaves it out while it has its default, whether it comes last.
JSON_NAME, OMIT_DEFAULT, COMES_LAST = "json_name", "omit_default", "comes_last"
_T = TypeVar("_T")
# A MIG device with a part of its GPU instance's multiprocessors, such as 1c.3g.20gb: it shares memory with others.
_SHARES_MEMORY = re.compile(r"\d+c\.")


def optional(make: Callable[[], _T]) -> _T:
    """A dataclass's field that is left out of JSON while it has its default, which `make` gives."""
    made: _T = field(default_factory=make, metadata={OMIT_DEFAULT: True})
    return made


# How one GPU copies with another: it writes into its memory or reads from it.
CopyDirection: TypeAlias = Literal["write", "read"]
COPY_DIRECTIONS: tuple[CopyDirection, ...] = ("write", "read")


def word_text(value: int, size_bytes: int = 8) -> str:
    """A word of data as results have it: hexadecimal, with the digits of all its bytes."""
    return f"{value:#0{2 + 2 * size_bytes}x}"


class Verdict(StrEnum):
    """Outcome of a check or of a run; INCONCLUSIVE is never a PASS."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Action(StrEnum):
    """What to do next, mildest first; the order of definition is the order of the ladder."""

    NONE = "none"
    RETEST = "retest"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    REPAIR = "repair"
    HOLD = "hold"

    @property
    def rank(self) -> int:
        """Position in the ladder, 0 for the mildest."""
        return list(Action).index(self)


@dataclass(frozen=True)
class Reason:
    """Why a run is not a PASS. `code` is stable; `severity` is FAIL or INCONCLUSIVE; `gpu` is a UUID."""

    code: str
    check: str
    message: str
    gpu: str | None = None
    details: Mapping[str, JSON] = field(default_factory=dict, metadata={JSON_NAME: "evidence"})
    action: Action = Action.RETEST
    severity: Verdict = Verdict.FAIL

    def __post_init__(self) -> None:
        if self.severity is Verdict.PASS:
            raise ValueError(f"reason {self.code} has severity PASS: use FAIL or INCONCLUSIVE")


@dataclass(frozen=True)
class Notice:
    """Something a person should know that does not keep a node out, such as a rate under a derived floor."""

    code: str
    check: str
    message: str
    gpu: str | None = None
    details: Mapping[str, JSON] = field(default_factory=dict, metadata={JSON_NAME: "evidence"})


@dataclass(frozen=True)
class Measurement:
    """One number with its unit, and the floor it was judged by.

    `floor_source` says where the floor comes from, `floor_confidence` is measured, vendor or derived.
    """

    name: str
    value: float
    unit: str
    floor: float | None = None
    floor_source: str | None = None
    floor_confidence: str | None = None

    @property
    def below_floor(self) -> bool:
        """Whether it is under its floor. A value that is no number is under every floor."""
        return self.floor is not None and not float(self.value) >= self.floor


@dataclass(frozen=True)
class Series:
    """A quantity over time: `t_s` are seconds of CLOCK_MONOTONIC, one for each value."""

    name: str
    unit: str
    t_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Shortfall:
    """Where a result covers less than a PASS must: one sentence, and the figures behind it."""

    message: str
    details: Mapping[str, JSON]


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What a check looked at. Each check has a class of its own (gpu_burnin.checks.NAME.result); this one says nothing,
    like the result of a check that did not end.

    A class names again those of these fields that it always reports, which gives them their place in the report.
    `verified_s` are seconds of work on the GPU of which every result was verified, `verified_parts_s` the same by part.
    `bytes_moved` were read from or written to the GPU's memory, `pcie_bytes_moved` and `nvlink_bytes_moved` went over
    these links. `no_floor_why` says why the rates are not held against the model's floors. `waited_s` are those of the
    result's seconds in which the GPU waited for others.
    """

    verified_s: float = optional(float)
    verified_parts_s: Mapping[str, float] = optional(dict)
    bytes_moved: int = optional(int)
    pcie_bytes_moved: int | None = optional(lambda: None)
    nvlink_bytes_moved: int | None = optional(lambda: None)
    simulated: bool = optional(bool)
    no_floor_why: str | None = optional(lambda: None)
    waited_s: float | None = optional(lambda: None)

    # Whether stands_out tells the lowest rate, so that beside it only one with a floor is told.
    names_lowest_rate: ClassVar[bool] = False

    @property
    def nothing_to_test(self) -> bool:
        """Whether the check looked and found that there is nothing for it here, such as links of a single GPU."""
        return False

    def summary(self) -> list[str]:
        """What was covered, in a few words each; nothing where the check says no more than how long it ran."""
        return []

    @classmethod
    def stands_out(cls, results: Sequence[CheckResult], gpu_names: Mapping[str, str]) -> str:
        """What no single measurement says of the results of all GPUs, such as the slowest pair; "" for nothing.

        `gpu_names` are those of all GPUs of the node by UUID.
        """
        return ""

    def shortfalls(self, precisions: tuple[str, ...]) -> Iterator[Shortfall]:
        """Where this is less than what a PASS on real hardware must cover.

        `precisions` are those of the GPU's model, () where that is not known.
        """
        return iter(())


@dataclass(frozen=True)
class CheckResult:
    """What one check found on one GPU, or on the node when `gpu` is None.

    `started_s` is CLOCK_MONOTONIC in seconds, set by the supervisor. `series` are rates over time for the
    report's plots; they travel in the series file. In a report it has none of the last three.
    """

    name: str
    gpu: str | None
    verdict: Verdict
    seconds: float
    measurements: tuple[Measurement, ...] = ()
    coverage: Coverage = Coverage()
    errors: tuple[Mapping[str, JSON], ...] = ()
    reasons: tuple[Reason, ...] = optional(tuple)
    series: tuple[Series, ...] = optional(tuple)
    started_s: float = optional(float)


@dataclass(frozen=True)
class MigInstance:
    """One MIG device of a GPU: its profile such as 1g.10gb, and what NVML gives it of the GPU."""

    uuid: str
    profile: str
    multiprocessors: int
    memory_bytes: int

    @property
    def shares_memory(self) -> bool:
        """Whether other MIG devices have the same memory, so that no worker could fill it alone."""
        return _SHARES_MEMORY.match(self.profile) is not None


@dataclass(frozen=True)
class Gpu:
    """Identity of one GPU. `pci_bus_id` looks like 0000:91:00.0; `sku` is the key in skus.yaml.

    `instances` are those of a GPU in MIG mode, None for a whole one. `instance` is the number of the MIG instance that
    this is of its GPU, None for the GPU itself.
    """

    index: int
    uuid: str
    serial: str
    pci_bus_id: str
    name: str
    sku: str
    memory_bytes: int
    vbios: str
    instances: tuple[MigInstance, ...] | None = optional(lambda: None)
    instance: int | None = optional(lambda: None)

    @property
    def units(self) -> tuple[Gpu, ...]:
        """What a worker opens: the GPU itself, or in MIG mode each instance with memory of its own.

        CUDA shows a process one instance, as if it were a GPU (NVIDIA's MIG User Guide, CUDA Device Enumeration).
        """
        if self.instances is None:
            return (self,)
        return tuple(
            replace(
                self,
                uuid=one.uuid,
                name=f"{self.name} MIG {one.profile}",
                memory_bytes=one.memory_bytes,
                instances=None,
                instance=number,
            )
            for number, one in enumerate(self.instances)
            if not one.shares_memory
        )

    @property
    def uuids(self) -> tuple[str, ...]:
        """The UUIDs of the GPU and of its instances."""
        return (self.uuid, *(one.uuid for one in self.instances or ()))

    @property
    def short(self) -> str:
        """The short form for people: "GPU 3", of an instance "GPU 3 MIG 0"."""
        return f"GPU {self.index}" if self.instance is None else f"GPU {self.index} MIG {self.instance}"

    @property
    def label(self) -> str:
        """How a person finds this GPU: index, PCI address and UUID as far as known."""
        known = " ".join(part for part in (self.pci_bus_id, self.uuid) if part)
        return f"{self.short} ({known})" if known else self.short


@dataclass(frozen=True)
class SelftestResult:
    """One injected fault and whether the detector saw it. `scope` says what this proves.

    `changed_bits` is how many bits the fault changed in the data under test, counted; None where a fault has
    no such size (a launch that never ran). `real` is a fault of the hardware: something was wrong before anything
    was injected, or where nothing was.
    """

    fault: str
    check: str
    gpu: str | None
    injected: bool
    detected: bool
    latency_s: float
    scope: str
    changed_bits: int | None = None
    real: Reason | None = None


def worst(verdicts: Mapping[str, Verdict] | list[Verdict] | tuple[Verdict, ...]) -> Verdict:
    """FAIL beats INCONCLUSIVE beats PASS; nothing at all is INCONCLUSIVE."""
    seen = set(verdicts.values() if isinstance(verdicts, Mapping) else verdicts)
    if Verdict.FAIL in seen:
        return Verdict.FAIL
    if seen == {Verdict.PASS}:
        return Verdict.PASS
    return Verdict.INCONCLUSIVE


def verdict_of(reasons: tuple[Reason, ...] | list[Reason]) -> Verdict:
    """PASS without reasons, else the worst severity among them."""
    return worst([r.severity for r in reasons]) if reasons else Verdict.PASS
