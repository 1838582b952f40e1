"""What became of a job."""

from __future__ import annotations

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a job, as far as it was followed."""

    MADE = "made"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNCLEAR = "unclear"
