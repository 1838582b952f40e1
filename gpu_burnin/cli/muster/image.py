"""`muster image`: machines that boot from the fleet's image, and enrol themselves."""

from __future__ import annotations

import getpass
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from gpu_burnin.api.names import DEFAULT_DOMAIN, Names
from gpu_burnin.cli.muster.cluster_options import connect
from gpu_burnin.cli.options import duration
from gpu_burnin.errors import EXIT_FAIL, EXIT_PASS, GpuBurninError
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.streams import readers_may_leave

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PORT = click.option(
    "--port", default=22, show_default=True, type=click.IntRange(1, 65535), help="The machines' SSH port."
)


def _fleet_options(function: _Function) -> _Function:
    """--state and --domain: these commands act as the provisioner, whose certificate is in the state directory."""
    options = (
        click.option(
            "--state",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            envvar="MUSTER_STATE",
            required=True,
            show_envvar=True,
            help="The inventory's fleet_state_dir.",
        ),
        click.option(
            "--domain", default=DEFAULT_DOMAIN, show_default=True, help="Domain of the fleet's labels and taints."
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def image() -> None:
    """Let machines in that boot from the fleet's image and have no SSH from the controller.

    Each is given a token of its own, says with it once who it is, and waits for a decision.
    """


@image.command(short_help="Make tokens, and the files that hand them over to machines.")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    metavar="DIR",
    help="Where the files for each machine are written: DIR/NODE/user-data, meta-data and kernel-argument. Whoever "
    "reads them can enrol in the machine's place.",
)
@click.option(
    "--lifetime",
    "lifetime_s",
    type=duration,
    default="4h",
    show_default=True,
    metavar="DURATION",
    help="How long the token is good for, 24h at the most. The machine has to boot and be approved within it.",
)
@click.option("--again", is_flag=True, help="Also for a node as which a machine has enrolled already.")
@_fleet_options
def token(nodes: tuple[str, ...], output: Path, lifetime_s: float, again: bool, state: Path, domain: str) -> None:
    """Make a token for the machine of each NODE of the ledger, and the files that hand it over.

    An older token of the node ends. Exit code 1 when a node could not be given one.
    """
    from gpu_burnin.fleet.image.text import handed_files
    from gpu_burnin.fleet.image.tokens import MOST_LIFETIME_S, mint
    from gpu_burnin.system.files import write_atomic

    if not 0 < lifetime_s <= MOST_LIFETIME_S:
        raise click.BadParameter("a token is good for 24h at the most", param_hint="--lifetime")
    api, names = connect(_kubeconfig(state)), Names(domain)

    def one(node: str) -> str:
        folder = output / node
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, content in handed_files(
                mint(api, names, node, lifetime_s, datetime.now(UTC), again=again)
            ).items():
                write_atomic(folder / name, content.encode())
        except OSError as error:
            raise GpuBurninError(
                f"{node}: cannot write {folder} ({error.strerror}); give --output another place"
            ) from error
        return f"{node}: {folder}"

    _each(nodes, one)


@image.command(short_help="Say which machines have a token, and which wait.")
@_PORT
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON and nothing else.")
@_fleet_options
def enrolments(port: int, as_json: bool, state: Path, domain: str) -> None:
    """Say which machines have a token, which wait for a decision, and what speaks against them."""
    from gpu_burnin.fleet.image.enrolments import read
    from gpu_burnin.fleet.image.text import rows, table
    from gpu_burnin.system.codec import to_json

    found = rows(read(connect(_kubeconfig(state)), Names(domain), state / "known_hosts"), port)
    with readers_may_leave("the enrolments", "muster"):
        click.echo(json.dumps([to_json(row) for row in found], indent=1) if as_json else table(found))


@image.command(short_help="Let machines in, by the fingerprints of their consoles.")
@click.argument("nodes", nargs=-1, metavar="NODE[=FINGERPRINT]...")
@click.option("--all", "everyone", is_flag=True, help="All that wait. Only with --answers.")
@click.option(
    "--answers",
    is_flag=True,
    help="Let a machine in without a fingerprint when the SSH key that answers at the node's address is the one that "
    "it enrolled with: who is at the address is the node, as with fleet_trust_new_hosts.",
)
@click.option("--reason", default="", metavar="TEXT", help="Why; it stands in the enrolment.")
@_PORT
@_fleet_options
def approve(
    nodes: tuple[str, ...], everyone: bool, answers: bool, reason: str, port: int, state: Path, domain: str
) -> None:
    """Let the machine in that enrolled as NODE, when its host key has this FINGERPRINT (SHA256:..., from its console).

    Its key is pinned in known_hosts and in the ledger, and it gets kubelet's certificate. Exit code 1 when one was not
    let in.
    """
    from gpu_burnin.api.enrolment import Claim, Decision
    from gpu_burnin.api.record import NodeAdmission
    from gpu_burnin.fleet.image import enrolments as course

    wanted = {node: mark for node, _, mark in (text.partition("=") for text in nodes)}
    if everyone and (nodes or not answers):
        raise click.UsageError("--all goes with --answers and without nodes: a fingerprint is one machine's")
    if not everyone and not nodes:
        raise click.UsageError("name the nodes, or give --all --answers")
    if bare := [node for node, mark in wanted.items() if not mark and not answers]:
        raise click.UsageError(
            f"{bare[0]}: give the fingerprint that its console shows ({bare[0]}=SHA256:...), or --answers"
        )
    api, names = connect(_kubeconfig(state)), Names(domain)
    files = course.State(state / "known_hosts", state / "admission")
    known = course.read(api, names, files.known_hosts)
    if everyone:
        waiting = (one for one in known.enrolments.values() if one.spec.claim and one.spec.decision is None)
        wanted = {one.name: "" for one in waiting}
    asked = course.answering(known, [node for node, mark in wanted.items() if not mark], port)

    def one(node: str) -> str:
        mark = wanted[node]

        def compare(_: NodeAdmission, claim: Claim) -> str:
            if not mark:
                return asked[node]
            if mark != claim.fingerprint:
                return f"{node}: the machine enrolled with the host key {claim.fingerprint}, not with {mark}"
            return ""

        why = reason or ("its fingerprint was compared" if mark else "its key answers at the address of the node")
        decision = Decision(True, getpass.getuser(), why, rfc3339(datetime.now(UTC)))
        found = course.approve(api, names, node, known, files, decision, compare, port)
        return f"{node}: let in as {found.address}, pods {found.pod_range}"

    _each(tuple(wanted), one)


@image.command(short_help="Refuse machines: their tokens let nobody in.")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@click.option("--reason", required=True, metavar="TEXT", help="Why; the machine shows it on its console.")
@_fleet_options
def refuse(nodes: tuple[str, ...], reason: str, state: Path, domain: str) -> None:
    """Refuse the machine that enrolled as NODE: it reads why with its token, which lets nobody in any more.

    A token that no machine has come with is taken back; the other ends by itself, or when NODE is given another one.
    A machine that was let in before keeps its certificate: see `muster node quarantine`.
    """
    from gpu_burnin.api.enrolment import Decision
    from gpu_burnin.fleet.image import enrolments as course

    if not reason.strip():
        raise click.BadParameter("it is empty; say why in a few words: people will read it", param_hint="--reason")
    api, names = connect(_kubeconfig(state)), Names(domain)

    def one(node: str) -> str:
        decision = Decision(False, getpass.getuser(), reason.strip(), rfc3339(datetime.now(UTC)))
        course.refuse(api, names, node, decision)
        return f"{node}: refused"

    _each(nodes, one)


def _kubeconfig(state: Path) -> Path:
    """The provisioner's. Raises GpuBurninError where there is none."""
    path = state / "kubeconfig/provisioner.kubeconfig"
    if not path.is_file():
        raise GpuBurninError(
            f"{path} does not exist; give the fleet_state_dir of a fleet that site.yml has built as --state"
        )
    return path


def _each(nodes: tuple[str, ...], act: Callable[[str], str]) -> None:
    """One that fails keeps no other from it."""
    failed = False
    for node in dict.fromkeys(nodes):
        try:
            click.echo(act(node))
        except GpuBurninError as error:
            click.echo(f"muster: {error}", err=True)
            failed = True
    sys.exit(EXIT_FAIL if failed else EXIT_PASS)
