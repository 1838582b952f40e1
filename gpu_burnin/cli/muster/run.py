"""`muster run`: a script or a folder as a job on whole nodes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpu_burnin.cli.muster.cluster_options import cluster_options
from gpu_burnin.cli.options import duration
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.system.quantities import count
from gpu_burnin.system.streams import readers_may_leave


def _variables(context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} has no =; give NAME=VALUE")
        found[name] = value
    return found


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("path", metavar="SCRIPT|FOLDER")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@click.option("--nodes", type=int, default=1, show_default=True, metavar="N", help="Whole nodes: all of them or none.")
@click.option("--team", required=True, envvar="MUSTER_TEAM", show_envvar=True, help="The team, as its namespace.")
@click.option("--kind", metavar="MODEL", help="Model of GPU, or its beginning, such as h100.  [default: the only one]")
@click.option("--near", metavar="LEVEL", help="What all nodes share: rack or leaf.  [default: as near as can be]")
@click.option("--image", help="Image of the pods; it has python3.  [default: $MUSTER_IMAGE, else the team's own]")
@click.option("--name", metavar="NAME", help="Name of the job.  [default: made of the script's]")
@click.option("--gpus-per-node", type=int, metavar="N", help="GPUs of each node.  [default: as the nodes have]")
@click.option("--processes-per-node", type=int, metavar="N", help="Processes of each node.  [default: one a GPU]")
@click.option("--entry", metavar="FILE", help="What is started of a folder.  [default: __main__.py or main.py]")
@click.option("--source", metavar="URL", help="A .tar.gz or .py that pods fetch; SCRIPT is the path inside of it.")
@click.option("--sha256", metavar="HASH", help="Hash that the source has to have.")
@click.option("--env", multiple=True, callback=_variables, metavar="NAME=VALUE", help="A variable. Can be given again.")
@click.option(
    "--env-from",
    multiple=True,
    metavar="NAME",
    help="A Secret or ConfigMap of the team: each key becomes a variable. Can be given again.",
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="NAME:/PATH[:ro]",
    help="A PersistentVolumeClaim of the team, and where pods have it. Can be given again.",
)
@click.option("--cpus", type=float, metavar="N", help="CPUs that each node has for it.  [default: the team's]")
@click.option(
    "--memory", metavar="SIZE", help="Memory that each node has for it, such as 512Gi.  [default: the team's]"
)
@click.option("--priority", metavar="CLASS", help="Name of a WorkloadPriorityClass.")
@click.option("--max-runtime", "max_runtime_s", type=duration, metavar="DURATION", help="The job is ended after that.")
@click.option("--restarts", type=int, default=3, show_default=True, metavar="N", help="Starts after failures.")
@click.option(
    "--grace",
    "grace_s",
    type=duration,
    default="2m",
    show_default=True,
    metavar="DURATION",
    help="What processes have to save when they are asked to leave.",
)
@click.option(
    "--hold-until",
    metavar="checkpoint|TIME",
    help="How long a node that should leave work is left to the job; TIME is RFC 3339.",
)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Show the first node's log until the end.")
@click.option("--dry-run", is_flag=True, help="Check all of it, print the objects, and make nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print what became of it as JSON; the log goes to stderr.")
@cluster_options
def run(
    path: str,
    args: tuple[str, ...],
    nodes: int,
    team: str,
    kind: str | None,
    near: str | None,
    image: str | None,
    name: str | None,
    gpus_per_node: int | None,
    processes_per_node: int | None,
    entry: str | None,
    source: str | None,
    sha256: str | None,
    env: dict[str, str],
    env_from: tuple[str, ...],
    volumes: tuple[str, ...],
    cpus: float | None,
    memory: str | None,
    priority: str | None,
    max_runtime_s: float | None,
    restarts: int,
    grace_s: float,
    hold_until: str | None,
    follow: bool,
    dry_run: bool,
    as_json: bool,
    kubeconfig: Path,
    domain: str,
) -> None:
    """Run a script or a folder on whole nodes: all of them or none.

    A process for each GPU, with the variables of torchrun; arguments of the script come after --. The job waits in the
    team's queue for nodes that have proven themselves. Exit code 42 of a process says "saved, start me again". Exit
    codes: 0 it succeeded (or was made, with --no-follow), 1 it failed, 2 it was refused and nothing is made, 3 it is
    not known.
    """
    from gpu_burnin import launch
    from gpu_burnin.launch.follow import follow_job

    launched = launch.run(
        path,
        nodes=nodes,
        team=team,
        kind=kind,
        near=near,
        image=image,
        gpus_per_node=gpus_per_node,
        processes_per_node=processes_per_node,
        args=args,
        entry=entry,
        source=source,
        sha256=sha256,
        name=name,
        priority=priority,
        max_runtime_s=None if max_runtime_s is None else int(max_runtime_s),
        env=env,
        env_from=env_from,
        volumes=volumes,
        cpus=cpus,
        memory=memory,
        hold_until=hold_until,
        restarts=restarts,
        grace_s=int(grace_s),
        follow=False,
        dry_run=dry_run,
        kubeconfig=kubeconfig,
        domain=domain,
    )
    outcome = launched.outcome
    if dry_run:
        items = [dict(made) for made in launched.objects]
        with readers_may_leave("the objects", "muster"):
            click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1))
        return
    _say(f"job {launched.name} of {launched.team}, {count(nodes, 'node')}: made")
    if follow:
        from gpu_burnin.cli.muster.cluster_options import connect

        show = (lambda pod, moment, line: click.echo(line, err=True)) if as_json else None
        try:
            outcome = follow_job(connect(kubeconfig), launched.team, launched.name, show=show)
        except KeyboardInterrupt:
            _say(
                f"the job goes on: muster logs --follow {launched.team}/{launched.name}; to end it: "
                f"kubectl -n {launched.team} delete jobset {launched.name}"
            )
            raise
    if as_json:
        click.echo(json.dumps({"name": launched.name, "team": launched.team, "nodes": nodes, "outcome": outcome}))
    codes = {launch.Outcome.FAILED: EXIT_FAIL, launch.Outcome.UNCLEAR: EXIT_INCONCLUSIVE}
    sys.exit(codes.get(outcome, EXIT_PASS))


def _say(sentence: str) -> None:
    click.echo(f"muster: {sentence}", err=True)
