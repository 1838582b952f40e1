"""The command line of `gpu-burnin`: options in, one call, exit code out.

Imports only click and the settings at the top, so that help is quick.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gpu_burnin import __version__
from gpu_burnin.cli.options import (
    complete_injections,
    duration,
    host_config,
    host_options,
    selection_options,
    setting_flags,
)
from gpu_burnin.cli.program import LazyGroup, Row
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.streams import readers_may_leave

NAME = "gpu-burnin"
# Commands that are imported on use.
TABLE: Mapping[str, Row] = {
    "compare": ("gpu_burnin.cli.compare", "compare", "Say what changed between two reports."),
    "completion": ("gpu_burnin.cli.completion", "completion", "Print the completion script for SHELL."),
    "demo": ("gpu_burnin.cli.demo", "demo", "Show a whole burn-in on simulated GPUs."),
    "enrol": ("gpu_burnin.cli.enrol", "enrol", "Become a node at the first boot of the fleet's image."),
    "explain": ("gpu_burnin.cli.explain", "explain", "Say what a reason code or an XID means, and what to do."),
    "fabric": ("gpu_burnin.cli.fabric", "fabric", "Meet other nodes for a test of what is between them."),
    "gate": ("gpu_burnin.cli.gate", "gate", "Say whether kubelet may start on this node."),
    "host": ("gpu_burnin.cli.host", "host", "Run a burn-in on HOST and bring its report back."),
    "power-grant": ("gpu_burnin.cli.node", "power_grant", "Grant the power waves that a burn-in here asks for."),
    "plan": ("gpu_burnin.cli.plan", "plan", "Say what a run would do here, and how long it takes."),
    "scan": ("gpu_burnin.cli.scan", "scan", "Look at this node's GPUs for some seconds; test nothing."),
    "repair": ("gpu_burnin.cli.repair", "repair", "What playbooks/repair.yml does on this node."),
    "seal": ("gpu_burnin.cli.enrol", "seal", "Make this machine's disk the fleet's image."),
    "selftest": ("gpu_burnin.cli.selftest", "selftest", "Prove this node's detectors with injected faults."),
    "start": ("gpu_burnin.cli.node", "start", "Start a burn-in in a systemd unit of its own."),
    "status": ("gpu_burnin.cli.node", "status", "Say what this node knows of its burn-in."),
    "watch": ("gpu_burnin.cli.watch", "watch", "Watch this node's GPUs while users work on them."),
}


@click.group(NAME, cls=LazyGroup, table=TABLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name=NAME)
def cli() -> None:
    """Burn-in of GPU nodes. Exit codes: 0 PASS, 1 FAIL, 2 usage or configuration error, 3 INCONCLUSIVE."""


@cli.command()
@selection_options
@setting_flags("power_waves", "wave_wait")
@click.option("--seed", type=click.IntRange(0), help="Seed of all operands and patterns.  [default: random]")
@setting_flags("allow_simulated")
@click.option(
    "--inject",
    multiple=True,
    metavar="CHECK:FAULT",
    shell_complete=complete_injections,
    help="Inject a fault, e.g. gemm:bitflip, or gemm:bitflip:gpu=0 on one GPU. Such a run never passes and is never "
    "evidence. A wrong FAULT lists the known ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON and nothing else on stdout.")
@host_options
def run(
    config_path: Path | None, state_dir: Path | None, as_json: bool, skip: tuple[str, ...] | None, **asked: Any
) -> None:
    """Test this node; leave a report and signed evidence.

    Options that are not given come from the configuration. A run of less than the configuration asks for is
    never a PASS, but for one of a lower level while a pass of the configured one stands.
    """
    from gpu_burnin.cli import progress
    from gpu_burnin.cli.outcome import print_files, print_report
    from gpu_burnin.run import RunOptions, run_burnin
    from gpu_burnin.system import private_shm
    from gpu_burnin.system.interrupts import Interrupts

    private_shm.enter()
    options = RunOptions(config=host_config(config_path, state_dir), skip=skip or (), **asked)
    outcome = run_burnin(options, progress.display, Interrupts(last=True))
    # The exit code is the verdict's, whoever reads along and whatever signal comes now.
    with readers_may_leave(f"the report of this {outcome.verdict}"):
        print_report(outcome, as_json)
        print_files(outcome)
    for problem in outcome.problems:
        click.echo(f"{NAME}: {problem}", err=True)
    sys.exit(outcome.exit_code)


@cli.command(short_help="Show a report of this node; or who is held of many hosts.")
@click.argument("file", type=click.Path(path_type=Path), required=False, metavar="[FILE|DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print the report, or the hosts, as JSON.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="For many hosts: also write a page that leads to the pages of their reports.",
)
@host_options
def report(
    file: Path | None, as_json: bool, html: Path | None, config_path: Path | None, state_dir: Path | None
) -> None:
    """Show a report, the latest of this node by default; or who is held of many hosts, and why.

    FILE is a report; DIR a run's directory, a node's state directory, or a folder with a folder for each host, as
    site.yml (fleet_state_dir/reports) and gpu-burnin host (--reports) keep them. Of one report: exit code 1, and no
    report, when it is not the one that its run signed. Of many hosts: 0 when each has a PASS on real hardware, 1 when
    one has a FAIL, 3 when one is INCONCLUSIVE, simulated, or its report cannot be read, 2 when there is no report.
    """
    from gpu_burnin.cli import held, terminal
    from gpu_burnin.fleet.held import is_fleet
    from gpu_burnin.node import authentic, reports
    from gpu_burnin.node.store import Store
    from gpu_burnin.report import model, outputs

    path = file or Store(host_config(config_path, state_dir).state_dir).root
    host_key = None
    with contextlib.suppress(GpuBurninError):  # a configuration that matters for the key alone
        host_key = host_config(config_path, state_dir).host_key
    if file is not None and is_fleet(file):
        sys.exit(held.show(file, html, host_key, as_json=as_json))
    if html is not None:
        raise click.UsageError("--html is for a folder of many hosts; the page of one run is report.html beside it")
    chosen, data = reports.find(path), reports.read(path)
    authentic.refuse_changed(chosen, data, host_key)
    found = model.parse(data, str(chosen))
    if as_json:
        click.echo(data, nl=False)
    else:
        terminal.show(outputs.as_text(found, terminal.width()))
    begun = None
    with contextlib.suppress(GpuBurninError):  # a damaged counter is the gate's to tell
        begun = Store(chosen.parent.parent).begun_after(chosen)
    if begun is not None and (revoked := Store(chosen.parent.parent).revoked()) is not None:
        click.echo(f"{NAME}: {chosen}: this result was taken back after it: {revoked}; run gpu-burnin run", err=True)
    elif begun is not None:
        click.echo(
            f"{NAME}: {chosen}: this is not the newest run: run {begun} began after it and has left no report (yet, if "
            "it is under way); until it does, the gate is closed: run gpu-burnin run",
            err=True,
        )


@cli.command()
@click.option(
    "--deadline",
    "deadline_s",
    type=duration,
    default="2m",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the kubelet's certificate, the API server and the Node object.",
)
@host_options
def publish(config_path: Path | None, state_dir: Path | None, deadline_s: float) -> None:
    """Write the newest evidence to this node's own Node object.

    Uses the kubelet's client certificate.
    """
    from gpu_burnin.node.publish import publish as publish_evidence

    config = host_config(config_path, state_dir)
    changed = publish_evidence(config, deadline_s)
    click.echo(f"{config.node_name}: evidence {'published' if changed else 'was there already'}")


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the report."""
    from gpu_burnin.report.model import schema_text

    click.echo(schema_text(), nl=False)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)
