"""Rank 0 of a test makes the rendezvous: a fresh id, a port that is free here, signed with the SSH host key."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from gpu_burnin.api import rendezvous
from gpu_burnin.api.fabric_documents import RendezvousError, Signed, Why, reason
from gpu_burnin.api.rendezvous import FIRST_PORT, LAST_PORT, SECRET_BYTES, FabricTest, Rendezvous
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.fabric.addresses import check_addresses
from gpu_burnin.node.fabric.own import Own, read_given, write_output
from gpu_burnin.node.signing import sign
from gpu_burnin.system.files import MOST_BYTES
from gpu_burnin.system.own_name import host_name

# Of ten thousand ports that are taken by chance, so many in a row are not.
_MOST_TRIES = 50


def offer(test_path: Path, output: Path, own: Own, now: datetime) -> Rendezvous:
    """Write the offer of the controller's test. Raises GpuBurninError; RendezvousError after a reboot."""
    try:
        test = rendezvous.parse_test(read_given(test_path, "the test"))
    except ValueError as error:
        raise GpuBurninError(
            f"{test_path} is no test ({reason(error)}); take the file as `muster fabric run` writes it"
        ) from error
    made, document = offer_of(test, own, now)
    write_output(output, document)
    return made


def offer_of(test: FabricTest, own: Own, now: datetime) -> tuple[Rendezvous, bytes]:
    """The rendezvous for a test, and the offer as it is written. Raises as offer(), AddressError too."""
    _check_first(test, own)
    check_addresses(own.name, test.members[0].nics)
    port = free_port([nic.address for nic in test.members[0].nics])
    made = rendezvous.rendezvous_of(test, now, port, secrets.token_bytes(SECRET_BYTES))
    statement = made.canonical()
    document = Signed(statement, sign(statement, own.host_key, rendezvous.NAMESPACE)).document()
    if len(document) > MOST_BYTES:
        raise GpuBurninError(
            f"{own.name}: the offer of test {test.test} is larger than {MOST_BYTES} bytes; test fewer members at once"
        )
    return made, document


def _check_first(test: FabricTest, own: Own) -> None:
    first = test.members[0]
    if first.name != own.name:
        raise GpuBurninError(
            f"{own.name}: rank 0 of test {test.test} is {first.name}; run this there, or set node_name in the "
            "configuration"
        )
    if first.boot_id != own.boot_id:
        raise RendezvousError(
            Why.BOOT,
            f"{own.name}: it was boot {first.boot_id} when test {test.test} was made, and now it is {own.boot_id}; "
            "test again",
        )


def free_port(addresses: Sequence[str], bindable: Callable[[str, int], bool] | None = None) -> int:
    """A port on which nothing listens at any of these addresses of this host. Raises GpuBurninError."""
    can_bind = bindable or _bindable
    for port in secrets.SystemRandom().sample(range(FIRST_PORT, LAST_PORT + 1), _MOST_TRIES):
        if all(can_bind(address, port) for address in addresses):
            return port
    raise GpuBurninError(
        f"{host_name()}: found no free port from {FIRST_PORT} to {LAST_PORT}; see with `ss -ltn` what listens"
    )


def _bindable(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        try:
            listener.bind((address, port))
        except OSError:
            return False
    return True
