"""The Kubernetes API as the admitter and the CSR approver use it: raw JSON, explicit patches, bounded retries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from gpu_burnin.admission.node import Node, Patch
from gpu_burnin.errors import GpuBurninError

JSON_PATCH = "application/json-patch+json"
PAGE = 500
CONNECTIONS = 16
REQUEST_TIMEOUT_S = (5.0, 30.0)
# 429 and 503 carry Retry-After (API priority and fairness); a request so answered was not carried out.
_RETRIES = 5


class ApiError(GpuBurninError):
    """The API server refused, or does not answer; the sentence holds its own words."""


class Conflict(Exception):
    """The object has changed since it was read: read it again and decide again."""


class KubeApi:
    """Nodes and CertificateSigningRequests as plain JSON, as the user that a kubeconfig names."""

    def __init__(self, kubeconfig: Path) -> None:
        """Raises ApiError when the kubeconfig cannot be used."""
        configuration = client.Configuration()
        configuration.connection_pool_maxsize = CONNECTIONS
        configuration.retries = urllib3.Retry(
            total=_RETRIES,
            connect=_RETRIES,
            read=0,
            status_forcelist=(429, 503),
            allowed_methods=None,
            backoff_factor=0.2,
            raise_on_status=False,
        )
        try:
            load: Any = config.new_client_from_config
            api_client = load(str(kubeconfig), persist_config=False, client_configuration=configuration)
        except (config.ConfigException, OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
            raise ApiError(
                f"cannot use the kubeconfig {kubeconfig} ({error}); run site.yml, which writes it, or correct its path"
            ) from error
        self.server = str(configuration.host)
        self._core: Any = client.CoreV1Api(api_client)
        self._certificates: Any = client.CertificatesV1Api(api_client)

    def nodes(self) -> dict[str, Node]:
        """All nodes by name."""
        return {node["metadata"]["name"]: node for node in self._list(self._core.list_node, "list the nodes")}

    def node(self, name: str) -> Node | None:
        """One node, or None when there is none of that name."""
        try:
            return self._call(self._core.read_node, f"read node {name}", name)
        except _NotFound:
            return None

    def patch_node(self, name: str, patch: Patch, *, status: bool = False) -> Node:
        """Apply a JSON Patch to a node or to its status; raises Conflict when its `test` does not hold."""
        method = self._core.patch_node_status if status else self._core.patch_node
        what = f"patch {'the status of ' if status else ''}node {name}"
        return self._call(method, what, name, patch, _content_type=JSON_PATCH)

    def csrs(self) -> list[Mapping[str, Any]]:
        """All certificate signing requests, issued ones included."""
        return list(self._list(self._certificates.list_certificate_signing_request, "list the CSRs"))

    def put_csr_approval(self, csr: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the conditions of a CSR; raises Conflict when it has changed since it was read."""
        name = csr["metadata"]["name"]
        method = self._certificates.replace_certificate_signing_request_approval
        return self._call(method, f"approve CSR {name}", name, csr)

    def _list(self, method: Any, what: str) -> Iterator[Mapping[str, Any]]:
        options: dict[str, Any] = {"limit": PAGE}
        while True:
            page = self._call(method, what, **options)
            yield from page.get("items") or []
            token = page.get("metadata", {}).get("continue")
            if not token:
                return
            options = {"limit": PAGE, "_continue": token}

    def _call(self, method: Any, what: str, *arguments: Any, **options: Any) -> Mapping[str, Any]:
        try:
            response = method(*arguments, _preload_content=False, _request_timeout=REQUEST_TIMEOUT_S, **options)
            document: Mapping[str, Any] = json.loads(response.data)
        except ApiException as error:
            message = _message(error)
            if error.status == 404:
                raise _NotFound(f"{self.server}: cannot {what}: {message}") from error
            # The API server answers a `test` that does not hold with 422, a lost race with 409.
            if error.status in (409, 422):
                raise Conflict(f"{self.server}: cannot {what}: {message}") from error
            raise ApiError(f"{self.server}: cannot {what}: {message}; {_fix(error.status)}") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(
                f"{self.server}: cannot {what}: {error}; check that the API servers and their balancer answer"
            ) from error
        return document


class _NotFound(ApiError):
    pass


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.status} {error.reason}"


def _fix(status: int) -> str:
    if status in (401, 403):
        return "check the certificate in the kubeconfig and the RBAC objects of its user (site.yml writes both)"
    return "look at the API server's log"
