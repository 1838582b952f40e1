"""`muster gate-probe`: whether this host's API server keeps the gate."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from gpu_burnin.cli.muster.listen import address
from gpu_burnin.cli.muster.termination import end_with_sigterm

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("gate-probe")
@click.option(
    "--kubeconfig",
    type=_FILE,
    default=Path("/etc/muster/gate-probe.kubeconfig"),
    show_default=True,
    help="Who asks, and which API server; role admitter writes it.",
)
@click.option(
    "--policies",
    type=_FOLDER,
    default=Path("/etc/kubernetes/admission"),
    show_default=True,
    help="Folder of the gate's policies and of their hash; role node_admission writes it.",
)
@click.option(
    "--audit-log",
    type=_FILE,
    default=Path("/var/log/kubernetes/audit.log"),
    show_default=True,
    help="Audit log of this API server.",
)
@click.option(
    "--state-dir",
    type=_FOLDER,
    default=Path("/var/lib/muster-gate-probe"),
    show_default=True,
    help="What it keeps from one look to the next.",
)
@click.option("--metrics", type=_FILE, metavar="FILE", help="Leave the numbers here, for node_exporter.")
@click.option(
    "--attached",
    type=_FOLDER,
    help="Instead: compare an attached cluster's gate with that of this folder, from ConfigMap muster-gate.",
)
@click.option("--every", type=click.IntRange(1), metavar="SECONDS", help="With --attached: look again and again.")
@click.option("--listen", metavar="ADDRESS:PORT", help="With --every: serve /metrics and /healthz there.")
def gate_probe(
    kubeconfig: Path,
    policies: Path,
    audit_log: Path,
    state_dir: Path,
    metrics: Path | None,
    attached: Path | None,
    every: int | None,
    listen: str | None,
) -> None:
    """Ask this host's API server whether the gate holds, once, and count in its audit log who went round it.

    Each line says what is wrong, or who acted in the name of the admitter. Exit code 0 when the gate is in force, 1
    when it is not, 3 when that could not be found out.
    """
    if attached is None and every is not None:
        raise click.UsageError("--every goes with --attached")
    if every is None and listen is not None:
        raise click.UsageError("--listen goes with --every")
    if attached is not None:
        from gpu_burnin.admission.client import KubeApi
        from gpu_burnin.admission.gate_probe import attached as of_objects

        api = KubeApi(kubeconfig)
        if every is None:
            sys.exit(of_objects.once(api, attached, click.echo).exit_code)
        end_with_sigterm()
        watch = of_objects.Watch(api, attached, float(every))
        if listen is not None:
            from gpu_burnin.admission.service.http import Pages

            Pages(address(listen), watch.numbers, watch.unhealthy)
        watch.run(click.echo)
    from gpu_burnin.admission.gate_probe.probe import Place, once

    sys.exit(once(Place(kubeconfig, policies, audit_log, state_dir, metrics), click.echo, time.time()))
