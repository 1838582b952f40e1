"""GPU nodes: their burn-in (exact checks, counted coverage, signed evidence), their admission, and the fleet's command.

The burn-in as a library, here the first GPU for a minute and all results typed:

    from gpu_burnin import Plan, RunOptions, Verdict, load_config, run_burnin

    outcome = run_burnin(RunOptions(config=load_config(), level="quick", gpus=("0",)))
    if outcome.verdict is not Verdict.PASS:
        for reason in outcome.judgement.reasons:
            print(reason.code, reason.gpu, reason.message)
    plan: Plan = outcome.plan
    for result in outcome.results:
        print(result.name, result.gpu, result.verdict, f"{result.seconds:.1f} of {plan.total_s:.0f} s")
    print(outcome.run_dir / "report.json", outcome.report.verdict, outcome.exit_code)

A mistake in options or configuration raises GpuBurninError, whose text is one sentence. Signals are taken only in
the main thread. Names load on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from gpu_burnin.engine.plan import Plan, make_plan
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.judge.verdict import Judgement
    from gpu_burnin.report.model import Report
    from gpu_burnin.run import Outcome, RunOptions, run_burnin
    from gpu_burnin.settings.config import Config, load_config
    from gpu_burnin.settings.expectations import Expectations
    from gpu_burnin.types import Action, CheckResult, Gpu, Measurement, Notice, Reason, SelftestResult, Verdict

__all__ = [
    "Action",
    "CheckResult",
    "Config",
    "Expectations",
    "Gpu",
    "GpuBurninError",
    "Judgement",
    "Measurement",
    "Notice",
    "Outcome",
    "Plan",
    "Reason",
    "Report",
    "RunOptions",
    "SelftestResult",
    "Verdict",
    "__version__",
    "load_config",
    "make_plan",
    "run_burnin",
]
_HOMES = {
    "Action": "gpu_burnin.types",
    "CheckResult": "gpu_burnin.types",
    "Config": "gpu_burnin.settings.config",
    "Expectations": "gpu_burnin.settings.expectations",
    "Gpu": "gpu_burnin.types",
    "GpuBurninError": "gpu_burnin.errors",
    "Judgement": "gpu_burnin.judge.verdict",
    "Measurement": "gpu_burnin.types",
    "Notice": "gpu_burnin.types",
    "Outcome": "gpu_burnin.run",
    "Plan": "gpu_burnin.engine.plan",
    "Reason": "gpu_burnin.types",
    "Report": "gpu_burnin.report.model",
    "RunOptions": "gpu_burnin.run",
    "SelftestResult": "gpu_burnin.types",
    "Verdict": "gpu_burnin.types",
    "load_config": "gpu_burnin.settings.config",
    "make_plan": "gpu_burnin.engine.plan",
    "run_burnin": "gpu_burnin.run",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """What an interactive shell completes."""
    return __all__
