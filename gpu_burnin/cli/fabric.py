"""`gpu-burnin fabric`: this node's part in tests between nodes, which `muster fabric run` calls."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gpu_burnin.cli.options import host_config, host_options
from gpu_burnin.errors import EXIT_FAIL, EXIT_PASS
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.api.fabric_documents import RendezvousError

_FILE = click.Path(path_type=Path, dir_okay=False)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON and nothing else.")


@click.group()
def fabric() -> None:
    """Meet other nodes for a test of what is between them."""


@fabric.command(short_help="As rank 0, write a signed offer to meet.")
@click.option("--test", "test_path", type=_FILE, required=True, metavar="FILE", help="The test, from the controller.")
@click.option("--output", type=_FILE, required=True, metavar="OFFER", help="The offer to write, mode 0600: a secret.")
@_json_option
@host_options
def offer(test_path: Path, output: Path, as_json: bool, config_path: Path | None, state_dir: Path | None) -> None:
    """Write an offer to meet for the test of FILE, signed with this node's SSH host key.

    Each offer is good once, until it expires. Exit codes: 0 written, 2 FILE is of another node or cannot be used, 3
    this node was rebooted since FILE was made.
    """
    from gpu_burnin.api.fabric_documents import RendezvousError
    from gpu_burnin.node.fabric.offer import offer as make_offer
    from gpu_burnin.node.fabric.own import own_identity

    own = own_identity(host_config(config_path, state_dir))
    try:
        made = make_offer(test_path, output, own, datetime.now(UTC))
    except RendezvousError as error:
        _refuse(error, as_json=as_json)
    document = {"run": made.run, "test": made.test, "port": made.port, "expires_at": made.expires_at}
    text = f"{own.name}: test {made.test}: {len(made.members)} members may join until {made.expires_at}"
    _print(document, text, as_json=as_json)


@fabric.command(short_help="Join an offer once, and write what was found, signed.")
@click.option("--offer", "offer_path", type=_FILE, required=True, metavar="OFFER", help="The offer of rank 0.")
@click.option(
    "--keys",
    "keys_path",
    type=_FILE,
    required=True,
    metavar="KEYS",
    help="The pinned host keys of all members: NAME ssh-ed25519 KEY, one a line.",
)
@click.option("--output", type=_FILE, required=True, metavar="VIEW", help="The signed view to write.")
@_json_option
@host_options
def join(
    offer_path: Path, keys_path: Path, output: Path, as_json: bool, config_path: Path | None, state_dir: Path | None
) -> None:
    """Verify OFFER, test with its other members, and write to VIEW what this node has found, signed by its host key.

    OFFER has to be signed by rank 0's key of KEYS, for this node in this boot, fresh, and not joined before. Exit
    codes: 0 nothing wrong was found, 1 a fault was found, 2 a file cannot be used, 3 the offer was refused, and nothing
    was sent.
    """
    from gpu_burnin.api.fabric_documents import RendezvousError
    from gpu_burnin.checks.fabric import run
    from gpu_burnin.node.fabric.join import join as join_offer
    from gpu_burnin.node.fabric.own import own_identity

    own = own_identity(host_config(config_path, state_dir))
    try:
        view = join_offer(offer_path, keys_path, output, own, datetime.now(UTC), run)
    except RendezvousError as error:
        _refuse(error, as_json=as_json)
    document = {"run": view.run, "test": view.test, "member": view.member, "outcome": view.outcome.value}
    text = f"{view.member}: test {view.test}: {view.outcome}{f': {view.detail}' if view.detail else ''}"
    _print({**document, "detail": view.detail, "fault_found": view.fault_found}, text, as_json=as_json)
    sys.exit(EXIT_FAIL if view.fault_found else EXIT_PASS)


def _refuse(error: RendezvousError, *, as_json: bool) -> NoReturn:
    if as_json:
        _print({"refused": error.why.value, "message": str(error)}, "", as_json=True)
    raise error


def _print(document: object, text: str, *, as_json: bool) -> None:
    with readers_may_leave("the outcome"):
        click.echo(json.dumps(document, ensure_ascii=False) if as_json else text)
