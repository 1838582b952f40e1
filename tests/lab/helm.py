"""Helm, which renders the chart as a user's does: built from its published module, for the chart's test alone."""

from __future__ import annotations

from pathlib import Path

from gpu_burnin.fleet.mirror.golang import Build

from .go_tool import ensure_tool
from .paths import ARTIFACTS

HELM_VERSION = "3.22.0"
_BUILD = Build(
    "helm",
    "helm",
    "helm.sh/helm/v3/cmd/helm",
    f"-X helm.sh/helm/v3/internal/version.version=v{HELM_VERSION}",
    version=HELM_VERSION,
    modules=ARTIFACTS,
)


def ensure_helm() -> Path:
    """The binary in the cache; cold it takes three minutes on two cores."""
    return ensure_tool(_BUILD)
