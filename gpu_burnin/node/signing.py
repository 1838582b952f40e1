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
    """What keeps this host from signing, each with its remedy; none where it can."""
    found = []
    if not host.machine_id:
        found.append("/etc/machine-id holds no machine id (make one with `systemd-machine-id-setup`)")
    if not host.boot_id:
        found.append("/proc gives no boot id (mount /proc)")
    try:
        evidence.own_public_key(config.host_key)
    except GpuBurninError as error:
        found.append(str(error).removeprefix(f"{socket.gethostname()}: "))
    return tuple(found)


def refuse_unsigned(config: Config, found: tuple[str, ...], *, simulated: bool) -> None:
    """Raise GpuBurninError (exit 2) for obstacles where the configuration asks for evidence of such a run.

    Of a simulated run it does so in a lab alone (allow_simulated): elsewhere no gate opens by one, signed or not.
    """
    if found and config.require_evidence and (config.allow_simulated or not simulated):
        raise GpuBurninError(
            f"{socket.gethostname()}: this run could not be signed, and require_evidence is set: {'; '.join(found)}; "
            "to look without consequences, give --state-dir another directory"
        )


def notice(found: tuple[str, ...]) -> Notice:
    """The warning that a run is not signed."""
    message = f"this run is not signed and opens no gate: {'; '.join(found)}"
    return Notice(CODE, "run", message, None, {"obstacles": list(found)})
