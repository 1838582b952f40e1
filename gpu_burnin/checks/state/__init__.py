"""The state check: does each GPU look as its model should."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.NODE,
    slots={"quick": Slot(0.0, 2.0), "standard": Slot(0.0, 10.0), "extended": Slot(0.0, 10.0)},
)
