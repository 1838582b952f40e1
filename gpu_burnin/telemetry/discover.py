"""Finding the GPUs of this node, and the backend that can test them. Loads neither CUDA nor NVML."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

from gpu_burnin.errors import EXIT_INCONCLUSIVE, EXIT_USAGE, GpuBurninError, install_hint
from gpu_burnin.hardware.skus import load_skus
from gpu_burnin.system.own_name import host_name
from gpu_burnin.telemetry.inventory import DEFAULT_TIMEOUT_S, InventoryError, read_inventory_in_child
from gpu_burnin.telemetry.pci import gpu_addresses, switch_addresses
from gpu_burnin.telemetry.state import GpuState, known, to_gpu
from gpu_burnin.types import Gpu


@dataclass(frozen=True)
class Found:
    """What NVML says of this node. `error` is one sentence when it says nothing.

    `simulated`: no real GPU is behind it. `lost` are the UUIDs (or "") of GPUs among `gpus` that no longer answer.
    `busy` has the pids of foreign processes by the UUID of the GPU that they use. `states` is what NVML gave of each
    GPU, `on_bus` and `switches` how many GPUs and NVSwitches the PCI bus has, 0 where nothing real is behind NVML.
    `no_real_gpu`: NVML is a simulation, or it says nothing and the PCI bus has no GPU.
    """

    gpus: tuple[Gpu, ...] = ()
    lost: frozenset[str] = frozenset()
    busy: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    simulated: bool = True
    driver: str = ""
    cuda: str = ""
    nvml: str = ""
    error: str = ""
    states: tuple[GpuState, ...] = ()
    on_bus: int = 0
    switches: int = 0
    no_real_gpu: bool = False

    @property
    def twins(self) -> frozenset[str]:
        """UUIDs that more than one GPU gives as its own: nothing that names a GPU so means one of them."""
        return frozenset(uuid for uuid, times in Counter(gpu.uuid for gpu in self.gpus).items() if uuid and times > 1)

    @property
    def testable(self) -> tuple[Gpu, ...]:
        """The GPUs that answer and have a UUID of their own."""
        return tuple(gpu for gpu in self.gpus if gpu.uuid not in self.lost | self.twins)


def discover(timeout_s: float = DEFAULT_TIMEOUT_S) -> Found:
    """Ask NVML in a child process; what goes wrong there, or takes longer than `timeout_s`, is in `error`, never
    raised."""
    try:
        node = read_inventory_in_child(timeout_s)
    except InventoryError as error:
        # Whoever tells of it names the host.
        return Found(error=str(error).removeprefix(f"{host_name()}: "), no_real_gpu=not gpu_addresses())
    return Found(
        gpus=tuple(to_gpu(state, _sku(state)) for state in node.gpus),
        lost=frozenset(state.uuid for state in node.gpus if state.lost or not state.uuid),
        busy={state.uuid: pids for state in node.gpus if (pids := _foreign(state))},
        simulated=node.simulated,
        driver=node.driver_version,
        cuda=node.cuda_version,
        nvml=node.nvml_version,
        states=node.gpus,
        on_bus=0 if node.simulated else len(gpu_addresses()),
        switches=0 if node.simulated else len(switch_addresses()),
        no_real_gpu=node.simulated,
    )


def _foreign(state: GpuState) -> tuple[int, ...]:
    """Processes on a GPU, but for this one: nothing of the run has been started yet."""
    return tuple(process.pid for process in known(state.processes) or () if process.pid != os.getpid())


def _sku(state: GpuState) -> str:
    """The key of the model in skus.yaml, "" for one that is not there."""
    sku = load_skus().find(state.pci_device_id, state.pci_subsystem_id)
    return sku.key if sku else ""


def choose_backend(asked: str, found: Found) -> str:
    """The backend, cpu or cuda. Raises GpuBurninError that says why no GPU can be used: never a silent CPU.

    Exit 3 where driver or GPUs are not there or do not answer, which is no mistake of whoever asked; 2 for a
    simulation, or without CuPy.
    """
    if asked == "cpu":
        return "cpu"
    why = _why_not_cuda(found)
    if why:
        raise GpuBurninError(
            f"{host_name()}: no GPU can be tested (--backend {asked}): {why}; "
            "`gpu-burnin demo` shows the program without a GPU",
            EXIT_USAGE if found.gpus else EXIT_INCONCLUSIVE,
        )
    return "cuda"


def _why_not_cuda(found: Found) -> str:
    if found.error:
        return found.error
    if not found.gpus:
        return "the NVIDIA driver lists no GPU"
    if found.simulated:
        return "NVML is a simulation here"
    # Found, not imported: the supervisor must not load CUDA.
    if find_spec("cupy") is None:
        return f"CuPy is not installed; {install_hint(_extra(found.cuda))} brings it with CUDA's libraries"
    return ""


def _extra(cuda: str) -> str:
    """The extra whose libraries a driver of this CUDA version serves."""
    major = cuda.partition(".")[0]
    return "cuda13" if major.isdecimal() and int(major) >= 13 else "cuda12"


def select(gpus: tuple[Gpu, ...], asked: tuple[str, ...] | None) -> tuple[Gpu, ...]:
    """The GPUs named by index, UUID (or its beginning) or PCI address; all when nothing is asked.

    Raises GpuBurninError for a name that fits none or several.
    """
    if asked is None:
        return gpus
    chosen: list[Gpu] = []
    for name in asked:
        fits = [gpu for gpu in gpus if name in (str(gpu.index), gpu.uuid, gpu.pci_bus_id)]
        fits = fits or [gpu for gpu in gpus if len(name) > 4 and gpu.uuid.startswith(name)]
        if len(fits) != 1:
            here = ", ".join(f"{gpu.index} ({gpu.uuid})" if gpu.uuid else str(gpu.index) for gpu in gpus) or "none"
            problem = "fits several" if fits else "fits none"
            raise GpuBurninError(
                f"{host_name()}: --gpus {name} {problem} of the GPUs here: {here}; "
                "name each by index, UUID or PCI address"
            )
        chosen += [gpu for gpu in fits if gpu not in chosen]
    return tuple(sorted(chosen, key=lambda gpu: gpu.index))
