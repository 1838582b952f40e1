"""What the admitter knows of a node's tests with other nodes: `status.fabric` of its NodeAdmission."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from gpu_burnin.types import JSON_NAME, OMIT_DEFAULT


class FabricOutcome(StrEnum):
    """What the tests of this boot with other nodes came to."""

    PASSED = "passed"
    SUSPECT = "suspect"
    NAMED = "named"


@dataclass(frozen=True)
class FabricProof:
    """The tests of one boot, oldest partner first. `claim` is what a failure names, in one sentence; "" for none.

    `passes` and `failures` count tests with partners that were proven themselves, or passed in the same test.
    `failed_with` are of a suspect the proven partners with whom it failed, each once; of a proven node those that
    failed with it alone, since it passed last: once for each test.
    """

    boot_id: str = field(metadata={JSON_NAME: "bootID"})
    tested_at: str = field(metadata={JSON_NAME: "testedAt"})
    outcome: FabricOutcome
    run: str
    partners: tuple[str, ...] = ()
    passes: int = 0
    failures: int = 0
    failed_with: tuple[str, ...] = field(default=(), metadata={JSON_NAME: "failedWith", OMIT_DEFAULT: True})
    claim: str = field(default="", metadata={OMIT_DEFAULT: True})
