"""The sm check: small kernels on every SM."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.EACH,
    slots={"quick": Slot(0.6, 2.0), "standard": Slot(0.6, 3.0), "extended": Slot(0.6, 3.0)},
    selftested=True,
    faults=(
        "stuck_bit", "dropped_lane", "lost_atomic", "wrong_special", "special_everywhere", "absent_sm", "bad_smid",
        "skipped_launch",
    ),
)  # fmt: skip
