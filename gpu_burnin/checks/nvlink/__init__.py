"""The nvlink check: copies between every two GPUs."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.TOGETHER,
    slots={"quick": Slot(1.0, 2.0), "standard": Slot(1.5, 8.0), "extended": Slot(1.0, 8.0)},
    selftested=True,
    between_gpus=True,
    in_turns=0.5,
    least_gpus=2,
    faults=("corrupted", "dropped", "duplicated", "reordered", "slow_link", "dead_link", "slow_gpu"),
)
