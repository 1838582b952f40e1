"""What `run` refuses, before anything is made."""

from __future__ import annotations

from gpu_burnin.errors import GpuBurninError


class LaunchError(GpuBurninError):
    """The job cannot be launched as it was asked for: one sentence with what to do."""
