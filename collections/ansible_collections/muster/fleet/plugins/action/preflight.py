"""Action side of muster.fleet.preflight: the controller's clock around the call."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """Runs the module once, between two looks at the controller's clock."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result, with `controller_before_s` and `controller_after_s` among the facts."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        before_s = time.time()
        done = self._execute_module(
            module_name="muster.fleet.preflight", module_args=self._task.args, task_vars=task_vars
        )
        if isinstance(done.get("facts"), dict):
            done["facts"] |= {"controller_before_s": before_s, "controller_after_s": time.time()}
        result.update(done)
        return result
