"""Jobs on the fleet from a few lines of Python:

    from gpu_burnin.launch import run

    def train(steps: int) -> None:
        import torch
        ...

    run(train, nodes=16, kind="h100", team="vision", near="rack", image="registry.example/torch:2", args=[1000])

`run` checks all that it can before it makes anything, follows the job, and returns what became of it. A mistake is one
sentence (GpuBurninError).
"""

from __future__ import annotations

from gpu_burnin.errors import install_hint
from gpu_burnin.launch.errors import LaunchError
from gpu_burnin.launch.outcome import Outcome

try:
    from gpu_burnin.launch.job import Launched, run
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"gpu_burnin.launch needs {error.name}; {install_hint('launch')} brings it", name=error.name
    ) from error

__all__ = ["LaunchError", "Launched", "Outcome", "run"]
