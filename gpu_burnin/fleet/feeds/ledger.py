"""The turns of this controller's plays as the ledger says them, so that the scaler counts nodes that swing."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import Conflict, KubeApi, admissions_path
from gpu_burnin.api.names import KIND, PROVISIONER_USER, Names
from gpu_burnin.api.record import Ask, parse
from gpu_burnin.api.remedies import DEFINITIONS
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.turns import SLACK_S
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json

# A play does not stand still for long where the API servers are away.
_TIMEOUT_S = (5.0, 10.0)


def begin(kubeconfig: Path, domain: str, node: str, waves_s: float, now: datetime | None = None) -> str:
    """Say that a node swings, until its waves must be over; why that could not be said, "" where it was.

    Nobody has to end it: a play that is killed leaves an end that comes. A node without an entry is none of the
    scaler's.
    """
    since = now or datetime.now(UTC)
    until = since + timedelta(seconds=waves_s + SLACK_S)
    ask = Ask(PROVISIONER_USER, "a play lets it swing its power", rfc3339(since), rfc3339(until))
    return _patch(kubeconfig, domain, node, [{"op": "add", "path": "/spec/swing", "value": to_json(ask)}])


def end(kubeconfig: Path, domain: str, node: str) -> str:
    """Say that it swings no more; why that could not be said, which its end makes good."""
    return _patch(kubeconfig, domain, node, [{"op": "remove", "path": "/spec/swing"}])


def _patch(kubeconfig: Path, domain: str, node: str, patch: list[dict[str, Any]]) -> str:
    names = Names(domain)
    path, what = admissions_path(names, node), f"write the {KIND} of {node}"
    try:
        api = KubeApi(kubeconfig, retries=0, timeout_s=_TIMEOUT_S)
        found = api.find(path, f"read the {KIND} of {node}")
        if found is None or (patch[0]["op"] == "remove" and parse(found).spec.swing is None):
            return ""
        written = api.patch(path, patch, what)
    except (Conflict, GpuBurninError) as error:
        return str(error)
    return _kept(written, node, patch)


def _kept(written: Mapping[str, Any], node: str, patch: list[dict[str, Any]]) -> str:
    if patch[0]["op"] == "add" and parse(written).spec.swing is None:
        return f"{node}: the definition of its {KIND} is of an older version; {DEFINITIONS}"
    return ""
