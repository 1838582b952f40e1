"""Action side of muster.fleet.power_grant: the host's turn at its feed, which all plays of the controller share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import os_error
from ansible_collections.muster.fleet.plugins.modules.power_grant import ARGUMENT_SPEC

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import read_limits
from gpu_burnin.fleet.feeds.turns import Turns

# What the module says when the host swings no more. After anything else its turn lasts until its waves must be over.
_STILL = ("none", "over", "given_up")


class ActionModule(ActionBase):
    """Runs the module while the host has a turn."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result, or that there was no turn."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, given = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        try:
            result.update(self._grant(str((task_vars or {})["inventory_hostname"]), given, task_vars))
        except GpuBurninError as error:
            result.update(failed=True, msg=str(error))
        except OSError as error:
            result.update(failed=True, msg=f"the controller: {os_error(error)}")
        return result

    def _grant(self, node: str, given: Mapping[str, Any], task_vars: Any) -> Mapping[str, Any]:
        limits = read_limits(given["feed_limits"], given["other_feeds"])
        if self._task.check_mode:
            return self._module(given, task_vars)
        turns = Turns(Path(given["directory"]), limits)
        if busy := turns.take(
            node, given["feed"], given["waves_s"], given["wait_s"], lambda busy: self._show(node, busy)
        ):
            why = f"it had no turn to swing its power within {given['wait_s']} s ({busy})"
            return {"changed": False, "waves": "waiting", "why": why}
        untold = _tell_ledger(given, node, given["waves_s"])
        done = self._module(given, task_vars)
        if not done.get("failed") and done.get("waves") in _STILL:
            turns.give_back(node)
            # What could not be said comes true by itself: what was said has an end.
            _tell_ledger(given, node, None)
        if not untold:
            return done
        warning = f"{node}: it swings its power, and the scaler does not know it: {untold}"
        return {**done, "warnings": [*done.get("warnings", ()), warning]}

    def _module(self, given: Mapping[str, Any], task_vars: Any) -> Mapping[str, Any]:
        done: Mapping[str, Any] = self._execute_module(module_args=dict(given), task_vars=task_vars)
        return done

    def _show(self, node: str, busy: str) -> None:
        self._display.display(f"{self._task.name}:\n  {node} waits for its turn: {busy}")


def _tell_ledger(given: Mapping[str, Any], node: str, waves_s: float | None) -> str:
    """That a node swings, None: no more, where this controller has a ledger; why it could not be told."""
    kubeconfig = Path(given["kubeconfig"])
    if not given["kubeconfig"] or not kubeconfig.exists():
        return ""
    # It brings the client of the API, which takes longer to load than all else here.
    from gpu_burnin.fleet.feeds import ledger

    if waves_s is None:
        return ledger.end(kubeconfig, given["domain"], node)
    return ledger.begin(kubeconfig, given["domain"], node, waves_s)
