"""Action muster.fleet.encryption_rewrite: encrypted objects written again as they are, from the controller."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.modules.encryption_rewrite import ARGUMENT_SPEC
from ansible_collections.muster.fleet.plugins.plugin_utils.progress import Progress

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.rewrite import count, rewrite
from gpu_burnin.errors import GpuBurninError


class ActionModule(ActionBase):
    """Runs on the controller alone: only there long work can say how far it is."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Writes all of each kind; fails with the API server's words."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        _, arguments = self.validate_argument_spec(argument_spec=ARGUMENT_SPEC)
        begin_s = time.monotonic()
        try:
            api = KubeApi(Path(arguments["kubeconfig"]).expanduser())
            found = {resource: count(api, resource) for resource in arguments["resources"]}
            progress = Progress("wrote", sum(found.values()), self._display.display, of="encrypted objects")
            kinds = [] if self._task.check_mode else arguments["resources"]
            done = {resource: rewrite(api, resource, progress.advance) for resource in kinds}
        except GpuBurninError as error:
            raise AnsibleActionFail(str(error)) from error
        written = {resource: one.written for resource, one in done.items()}
        result.update(
            changed=any((written or found).values()),
            found=found,
            written=written,
            left={resource: one.left for resource, one in done.items()},
            elapsed_s=round(time.monotonic() - begin_s, 1),
        )
        return result
