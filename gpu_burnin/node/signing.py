"""Whether a run here can leave signed evidence, and what keeps it from that."""

from __future__ import annotations

import socket

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node import evidence
from gpu_burnin.settings.config import Config
from gpu_burnin.system.host import Host
from gpu_burnin.types import Notice

CODE = "NO_EVIDENCE"
NO_HISTORY = "XIDs since boot cannot be read from a kernel log"


def obstacles(config: Config, host: Host) -> tuple[str, ...]:
    """What keeps this host from signing, each with its remedy; none where it can.

    Raises GpuBurninError (exit 2) for any of it where the configuration asks for evidence.
    """
    found = []
    if not host.machine_id:
        found.append("/etc/machine-id holds no machine id (make one with `systemd-machine-id-setup`)")
    if not host.boot_id:
        found.append("/proc gives no boot id (mount /proc)")
    try:
        evidence.own_public_key(config.host_key)
    except GpuBurninError as error:
        found.append(str(error).removeprefix(f"{socket.gethostname()}: "))
    if found and config.require_evidence:
        raise GpuBurninError(
            f"{socket.gethostname()}: this run could not be signed, and require_evidence is set: {'; '.join(found)}"
        )
    return tuple(found)


def notice(found: tuple[str, ...]) -> Notice:
    """The warning that a run is not signed."""
    message = f"this run is not signed and opens no gate: {'; '.join(found)}"
    return Notice(CODE, "run", message, None, {"obstacles": list(found)})
