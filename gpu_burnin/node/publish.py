"""Publishing: the node writes its newest evidence on its own Node object. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
from gpu_burnin.node.api import NodeApi, NotYet, annotations_of
from gpu_burnin.node.signing import annotation_of
from gpu_burnin.node.store import NoResult, Store
from gpu_burnin.settings.config import Config

DEFAULT_DEADLINE_S = 120.0
_POLL_S = 1.0


class PublishError(GpuBurninError):
    """The annotation could not be written; systemd starts the unit again, hence exit code 1, not 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_FAIL)


def _publish_once(api: NodeApi, key: str, value: str | None) -> bool:
    if annotations_of(api.get()).get(key) == value:
        return False
    api.annotate({key: value})
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
    key = config.publish.names.evidence
    end, api = clock() + deadline_s, NodeApi(config)
    try:
        value, missing = annotation_of(Store(config.state_dir).result().path), None
    except NoResult as error:
        value, missing = None, error
        if not error.run:
            raise PublishError(f"{config.node_name}: nothing to publish: {error}; run gpu-burnin run") from error
    while True:
        try:
            changed = _publish_once(api, key, value)
            break
        except NotYet as error:
            if clock() >= end:
                raise PublishError(f"{config.node_name}: gave up after {deadline_s:.0f} s: {error}") from error
        sleep(_POLL_S)
    if missing is not None:
        withdrawn = ", and the evidence published before is withdrawn" if changed else ""
        raise PublishError(f"{config.node_name}: nothing to publish: {missing}{withdrawn}; run gpu-burnin run")
    return changed
