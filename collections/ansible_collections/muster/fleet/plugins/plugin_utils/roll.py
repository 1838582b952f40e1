"""A change of a running fleet, phase by phase: the decisions of gpu_burnin.fleet, made on the controller for a host.

The frame is gpu_burnin.fleet.roll's. What a change's phases have in common is here: they read the host where they need
to, tell people in lines what they decided, and fail in one sentence.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import os_error

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.repair.cluster import Cluster


class RollFailed(GpuBurninError):
    """Why a phase ends the host's way, with what else its task returns."""

    def __init__(self, message: str, **result: Any) -> None:
        super().__init__(message)
        self.result = result


class RollAction(ActionBase):
    """One phase of a change. It runs on the controller, whatever host it is about, and needs no delegation."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    ARGUMENTS: ClassVar[Mapping[str, Any]]
    REQUIRED_IF: ClassVar[Sequence[Sequence[Any]]] = ()

    def phase(self, name: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the phase does; its result. Raises GpuBurninError."""
        raise NotImplementedError

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """The phase's result, or its error."""
        result: dict[str, Any] = super().run(tmp, task_vars or {})
        self.task_vars = task_vars or {}
        _, given = self.validate_argument_spec(argument_spec=dict(self.ARGUMENTS), required_if=[*self.REQUIRED_IF])
        try:
            result.update(self.phase(given["phase"], given))
        except GpuBurninError as error:
            result.update(failed=True, msg=str(error), **(error.result if isinstance(error, RollFailed) else {}))
        except OSError as error:
            result.update(failed=True, msg=f"the controller: {os_error(error)}")
        return result

    def cluster(self, given: Mapping[str, Any]) -> Cluster:
        """The cluster as the user of the kubeconfig sees it. Raises GpuBurninError."""
        return Cluster.of(Path(given["kubeconfig"]).expanduser(), given["domain"])

    def show(self, lines: Iterable[str]) -> None:
        """What people are to read, with the task's name: its banner may come later, with its result."""
        lines = list(lines)
        if lines:
            self._display.display("\n".join([f"{self._task.name}:", *(f"  {line}" for line in lines)]))

    def look(self, given: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What the host says of itself, None where it does not answer. Raises GpuBurninError where gpu-burnin does not.

        Read in check mode too: nothing is changed by it.
        """
        node = given["node"]
        try:
            # With an input SSH asks for no terminal, which would write what is told on stderr into the JSON.
            answer = self._low_level_execute_command(f"{shlex.quote(given['program'])} repair look", in_data=b"\n")
        except AnsibleConnectionFailure:
            return None
        if answer["rc"] != 0:
            why = " ".join(str(answer["stderr"] or answer["stdout"]).split())
            raise GpuBurninError(f"{node}: `gpu-burnin repair look` does not answer on it ({why}); run site.yml for it")
        try:
            said: Mapping[str, Any] = json.loads(answer["stdout"])
        except ValueError as error:
            raise GpuBurninError(
                f"{node}: `gpu-burnin repair look` did not answer in JSON ({error}); run site.yml, which installs this "
                "version"
            ) from error
        return said


def now() -> datetime:
    """The controller's time."""
    return datetime.now(UTC)
