"""`muster attach approve`: believe the keys with which the agents of nodes sign."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli.muster.cluster_options import connect


@click.command("approve", short_help="Believe the key with which a node's agent signs.")
@click.argument("names", nargs=-1, metavar="NODE[=FINGERPRINT]...")
@click.option("--all", "everybody", is_flag=True, help="All that wait: whoever comes first with a name is that node.")
@click.option(
    "--expect",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Only machines whose key is in this file, of the form of known_hosts by the names of Nodes: of all that wait, "
    "and of those believed on first use of which it has a key, unless nodes are named. A line `NODE machine-id ID` "
    "compares the machine id.",
)
@click.option("--reason", default="approved by hand", show_default=True, help="Why, for the ledger.")
@click.option(
    "--level", show_default="that of muster attach", help="The least level of their burn-in: not below the agents' own."
)
@click.option("--again", is_flag=True, help="Also where key or Node are others than were approved before.")
@click.option("--allow-simulated", is_flag=True, help="Admit simulated GPUs; for labs only.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON who was approved, who was not, and doubles.")
@click.pass_obj
def approve(
    place: tuple[Path, str],
    names: tuple[str, ...],
    everybody: bool,
    expect: Path | None,
    reason: str,
    level: str | None,
    again: bool,
    allow_simulated: bool,
    as_json: bool,
) -> None:
    """Believe the key with which a node's agent signs: the one of this FINGERPRINT (SHA256:...), or that FILE has.

    With neither it is trusted on first use, which the ledger says. Exit code 1 when one was not approved, or another
    command has approved the same machine meanwhile.
    """
    from gpu_burnin.admission.client import Conflict
    from gpu_burnin.api.enrolment import Decision
    from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
    from gpu_burnin.fleet.attach import approve as approving
    from gpu_burnin.fleet.attach import expected
    from gpu_burnin.fleet.attach.ledger import Ledger
    from gpu_burnin.fleet.cluster.asks import user
    from gpu_burnin.system.clock import rfc3339

    marks = {node: mark for node, _, mark in (text.partition("=") for text in names)}
    if everybody == bool(names or expect):
        raise click.UsageError("name nodes, or give --expect FILE, or --all alone")
    if expect is not None and any(marks.values()):
        raise click.UsageError("a fingerprint and --expect: give one of them")
    of_file = expected.of_file(expect) if expect is not None else None
    kubeconfig, domain = place
    api, keys = connect(kubeconfig), Names(domain)
    least = approving.level_for(api, level)
    wanted = marks or {one.name: "" for one in approving.claims(api, keys) if approving.due(one, of_file)}
    approved, failed, doubles = dict[str, str](), dict[str, str](), list[str]()
    # What was approved is said also where the next one cannot be.
    try:
        provisioner = approving.provisioner(api, kubeconfig.expanduser())
        ledger = Ledger(provisioner, keys)
        for name, mark in wanted.items():
            compare = of_file or (expected.of_fingerprint(mark) if mark else expected.first_use)
            decision = Decision(True, str(user(api)), reason, rfc3339(datetime.now(UTC)))
            try:
                claim = approving.approve(
                    provisioner(),
                    keys,
                    name,
                    decision,
                    least,
                    ledger=ledger,
                    compare=compare,
                    allow_simulated=allow_simulated,
                    again=again,
                )
            except Conflict:
                failed[name] = f"{name}: somebody else has changed it meanwhile; approve it again"
            except GpuBurninError as error:
                failed[name] = str(error)
            else:
                approved[name] = claim.fingerprint
                if not as_json:
                    click.echo(f"{name}  approved  {claim.fingerprint}")
            if name in failed:
                click.echo(failed[name], err=True)
        try:
            doubles += ledger.doubles()
        except GpuBurninError as error:
            doubles.append(f"nobody knows whether another command has approved the same machines: {error}")
    finally:
        if as_json:
            click.echo(json.dumps(_to_json(approved, failed, doubles), indent=1))
    for sentence in doubles:
        click.echo(sentence, err=True)
    if not (wanted or as_json):
        click.echo("no machine waits for approval; `muster attach nodes` lists those that have come")
    if failed:
        raise GpuBurninError(f"not approved: {', '.join(failed)}", EXIT_FAIL)
    if doubles:
        raise GpuBurninError("approved, and in doubt: see above", EXIT_FAIL)


def _to_json(approved: dict[str, str], failed: dict[str, str], doubles: list[str]) -> dict[str, object]:
    return {
        "approved": [{"node": name, "fingerprint": mark} for name, mark in approved.items()],
        "failed": [{"node": name, "why": why} for name, why in failed.items()],
        "doubles": doubles,
    }
