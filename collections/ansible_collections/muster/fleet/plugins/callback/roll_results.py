"""Callback: what a run of `muster roll` did to each host, as a file for it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

from gpu_burnin.fleet.waves.names import FOLDER_VARIABLE, OUTCOMES, PLAY
from gpu_burnin.system.files import write_atomic

DOCUMENTATION = r"""
name: roll_results
type: aggregate
short_description: Keep what a run of muster roll did to each host
version_added: "0.2.0"
description:
  - C(muster roll) runs playbooks with C(MUSTER_ROLL_STEP) set to a folder. This callback writes C(play.txt) there, the
    play that runs, and at the end C(outcomes.json). Of each host it has the first task that failed, whether it could
    not be reached, why an upgrade left it as it was, the verdict of its burn-in, what its own gate says, and how the
    admitter sees it.
  - Without the variable it does nothing.
requirements:
  - C(muster.fleet.roll_results) in C(callbacks_enabled) in C(ansible.cfg).
author:
  - Muster (@muster)
"""
_MOST_MESSAGE = 600


class CallbackModule(CallbackBase):
    """Collects, and writes once."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "muster.fleet.roll_results"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        folder = os.environ.get(FOLDER_VARIABLE)
        self._folder = Path(folder) if folder else None
        self._hosts: dict[str, dict[str, Any]] = {}
        self._admission: list[Any] = []
        self._missing: dict[str, str] = {}
        self._faults: list[Any] = []
        self._cut = False

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Say which play runs."""
        if self._folder is not None:
            write_atomic(self._folder / PLAY, play.get_name().encode())

    def v2_runner_on_ok(self, result: Any) -> None:
        """Keep that the host took part, and the few results that say how it stands."""
        self._take(result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Keep that the host took part."""
        self._of(result.host.name)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Keep the first failure of a host, unless it is passed over."""
        self._take(result)
        if not ignore_errors:
            message = " ".join(str(result.result.get("msg") or "").split())[:_MOST_MESSAGE]
            self._of(result.host.name).setdefault("failed", f"{result.task_name}: {message}")
            # Ansible takes the others of its play out with it, and says so of none of them.
            self._cut |= bool(result.task.any_errors_fatal or result.task.run_once)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Keep that a host could not be reached, unless a task may miss it."""
        found = self._of(result.host.name)
        if not result.task.ignore_unreachable:
            message = " ".join(str(result.result.get("msg") or "").split())[:_MOST_MESSAGE]
            found.setdefault("unreachable", message)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Keep that the run ends before its last play."""
        self._cut = True

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write it. A host whose failures were all mended by the play has none."""
        if self._folder is None:
            return
        for host, found in self._hosts.items():
            if not stats.failures.get(host):
                found.pop("failed", None)
        content = {
            "hosts": self._hosts,
            "admission": self._admission,
            "missing": self._missing,
            "faults": self._faults,
            # What a play has mended cuts nothing.
            "cut": self._cut and any((*stats.failures.values(), *stats.dark.values())),
        }
        write_atomic(self._folder / OUTCOMES, json.dumps(content).encode())

    def _of(self, host: str) -> dict[str, Any]:
        return self._hosts.setdefault(host, {})

    def _take(self, result: Any) -> None:
        found, values = self._of(result.host.name), result.result
        match str(result.task.action).removeprefix("muster.fleet."):
            case "kubelet_state" if "gate_open" in values:
                found["gate"] = {key: value for key, value in values.items() if isinstance(value, (str, bool))}
            case "burnin" if values.get("verdict"):
                found["verdict"], found["why"] = str(values["verdict"]), str(values.get("why") or "")
                found["codes"] = [str(one["code"]) for one in values.get("reasons", ()) if isinstance(one, Mapping)]
            case "node_admission" if "nodes" in values:
                self._admission = list(values["nodes"])
                self._missing = dict(values.get("missing") or {})
            case "kube_upgrade" if values.get("left"):
                for host, why in dict(values["left"]).items():
                    self._of(host)["left"] = str(why)
            case "preflight_report" if "faults" in values:
                self._faults = list(values["faults"])
