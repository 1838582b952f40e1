"""A node of simulated GPUs, and the environment variable that asks for it. Imports neither NVML nor the recordings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.telemetry.simulated_nvml.profiles import Profile, faults, models, profile

# Processes that have it open this node in place of the driver's NVML, and say that all is simulated.
ENVIRONMENT = "GPU_BURNIN_SIMULATED_NVML"
# What the libraries of this project have, and no driver's has (tests/lab/fake_nvml has it too).
FAKE_SYMBOL = "muster_fake_nvml"
NEWEST_BRANCH = "580"


@dataclass(frozen=True)
class SimulatedNode:
    """`count` GPUs of a model (key in skus.yaml) under a driver branch; `faults` by the number of the GPU, and so the
    instances of those in MIG mode: profile, multiprocessors, MiB."""

    model: str
    count: int
    branch: str = NEWEST_BRANCH
    faults: Mapping[int, str] = field(default_factory=dict)
    mig: Mapping[int, Sequence[Sequence[Any]]] = field(default_factory=dict)

    def to_text(self) -> str:
        """The value of the environment variable."""
        by_gpu = {part: {str(gpu): value for gpu, value in getattr(self, part).items()} for part in ("faults", "mig")}
        return json.dumps(vars(self) | by_gpu)

    @classmethod
    def from_text(cls, text: str) -> SimulatedNode:
        """The node of such a value. Raises GpuBurninError (exit 2)."""
        try:
            said = json.loads(text)
            sick = {int(gpu): str(name) for gpu, name in said.get("faults", {}).items()}
            parted = {int(gpu): instances for gpu, instances in said.get("mig", {}).items()}
            node = cls(**{**said, "faults": sick, "mig": parted})
            node.profiles()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise GpuBurninError(
                f"the environment variable {ENVIRONMENT} names no node of simulated GPUs ({error!r}); unset it"
            ) from error
        return node

    def profiles(self) -> tuple[Profile, ...]:
        """What NVML answers of each GPU. Raises KeyError for a model, branch or fault that is not recorded."""
        recorded = profile(self.model, self.branch)
        # Some were recorded in slots that are narrower than the GPU; simulated slots have every lane.
        width = recorded.calls["nvmlDeviceGetMaxPcieLinkWidth"]
        healthy = recorded.changed(calls={"nvmlDeviceGetCurrPcieLinkWidth": width})
        sick = {gpu: healthy.changed(**_answers(name)) for gpu, name in self.faults.items()}
        found = [sick.get(gpu, healthy) for gpu in range(self.count)]
        return tuple(one.in_mig(self.mig[gpu]) if gpu in self.mig else one for gpu, one in enumerate(found))

    def kernel_log(self) -> str:
        """The kernel's log since boot, in the form of /dev/kmsg: a line of the boot, and those of the faults."""
        lines = [(0, 6, "Linux version 6.1.0 (simulated)")]
        for gpu, name in sorted(self.faults.items()):
            pci = f"0000:{bus(gpu):02x}:00"
            lines += [(60_000_000, 3, text.format(pci=pci)) for text in faults()[name]["kernel_log"]]
        return "".join(
            f"{priority},{number},{time_us},-;{text}\n" for number, (time_us, priority, text) in enumerate(lines)
        )


def _answers(fault: str) -> dict[str, object]:
    return {key: value for key, value in faults()[fault].items() if key in ("calls", "fields", "fabric", "links")}


def uuid(index: int) -> str:
    """The UUID of a simulated GPU by its number."""
    return f"GPU-{index:08x}-0000-0000-0000-000000000000"


def bus(index: int) -> int:
    """The PCI bus of a simulated GPU by its number."""
    return 0x10 + index


def recorded_models() -> tuple[str, ...]:
    """Keys in skus.yaml of the models whose GPUs can be simulated."""
    return tuple(name for name, data in models().items() if NEWEST_BRANCH in data["branches"])
