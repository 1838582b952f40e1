"""The power check: synchronised waves of load, and everything at once."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.TOGETHER,
    slots={"quick": Slot(1.0, 3.0), "standard": Slot(3.0, 15.0), "extended": Slot(3.0, 15.0)},
    selftested=True,
    faults=("wrong_edge", "late", "idle", "wrong_transfer"),
)
