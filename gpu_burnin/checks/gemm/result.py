"""What the gemm check covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_burnin.hardware.skus import PATH_OF
from gpu_burnin.system.quantities import count
from gpu_burnin.types import Coverage, Shortfall


@dataclass(frozen=True)
class DataPath:
    """The data path of one precision: proven by bits and rate together. Rates in TFLOP/s or TOP/s.

    `rate_floor` is what the rate had to be above, and `compared_with` says of what; both None where bits decide.
    `asked` is False where the model's data do not ask for the precision: then nothing depends on it.
    """

    path: str
    proven: bool
    why: str
    rate: float | None
    rate_floor: float | None = None
    compared_with: str | None = None
    asked: bool = True


@dataclass(frozen=True, kw_only=True)
class GemmCoverage(Coverage):
    """`shape` is (m, n, k). `products` counts by precision, `phases` by phase, `verified_by` by what verified them.

    `ranges` are the operand ranges of each precision that were verified, `scaled` the precisions that also ran with
    scaled rows and columns. `random_digests` are those of the random products, equal on GPUs with equal `algorithms`.
    """

    shape: tuple[int, int, int]
    phases: Mapping[str, int]
    products: Mapping[str, int]
    ranges: Mapping[str, tuple[str, ...]]
    scaled: tuple[str, ...]
    verified_by: Mapping[str, int]
    wrong_products: int
    precisions_not_covered: tuple[str, ...]
    data_path: Mapping[str, DataPath]
    random_digests: Mapping[str, tuple[str, ...]]
    algorithms: Mapping[str, str]
    bytes_moved: int
    verified_s: float
    verified_parts_s: Mapping[str, float]
    simulated: bool

    def shortfalls(self, precisions: tuple[str, ...]) -> Iterator[Shortfall]:
        """Each precision of the model must have been verified, and on its own data path; of an unknown model, all that
        ran and that the check itself missed."""
        wanted = precisions or tuple(self.data_path) or tuple(PATH_OF)
        unproven = {name: path for name, path in self.data_path.items() if name in wanted and not path.proven}
        missed = {name for name in self.precisions_not_covered if name in wanted or not precisions}
        missing = [name for name in PATH_OF if name in missed or (name in wanted and name not in self.data_path)]
        uncovered = [f"{name} did not prove its data path ({path.why})" for name, path in unproven.items()]
        uncovered += [f"{name} was not covered" for name in missing]
        if uncovered:
            yield Shortfall("; ".join(uncovered), {"not_proven": [*unproven], "precisions_missing": [*missing]})

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        products, missing = self.products, self.precisions_not_covered
        ranges = {name for names in self.ranges.values() for name in names}
        return [
            *([f"{count(sum(products.values()), 'product')} in {', '.join(products)}"] if products else []),
            " x ".join(map(str, self.shape)),
            *([f"phases {', '.join(self.phases)}"] if self.phases else []),
            *([count(len(ranges), "range of operands", "ranges of operands")] if ranges else []),
            *([] if self.simulated else _data_paths(self.data_path)),  # host arithmetic has no such paths
            *([f"not: {', '.join(missing)}"] if missing else []),
        ]


def _data_paths(paths: Mapping[str, DataPath]) -> list[str]:
    """How many precisions proved the unit that they ran on, which by rate, and which the model does not require."""
    asked = {name: path for name, path in paths.items() if path.asked}
    proven = {name: path for name, path in asked.items() if path.proven}
    by_rate = [name for name, path in proven.items() if path.rate_floor is not None]
    others = [name for name in paths if name not in asked]
    how = f" ({', '.join(by_rate)} by rate)" if by_rate else ""
    return [
        *([f"data path proven for {len(proven)} of {len(asked)} precisions{how}"] if asked else []),
        *([f"not required of this model: {', '.join(others)}"] if others else []),
    ]
