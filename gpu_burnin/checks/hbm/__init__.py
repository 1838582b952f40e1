"""The hbm check: patterns over all of the memory."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.EACH,
    slots={"quick": Slot(3.0, 3.0), "standard": Slot(5.0, 20.0), "extended": Slot(6.0, 20.0)},
    selftested=True,
    slower_at_less_power=True,
    faults=("bitflip", "stuck", "flipping", "coupling", "alias", "lane", "row_burst", "fade"),
)
