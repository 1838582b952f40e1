"""The CUDA C of all checks, which workers compile when they open their GPU."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from gpu_burnin.checks import CHECKS


def kernel_sources() -> dict[str, str]:
    """The source of each package that has a module `cuda`, by the last part of its name: of exact products, and of the
    checks. The longest come first: workers that start at once then take the rest from each other."""
    names = ("gpu_burnin.exact", *(f"gpu_burnin.checks.{name}" for name in CHECKS))
    modules = [import_module(f"{name}.cuda") for name in names if find_spec(f"{name}.cuda")]
    found = {module.__name__.split(".")[-2]: str(module.SOURCE) for module in modules}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))
