"""Action side of muster.fleet.clock_skew: the controller's clock around the call, and what may be between them."""

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.preflight.rules import clock_skew_s
from ansible_collections.muster.fleet.plugins.modules.clock_skew import ARGUMENT_SPEC


class ActionModule(ActionBase):
    """Runs the module once, between two looks at the controller's clock."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result with `ahead_s`. Fails where that is too much."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        before_s = time.time()
        result.update(self._execute_module(module_args=arguments, task_vars=task_vars))
        if "clock_s" not in result:
            return result
        clocks = {"clock_s": result["clock_s"], "controller_before_s": before_s, "controller_after_s": time.time()}
        ahead_s = clock_skew_s(clocks)
        if abs(ahead_s) > arguments["max_skew_s"]:
            way = "ahead of" if ahead_s > 0 else "behind"
            raise AnsibleActionFail(
                f"{(task_vars or {}).get('inventory_hostname')}: its clock is {abs(ahead_s):.2f} s {way} the "
                f"controller's, and {arguments['max_skew_s']:g} s are allowed; "
                "set the clock of whichever is wrong, then run this again. Nothing was done"
            )
        return {**result, "ahead_s": round(ahead_s, 3)}
