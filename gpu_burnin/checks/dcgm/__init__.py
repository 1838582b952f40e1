"""The dcgm check: NVIDIA's own diagnostic as one more opinion."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.AFTER,
    slots={"quick": Slot(0.0, 600.0), "standard": Slot(0.0, 1800.0), "extended": Slot(0.0, 7200.0)},
    optional=True,
)
