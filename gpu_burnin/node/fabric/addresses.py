"""Whether this host has the addresses that a test has for it: without them it can neither offer nor join."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterable
from pathlib import Path

from gpu_burnin.api.rendezvous import Nic
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.files import read_text

NET = Path("/sys/class/net")
_MOST_NAMES = 4


class AddressError(GpuBurninError):
    """An address of the test is not on this host."""


def check_addresses(name: str, nics: Iterable[Nic], net: Path = NET) -> None:
    """Raise AddressError for the first that no interface of this host, `name` to people, has."""
    for nic in nics:
        if not _is_here(nic.address):
            down = without_link(net)
            more = f"; without a link now: {', '.join(down[:_MOST_NAMES])}" if down else ""
            raise AddressError(
                f"{name}: no interface has the address {nic.address} (rail {nic.rail}{more}); bring up the interface "
                "that should have it, or correct fleet_fabric_nics"
            )


def without_link(net: Path = NET) -> list[str]:
    """The interfaces of hardware that the kernel calls down: one of these is likely to lack its address."""
    return sorted(one.name for one in net.glob("*") if (one / "device").exists() and _state(one).endswith("down"))


def _state(interface: Path) -> str:
    with contextlib.suppress(OSError):
        return read_text(interface / "operstate").strip()
    return ""


def _is_here(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        try:
            listener.bind((address, 0))
        except OSError as error:
            # Without IPv6 on the host there is no address of it either.
            return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True
