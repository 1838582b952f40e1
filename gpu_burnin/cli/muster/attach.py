"""`muster attach` and `muster detach`: Muster in a cluster that others built."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gpu_burnin.api.names import Names
from gpu_burnin.cli.muster.attach_approve import approve
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect
from gpu_burnin.cli.options import duration, goes_with

_CLUSTER = click.option(
    "--cluster",
    metavar="NAME",
    help="Name of the cluster that is meant, as the kubeconfig's current context has it: a second word against the "
    "wrong kubeconfig.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")


@click.group(invoke_without_command=True)
@click.option("--image", metavar="REF", help="The container image of this version.")
@click.option(
    "--gpu-nodes",
    "gpu_nodes",
    multiple=True,
    metavar="LABEL=VALUE|NAME",
    help="Which Nodes have GPUs: a label that they have when they are created, or names. Again for more.",
)
@click.option("--enforce", is_flag=True, help="Taint new GPU Nodes and keep those in doubt from work; else observe.")
@click.option(
    "--taint-by",
    type=click.Choice(("auto", "webhook", "policy")),
    default="auto",
    show_default=True,
    help="What adds the taint to a new GPU Node; auto is a policy where the cluster has them.",
)
@click.option("--level", default="standard", show_default=True, help="Level of the burn-in.")
@click.option(
    "--driver-root",
    default="/",
    show_default=True,
    help="Where the driver is on the hosts; gpu-operator's driver container has it in /run/nvidia/driver.",
)
@click.option(
    "--monitoring", is_flag=True, help="Also objects of prometheus-operator: numbers, and alerts on the gate."
)
@click.option(
    "--ssh-host-keys",
    is_flag=True,
    help="Nodes sign with the SSH key of their host, which the agent's pod mounts; else with a key that the agent "
    "makes.",
)
@click.option("--despite-daemonsets", is_flag=True, help="Enforce though DaemonSets do not tolerate the taint.")
@click.option(
    "--render",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the manifests into this folder and ask no cluster.",
)
@click.option("--dry-run", is_flag=True, help="Look, say what would be written, and write nothing.")
@_CLUSTER
@_JSON
@cluster_options
@click.pass_context
def attach(
    context: click.Context,
    image: str | None,
    gpu_nodes: tuple[str, ...],
    enforce: bool,
    taint_by: str,
    level: str,
    driver_root: str,
    monitoring: bool,
    ssh_host_keys: bool,
    despite_daemonsets: bool,
    render: Path | None,
    dry_run: bool,
    cluster: str | None,
    as_json: bool,
    kubeconfig: Path,
    domain: str,
) -> None:
    """Bring Muster into a cluster that others built: it observes; with --enforce it keeps nodes in doubt from work.

    Run it again to change what it does; `muster detach` removes all of it. Exit code 1 when the cluster cannot be
    attached so, with nothing written.
    """
    if context.invoked_subcommand is not None:
        _refuse_lost(context, context.invoked_subcommand)
        context.obj = (kubeconfig, domain)
        return
    from gpu_burnin.api.attached import Mode, parse_gpu_nodes
    from gpu_burnin.fleet.attach import course
    from gpu_burnin.fleet.attach import render as rendering
    from gpu_burnin.fleet.attach.settings import WEBHOOK_TAINTS, Settings, check

    _refuse_missing(image, gpu_nodes, kubeconfig, named=cluster is not None or render is not None)
    assert image is not None
    settings = Settings(
        image,
        parse_gpu_nodes(gpu_nodes),
        Mode.ENFORCING if enforce else Mode.OBSERVING,
        taint_by,
        domain,
        level,
        driver_root,
        cluster or "",
        monitoring,
        ssh_host_keys,
    )
    check(settings)
    if render is not None:
        if dry_run:
            raise click.UsageError("--render writes files, and --dry-run nothing: give one of them")
        by = WEBHOOK_TAINTS if taint_by == course.AUTO else taint_by
        rendered = rendering.write(render, settings, by, datetime.now(UTC))
        paths = [str(path) for path in rendered.files]
        click.echo(json.dumps({"files": paths, "notes": [*rendered.notes]}, indent=1) if as_json else "\n".join(paths))
        for note in rendered.notes:
            click.echo(note, err=True)
        return
    _confirm(kubeconfig, cluster)
    with _completed_by_another_call(writes=not dry_run):
        done = course.attach(
            connect(kubeconfig), settings, datetime.now(UTC), despite=despite_daemonsets, apply=not dry_run
        )
    if as_json:
        click.echo(json.dumps(rendering.to_json(done, dry_run=dry_run), indent=1))
    else:
        click.echo(rendering.text(done, dry_run=dry_run), nl=False)


@attach.command("nodes", short_help="Say which machines have come, and which wait for approval.")
@_JSON
@click.pass_obj
def nodes(place: tuple[Path, str], as_json: bool) -> None:
    """Say which machines have come, with the fingerprints of their keys, and which wait for approval."""
    from gpu_burnin.fleet.attach.approve import claims

    kubeconfig, domain = place
    found = claims(connect(kubeconfig), Names(domain))
    if as_json:
        click.echo(json.dumps([_shown(one) for one in found], indent=1))
        return
    for one in found:
        decided = one.decision
        state = "waits" if decided is None else "approved" if decided.approved else "refused"
        how = f"  {one.trust}  {decided.who}: {decided.why}" if decided is not None else ""
        click.echo(f"{one.name}  {state}  {one.claim.fingerprint if one.claim else one.why}{how}")
    if not found:
        click.echo("no agent has come yet; see the pods of DaemonSet muster-node in muster-system")


def _shown(one: Any) -> dict[str, Any]:
    claim = one.claim
    of = {"fingerprint": claim.fingerprint, "machine_id": claim.machine_id} if claim else {"problem": one.why}
    decided = {"who": one.decision.who, "why": one.decision.why} if one.decision else {}
    trust = {"trust": one.trust} if one.trust else {}
    return {"node": one.name, "approved": one.decision and one.decision.approved, **trust, **of, **decided}


@attach.command("forget", short_help="Have an agent say anew who it is; or remove gone nodes.")
@click.argument("name", metavar="[NODE]", required=False)
@click.option(
    "--gone",
    "gone_s",
    type=duration,
    metavar="DURATION",
    help="Instead: remove the records of nodes whose Nodes are gone for so long, such as 14d. What has a fault, or is "
    "asked for something, stays.",
)
@click.option("--dry-run", is_flag=True, help="With --gone: say what would be removed, and remove nothing.")
@_JSON
@click.pass_obj
def forget(place: tuple[Path, str], name: str | None, gone_s: float | None, dry_run: bool, as_json: bool) -> None:
    """Have a node's agent say anew who it is, as after its state directory was lost; then approve it with --again.

    With --gone remove what is left of nodes that an autoscaler has taken away.
    """
    from gpu_burnin.fleet.attach import approve as approving

    if (name is None) == (gone_s is None):
        raise click.UsageError("give a NODE, or --gone DURATION")
    kubeconfig, domain = place
    if gone_s is not None:
        _forget_gone(kubeconfig, Names(domain), gone_s, dry_run=dry_run, as_json=as_json)
        return
    assert name is not None
    goes_with("dry_run", "--gone", present=False)
    approving.forget(approving.provisioner(connect(kubeconfig), kubeconfig.expanduser())(), Names(domain), name)
    said = "forgotten; its agent says within a minute who it is"
    click.echo(json.dumps({"node": name, "forgotten": True}) if as_json else f"{name}: {said}")


def _forget_gone(kubeconfig: Path, names: Names, gone_s: float, *, dry_run: bool, as_json: bool) -> None:
    from gpu_burnin.fleet.attach import approve as approving
    from gpu_burnin.fleet.attach import gone

    api = connect(kubeconfig)
    found, done = gone.gone(api, names, datetime.now(UTC), gone_s), list[dict[str, object]]()
    word = "would be removed" if dry_run else "removed"

    def print_one(one: gone.Gone) -> None:
        done.append({**gone.to_json(one, removed=not (dry_run or one.stays))})
        if not as_json:
            click.echo(f"{one.name}  {f'stays: {one.stays}' if one.stays else word}")

    # What was removed is said also where the next one cannot be.
    try:
        if dry_run or all(one.stays for one in found):
            for one in found:
                print_one(one)
        else:
            provisioner = approving.provisioner(api, kubeconfig.expanduser())
            for one in found:
                print_one(one if one.stays else replace(one, stays=gone.remove(provisioner(), names, one)))
    finally:
        if as_json:
            click.echo(json.dumps(done, indent=1))
    if not (found or as_json):
        click.echo("each node of the ledger has a Node")


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@_CLUSTER
@_JSON
@cluster_options
def detach(dry_run: bool, cluster: str | None, as_json: bool, kubeconfig: Path, domain: str) -> None:
    """Remove all that `muster attach` has written, and its marks from the Nodes; work is not touched.

    The state directory stays on the hosts: reports, evidence and the agent's key. Safe to run again.
    """
    from gpu_burnin.api.attached import GpuNodes
    from gpu_burnin.fleet.attach import course
    from gpu_burnin.fleet.attach.settings import Settings

    _confirm(kubeconfig, cluster)
    # Which Nodes have GPUs says nothing of names, which are all that is asked here.
    settings = Settings("none", GpuNodes(names=("none",)), domain=domain)
    with _completed_by_another_call(writes=not dry_run):
        removed = course.detach(
            connect(kubeconfig), settings, apply=not dry_run, say=lambda sentence: click.echo(sentence, err=True)
        )
    if as_json:
        click.echo(json.dumps({"removed": [*removed], "dry_run": dry_run}, indent=1))
    else:
        click.echo("\n".join(removed) if removed else "there is nothing of Muster here")
        if removed:
            click.echo(f"{len(removed)} of these would be removed" if dry_run else f"{len(removed)} of these removed")


@contextmanager
def _completed_by_another_call(*, writes: bool) -> Iterator[None]:
    """Ctrl-C in the middle of what writes says how it is completed. Raises GpuBurninError."""
    try:
        yield
    except KeyboardInterrupt:
        if not writes:
            raise
        from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError

        raise GpuBurninError(
            "interrupted: a part may be done, and stays so; the same command again does the rest", EXIT_INCONCLUSIVE
        ) from None


def _refuse_lost(context: click.Context, subcommand: str) -> None:
    """What stands before a subcommand and means nothing to it, such as --dry-run. Raises click.UsageError."""
    lost = [
        one.opts[0]
        for one in context.command.params
        if one.name not in ("kubeconfig", "domain")
        and context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE
    ]
    if lost:
        raise click.UsageError(
            f"{', '.join(lost)} before {subcommand!r} means nothing to it; its own options stand behind it"
        )


def _refuse_missing(image: str | None, gpu_nodes: tuple[str, ...], kubeconfig: Path, *, named: bool) -> None:
    """Name at once all that has to be given and was not. `named`: the cluster was, or none is asked."""
    from gpu_burnin.admission.kubeconfig import current_cluster
    from gpu_burnin.errors import GpuBurninError

    missing = []
    if image is None:
        missing.append("--image REF (the image of this version in a registry that the cluster can read)")
    if not gpu_nodes:
        missing.append("--gpu-nodes LABEL=VALUE, or names (which Nodes have GPUs)")
    if missing and not named:
        try:
            name, entry = current_cluster(kubeconfig.expanduser())
            missing.append(f"--cluster {name} (if you mean {entry.get('server')}, of which this kubeconfig is)")
        except GpuBurninError:
            missing.append("--cluster NAME (as the current context of your kubeconfig has it)")
    if missing:
        raise click.UsageError(f"give {'; '.join(missing)}")


def _confirm(kubeconfig: Path, cluster: str | None) -> None:
    from gpu_burnin.admission.kubeconfig import current_cluster

    name, entry = current_cluster(kubeconfig.expanduser())
    there = f"this kubeconfig is of cluster {name!r} ({entry.get('server')})"
    if cluster is None:
        raise click.UsageError(f"{there}; if you mean it: --cluster {name}")
    if cluster != name:
        raise click.UsageError(f"{there}, and you mean {cluster!r}")


attach.add_command(approve)
