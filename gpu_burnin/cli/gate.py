"""`gpu-burnin gate`: may kubelet start on this node. Runs before each start of kubelet, so it imports little."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gpu_burnin.cli.options import duration, goes_with, host_config, host_options
from gpu_burnin.system.streams import readers_may_leave


@click.command()
@click.option("--quiet", "-q", is_flag=True, help="Say nothing when the gate is open.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer, open or closed, as JSON and nothing else.")
@click.option(
    "--under-test",
    is_flag=True,
    help="Also open while a test is under way that began with an open gate: what ran then may start again.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Ask only whether the cluster knows of this boot, and wait up to --deadline until it does.",
)
@click.option(
    "--deadline",
    "deadline_s",
    type=duration,
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="For --cluster: how long to wait.",
)
@host_options
def gate(
    config_path: Path | None,
    state_dir: Path | None,
    quiet: bool,
    as_json: bool,
    under_test: bool,
    cluster: bool,
    deadline_s: float,
) -> None:
    """Say whether kubelet may start on this node.

    It may when the newest run is a pass of this very boot and is not revoked. Exit code 0 open, 1 closed (no
    pass, or a FAIL), 3 closed (INCONCLUSIVE, simulated, or the newest run left no evidence).

    With --cluster it may when the cluster knows of this boot: by the Node's status, or by the taint that ends all work
    until the boot has passed. A node without kubelet's certificate, or without Node, is not known and may start.
    """
    goes_with("deadline_s", "--cluster", cluster)
    if cluster:
        if as_json:
            raise click.UsageError("--json and --cluster do not go together: leave one out")
        if under_test:
            raise click.UsageError("--under-test and --cluster do not go together: leave one out")
        from gpu_burnin.node.cluster_gate import check_cluster

        why = check_cluster(host_config(config_path, state_dir), deadline_s)
        if not quiet:
            with readers_may_leave("this"):
                click.echo(f"open: {why}")
        return
    from gpu_burnin.node.gate import GateClosed, check_gate, document

    if quiet and as_json:
        raise click.UsageError("--quiet and --json do not go together: leave one out")
    config = host_config(config_path, state_dir)
    try:
        found = check_gate(config, under_test=under_test)
    except GateClosed as closed:
        if not as_json:
            raise
        _print(document(config.node_name, closed))
        sys.exit(closed.exit_code)
    if as_json:
        _print(document(config.node_name, found))
    elif not quiet:
        with readers_may_leave("this"):
            click.echo(f"{found.node}: open: PASS of run {found.sequence} at {found.finished_at}")


def _print(answer: object) -> None:
    import json

    with readers_may_leave("the answer"):
        click.echo(json.dumps(answer, indent=1))
