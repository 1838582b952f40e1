"""The plan that `gpu-burnin plan` shows: for the GPUs found here, or from a model's data for GPUs that are not here."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_burnin.engine.plan import Plan
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import Sku, load_skus
from gpu_burnin.node.known_gpus import read_known
from gpu_burnin.node.prepare import Prepared, RunOptions, planned
from gpu_burnin.system.own_name import host_name
from gpu_burnin.telemetry.discover import Found, choose_backend, discover
from gpu_burnin.types import Gpu

DEFAULT_GPUS_COUNT = 8
_ELSEWHERE = (
    "to plan for GPUs that are not here: gpu-burnin plan --model KEY --gpus-count N (--model list shows the keys)"
)


@dataclass(frozen=True)
class ShownPlan:
    """A plan to be shown. `why_simulated`: why no real GPU would be tested, "" where one would. `no_pass`: why such a
    run could not pass. `model`: the one it was planned from, None where the GPUs are those of this node."""

    plan: Plan
    why_simulated: str = ""
    no_pass: tuple[str, ...] = ()
    model: Sku | None = None


def plan_here(options: RunOptions) -> ShownPlan:
    """What a run would do on this node. Raises GpuBurninError (exit 2) for a wrong option, and where no GPU is."""
    found = discover()
    backend = _backend(options.backend or options.config.backend, found)
    # The record is root's; it matters only where it decides on the level.
    known = read_known(options.config.state_dir) if options.config.extended_for_new_s else ()
    made = planned(options, found, backend, known)
    if not found.testable:
        raise GpuBurninError(f"{host_name()}: {_no_gpu(found)}; {_ELSEWHERE}")
    return ShownPlan(made.plan, _why_simulated(options, found, backend), _no_pass(made))


def plan_for_model(options: RunOptions, key: str, count: int) -> ShownPlan:
    """What a run would do, on CUDA, on a node with `count` GPUs of the model that skus.yaml calls `key`.

    Nothing is looked at here. Raises GpuBurninError (exit 2) for an unknown model or a wrong option.
    """
    skus = load_skus()
    if problem := skus.problem(key):
        raise GpuBurninError(f"--model {key}: {problem}")
    if options.backend == "cpu":
        raise GpuBurninError("--model plans a run on real GPUs: leave --backend cpu out")
    model = skus.skus[key]
    gpus = tuple(
        Gpu(
            index,
            uuid="",
            serial="",
            pci_bus_id="",
            name=model.name,
            sku=key,
            memory_bytes=model.memory_bytes,
            vbios="",
        )
        for index in range(count)
    )
    made = planned(options, Found(gpus=gpus, simulated=False), "cuda", ())
    return ShownPlan(made.plan, no_pass=_no_pass(made), model=model)


def _no_pass(made: Prepared) -> tuple[str, ...]:
    left_out = (f"the configuration asks for {', '.join(made.left_out)} too",) if made.left_out else ()
    return (*made.shortfalls, *left_out)


def _no_gpu(found: Found) -> str:
    if found.gpus:
        return f"none of the {len(found.gpus)} GPUs of this node can be tested: gpu-burnin scan says why"
    return f"this node has no GPU to plan for ({found.error or 'the NVIDIA driver lists none'})"


def _backend(asked: str, found: Found) -> str:
    """The backend whose plan is shown: unlike a run, a plan does no harm where it cannot be carried out."""
    try:
        return choose_backend(asked, found)
    except GpuBurninError:
        return "cpu" if asked == "auto" else asked


def _why_simulated(options: RunOptions, found: Found, backend: str) -> str:
    if found.simulated:
        return "NVML is a simulation here"
    if backend == "cpu":
        asked = options.backend or options.config.backend
        return "the CPU computes" if asked == "cpu" else "CuPy is not installed"
    return ""
