"""Publishing: the node writes its newest evidence on its own Node object. Standard library only."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
from gpu_burnin.node.evidence import annotation_of
from gpu_burnin.node.store import NoResult, Store
from gpu_burnin.settings.config import Config
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.files import parse_json

DEFAULT_DEADLINE_S = 120.0
_POLL_S = 1.0
_REQUEST_TIMEOUT_S = 10.0
# Refusals that waiting does not cure: bad request, not authorised, forbidden.
_FINAL = frozenset({400, 401, 403, 405, 415, 422})


class PublishError(GpuBurninError):
    """The annotation could not be written; systemd starts the unit again, hence exit code 1, not 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_FAIL)


class _NotYet(Exception):
    """Something that may come right by itself: no certificate yet, no Node yet, API server not reachable."""


def _connect(config: Config) -> http.client.HTTPSConnection:
    publish = config.publish
    parts = urlsplit(publish.server)
    if parts.scheme != "https" or not parts.hostname:
        raise GpuBurninError(
            f"{config.node_name}: publish.server is {publish.server!r}; "
            "set it to https://ADDRESS:PORT in the configuration"
        )
    if not publish.ca.exists():
        raise GpuBurninError(f"{config.node_name}: publish.ca {publish.ca} does not exist; correct the configuration")
    if not publish.client_cert.exists():
        raise _NotYet(
            f"{publish.client_cert} does not exist; kubelet makes it once its certificate request is approved"
        )
    try:
        context = ssl.create_default_context(cafile=str(publish.ca))
        context.load_cert_chain(str(publish.client_cert))
    except (OSError, ssl.SSLError) as error:
        raise _NotYet(f"cannot load {publish.ca} or {publish.client_cert} ({error})") from error
    return http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=_REQUEST_TIMEOUT_S, context=context)


def _request(config: Config, method: str, body: bytes | None = None) -> dict[str, object]:
    """One request on the own Node; raises _NotYet for what may pass and PublishError for what will not."""
    node = config.node_name
    connection = _connect(config)
    try:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        connection.request(method, f"/api/v1/nodes/{quote(node, safe='')}", body, headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise _NotYet(f"{config.publish.server} does not answer ({error or type(error).__name__})") from error
    finally:
        connection.close()
    if response.status == 200:
        try:
            document = parse_json(content)
        except ValueError as error:
            raise _NotYet(f"{config.publish.server} did not answer in JSON ({error})") from error
        if isinstance(document, dict):
            return document
    if response.status in _FINAL:
        raise PublishError(f"{node}: {config.publish.server} refused {method} of the own Node: {_message(content)}")
    raise _NotYet(f"{config.publish.server} answered {response.status} for Node {node}: {_message(content)}")


def _message(content: bytes) -> str:
    """The API server's own sentence out of a Status object."""
    try:
        return str(parse_json(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content[:120].decode("utf-8", "replace") or "no message"


def _annotations(node: dict[str, object]) -> dict[str, object]:
    metadata = node.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, dict) else None
    return found if isinstance(found, dict) else {}


def _publish_once(config: Config, key: str, value: str | None) -> bool:
    if _annotations(_request(config, "GET")).get(key) == value:
        return False
    _request(config, "PATCH", canonical_json({"metadata": {"annotations": {key: value}}}))
    return True


def publish(
    config: Config,
    deadline_s: float = DEFAULT_DEADLINE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Write the evidence of the newest run to the own Node; True when it changed, False when it was there already.

    Where that run has left none, the evidence of an older one is withdrawn: it no longer counts for the node.

    Waits up to `deadline_s` seconds for the kubelet's certificate, the API server and the Node object.
    Raises GpuBurninError (one sentence) when there is no evidence, the configuration is wrong, the API server
    refuses, or the deadline passes.
    """
    key = f"{config.publish.domain}/evidence"
    end = clock() + deadline_s
    try:
        value, missing = annotation_of(Store(config.state_dir).result().path), None
    except NoResult as error:
        value, missing = None, error
        if not error.run:
            raise PublishError(f"{config.node_name}: nothing to publish: {error}; run gpu-burnin run") from error
    while True:
        try:
            changed = _publish_once(config, key, value)
            break
        except _NotYet as error:
            if clock() >= end:
                raise PublishError(f"{config.node_name}: gave up after {deadline_s:.0f} s: {error}") from error
        sleep(_POLL_S)
    if missing is not None:
        withdrawn = ", and the evidence published before is withdrawn" if changed else ""
        raise PublishError(f"{config.node_name}: nothing to publish: {missing}{withdrawn}; run gpu-burnin run")
    return changed
