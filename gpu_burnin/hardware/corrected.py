"""How many memory errors a GPU has corrected, and when that is worth telling. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_burnin.hardware.skus import Limit
from gpu_burnin.system.quantities import count


@dataclass(frozen=True)
class CorrectedErrors:
    """Errors corrected since the driver was loaded, and rows remapped for corrected ones; None: not told."""

    dram: int | None = None
    sram: int | None = None
    remapped_rows: int | None = None

    def is_much(self, limits: Mapping[str, Limit]) -> bool:
        """Whether one of the counts is above what a GPU in good order has."""
        counted = {"ecc_corrected_dram": self.dram, "ecc_corrected_sram": self.sram}
        return any((number or 0) > limits[name].value for name, number in counted.items())

    @property
    def words(self) -> str:
        """The counts in one clause."""
        rows = f", and {count(self.remapped_rows, 'row')} remapped for such" if self.remapped_rows else ""
        errors = (self.dram or 0) + (self.sram or 0)
        return f"{count(errors, 'memory error')} corrected since the driver was loaded{rows}"
