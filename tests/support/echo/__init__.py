"""The echo check: words that go into the memory of the device and come back."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.EACH,
    slots={"quick": Slot(0.5, 1.0), "standard": Slot(0.5, 2.0), "extended": Slot(0.5, 2.0)},
    selftested=True,
    faults=("flipped",),
)
