"""The pcie check: copies between the host and each GPU."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.TOGETHER,
    slots={"quick": Slot(0.5, 3.0), "standard": Slot(0.8, 4.0), "extended": Slot(0.6, 4.0)},
    selftested=True,
    in_turns=0.4,
    faults=("corrupted", "stale", "dropped", "duplicated", "reordered"),
)
