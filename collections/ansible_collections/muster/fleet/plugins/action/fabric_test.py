"""Action side of muster.fleet.fabric_test: a host gets what is in the round's folder, and what it gives is kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import os_error
from ansible_collections.muster.fleet.plugins.modules.fabric_test import ARGUMENT_SPEC

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.fabric.folder import UNKNOWN_BOOT, Answer, Presence, RoundFolder
from gpu_burnin.system.codec import Misfit

# A host that is booted anew is looked for so often.
_RETRY_S = 5.0


class ActionModule(ActionBase):
    """One phase of one host."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result without the secrets in it, or that the host has no part in this phase."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, given = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        self._vars, self._given = task_vars or {}, given
        self._host = str(self._vars["inventory_hostname"])
        try:
            done = self._phase(RoundFolder(Path(given["round_directory"])), given["phase"], given["test"])
        except GpuBurninError as error:
            return {**result, "failed": True, "msg": str(error)}
        except (Misfit, KeyError, TypeError, ValueError) as error:
            # Whatever a node answers is its own matter, and not that of the round.
            return {**result, "failed": True, "msg": f"{self._host}: its answer is none of fabric_test ({error})"}
        except OSError as error:
            return {**result, "failed": True, "msg": f"the controller: {os_error(error)}"}
        return {**result, **done}

    def _phase(self, folder: RoundFolder, phase: str, test: int | None) -> Mapping[str, Any]:
        if phase == "look":
            done = self._module()
            found = Presence(UNKNOWN_BOOT, (), str(done.get("msg") or "its part cannot be read"))
            if not done.get("failed"):
                found = Presence(done["boot_id"], tuple(done["working"]), done["problem"], done["runs"])
            folder.keep_presence(self._host, found)
            return done
        if test is None:
            raise GpuBurninError(
                f"{self._host}: has no test in this round; call `muster fabric run`, which gives it one"
            )
        if phase == "offer":
            return self._offer(folder, test)
        offer = folder.offer(test)
        if offer is None:
            return {"changed": False, "problem": "its test has no offer"}
        if phase == "wait":
            return self._wait(folder, offer[1].timestamp())
        done = self._module(document=offer[0].decode(), keys=folder.keys(test))
        if why := _hindrance(done):
            folder.keep_answer(self._host, _refused(folder, self._host, why))
        return done

    def _offer(self, folder: RoundFolder, test: int) -> Mapping[str, Any]:
        agreed = folder.agreed(test)
        if agreed is None or agreed.names[0] != self._host:
            return {"changed": False, "problem": ""}
        done = dict(self._module(document=agreed.canonical().decode()))
        if offer := done.pop("offer", ""):
            folder.keep_offer(test, offer)
        elif why := _hindrance(done):
            folder.keep_answer(self._host, _refused(folder, self._host, why))
        return done

    def _wait(self, folder: RoundFolder, offered_s: float) -> Mapping[str, Any]:
        """Until the round's deadline, which is the same for all: one host after the other would add up."""
        if folder.answer(self._host) is not None:
            return {"changed": False, "problem": ""}
        end_s = offered_s + self._given["wait_s"]
        while True:
            left_s = end_s - time.time()
            try:
                done = dict(self._module(wait_s=max(1, round(left_s))))
                break
            except AnsibleConnectionFailure:
                if left_s <= _RETRY_S:
                    raise
                # It may be booting.
                time.sleep(_RETRY_S)
                with contextlib.suppress(AnsibleConnectionFailure, OSError):
                    self._connection.reset()
        if not done.get("failed"):
            view = done.pop("view")
            folder.keep_answer(
                self._host, Answer(done["boot_id"], done.get("code"), view, done["problem"], done["runs"])
            )
        return done

    def _module(self, **more: Any) -> Mapping[str, Any]:
        done: Mapping[str, Any] = self._execute_module(module_args={**self._given, **more}, task_vars=self._vars)
        return done


def _hindrance(done: Mapping[str, Any]) -> str:
    """Why a host could not do its part, "" where it could: also where the module itself failed on it."""
    return str(done.get("problem") or (done.get("msg") if done.get("failed") else "") or "")


def _refused(folder: RoundFolder, host: str, problem: str) -> Answer:
    """That a host could not begin."""
    presence = folder.presence(host)
    return Answer(presence.boot_id if presence is not None else "", 2, "", problem)
