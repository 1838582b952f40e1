"""The burn-in of GPU nodes: exact checks, counted coverage, signed evidence.

As a library: `from gpu_burnin import RunOptions, run_burnin`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpu_burnin.plan import Plan, make_plan
    from gpu_burnin.run import Outcome, RunOptions, run_burnin

__all__ = ["Outcome", "Plan", "RunOptions", "__version__", "make_plan", "run_burnin"]
_HOMES = {
    "Outcome": "gpu_burnin.run",
    "Plan": "gpu_burnin.plan",
    "RunOptions": "gpu_burnin.run",
    "make_plan": "gpu_burnin.plan",
    "run_burnin": "gpu_burnin.run",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for on first use, so that importing the package costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
