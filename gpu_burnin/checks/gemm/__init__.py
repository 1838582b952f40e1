"""The gemm check: exact matrix products in every precision."""

from gpu_burnin.checks.spec import CheckSpec, Scope, Slot

SPEC = CheckSpec(
    Scope.EACH,
    slots={"quick": Slot(6.0, 6.0), "standard": Slot(6.0, 20.0), "extended": Slot(6.0, 20.0)},
    selftested=True,
    slower_at_less_power=True,
    faults=(
        "bitflip", "low_mantissa", "multibit", "wrong_value", "warp_run", "nan", "inf", "zero", "transposed",
        "permuted", "shifted", "sign_pair", "stale", "skipped_tile", "skipped_launch", "operand_a", "operand_b",
    ),
)  # fmt: skip
