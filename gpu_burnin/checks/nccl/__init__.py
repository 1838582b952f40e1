"""The nccl check: collective operations of all GPUs."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.TOGETHER,
    slots={"quick": Slot(1.0, 5.0), "standard": Slot(1.5, 10.0), "extended": Slot(1.0, 10.0)},
    selftested=True,
    between_gpus=True,
    faults=("wrong_element", "stale", "slow_rank", "hang_rank", "dead_rank"),
)
