"""What the lab cannot do."""

from __future__ import annotations

from gpu_burnin.errors import GpuBurninError


class LabError(GpuBurninError):
    """The lab could not do what was asked; the message says what and how to mend it."""
