"""Results and events as JSON values: what goes over the worker pipes and into the journal.

What is not finite goes as text, since JSON has no such numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpu_burnin.checks import coverage_class
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.types import CheckResult, Coverage


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as one line."""
    return (json.dumps(to_json(message), allow_nan=False, separators=(",", ":")) + "\n").encode()


def result_from_json(data: Mapping[str, Any]) -> CheckResult:
    """The inverse of to_json for a CheckResult. Raises Misfit, or KeyError for a check that there is not."""
    told = data["coverage"]
    coverage = from_json(coverage_class(data["name"]), told) if told != {} else Coverage()
    return replace(from_json(CheckResult, {**data, "coverage": {}}), coverage=coverage)
