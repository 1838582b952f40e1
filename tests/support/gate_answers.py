"""What an API server answers to the probe of its gate."""

from __future__ import annotations

from typing import Any

from gpu_burnin.admission.client import ApiError

HASH, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
_INFO = "apiserver_manifest_admission_config_controller_last_config_info"
REFUSED = "ValidatingAdmissionPolicy 'muster-node-gate.static.k8s.io' with binding denied request"


def line(plugin: str, value: str) -> str:
    """Of its metrics: the policies that a plugin has loaded."""
    return f'{_INFO}{{apiserver_id_hash="sha256:{"c" * 64}",hash="{value}",plugin="{plugin}"}} 1\n'


class Api:
    """An API server that answers the creation so."""

    server = "https://api-1:6443"

    def __init__(self, answer: object, metrics: str | Exception) -> None:
        self._answer, self._metrics = answer, metrics

    def apply(self, path: str, document: object, what: str) -> Any:
        assert "dryRun=All" in path
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def text(self, path: str, what: str) -> str:
        if isinstance(self._metrics, Exception):
            raise self._metrics
        return self._metrics

    def find(self, path: str, what: str) -> Any:
        raise ApiError("leases is forbidden by RBAC", 403)
