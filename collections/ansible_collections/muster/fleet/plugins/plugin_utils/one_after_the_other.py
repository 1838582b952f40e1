"""What a module does with `throttle: 1` on host after host ends with the first host that fails.

Ansible's any_errors_fatal ends a play only when a task is over on all of its hosts, and a throttled task goes on to the
next host in between: three members of etcd would be restarted with the file that the first did not start with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.plugins.action.normal import ActionModule as Normal


class ActionModule(Normal):  # type: ignore[misc]
    """Runs the module of its own name, and with `throttle: 1` on no host after one on which it failed."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The module's result. Fails, and touches nothing, where the task has failed on another host of this run."""
        if self._task.throttle != 1:
            return dict(super().run(tmp, task_vars))
        here = str((task_vars or {}).get("inventory_hostname", ""))
        # The folder of this run of Ansible, which its workers share and which goes with it.
        failed_on = Path(constants.DEFAULT_LOCAL_TMP) / f"muster-failed-{self._task._uuid}"
        if failed_on.exists() and (before := failed_on.read_text(encoding="utf-8")) != here:
            raise AnsibleActionFail(
                f"{here}: nothing was done, because this has failed on {before} and goes from host to host; mend "
                f"{before}, then run the playbook again"
            )
        try:
            result = dict(super().run(tmp, task_vars))
        except AnsibleError:
            failed_on.write_text(here, encoding="utf-8")
            raise
        if result.get("failed"):
            failed_on.write_text(here, encoding="utf-8")
        return result
