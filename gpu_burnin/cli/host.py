"""`gpu-burnin host`: a burn-in of another host."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_burnin.cli.ssh_hosts import parse_host, ssh_options
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.fleet.model import Target
    from gpu_burnin.fleet.remote import RemoteRun

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INTERRUPTED = 130


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("host_name", metavar="HOST")
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[RUN OPTIONS]...")
@ssh_options
@click.option(
    "--reports",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("reports"),
    show_default=True,
    help="Directory on this machine for the reports; each host gets its own in it.",
)
@click.option("--json", "as_json_", is_flag=True, help="Print the report as JSON and nothing else on stdout.")
def host(
    host_name: str,
    run_options: tuple[str, ...],
    user: str,
    port: int,
    identity: Path | None,
    known_hosts: Path,
    trust_new: bool,
    reports: Path,
    as_json_: bool,
) -> None:
    """Run a burn-in on HOST ([USER@]ADDRESS[:PORT]) and bring its report and the page of it back.

    Options that are not listed here go to `gpu-burnin run`, e.g. --level quick. The
    run is a systemd unit on the host: it survives this command, and calling the command again follows it. Exit codes
    are those of `run`: 0 PASS, 1 FAIL, 2 usage, configuration or no SSH connection (no run was seen to begin),
    3 INCONCLUSIVE or a run that was lost from sight.
    """
    if host_name.startswith("-"):
        raise click.UsageError(f"HOST comes first, then the options of run; {host_name!r} is not a host")
    _refuse_unknown(run_options)
    target, done = parse_host(host_name, user, port, identity), None
    try:
        done = _run(target, run_options, known_hosts.expanduser(), trust_new)
        if done.report:
            _show(done, reports / target.address, as_json=as_json_)
    except GpuBurninError as error:
        if done is None or done.exit_code != EXIT_FAIL:
            raise
        click.echo(f"gpu-burnin: the verdict is FAIL; {error}", err=True)
    except KeyboardInterrupt:
        click.echo(f"{target.name}: the run goes on there; `gpu-burnin host {host_name}` follows it", err=True)
        sys.exit(_INTERRUPTED)
    sys.exit(done.exit_code)


def _refuse_unknown(run_options: tuple[str, ...]) -> None:
    """Raises UsageError for what `run` would refuse, before a host is dialled: that may take its time."""
    from gpu_burnin.cli.main import run

    run.make_context("gpu-burnin run", [*run_options])


def _run(target: Target, run_options: tuple[str, ...], known_hosts: Path, trust_new: bool) -> RemoteRun:
    from gpu_burnin.fleet.model import SshError
    from gpu_burnin.fleet.remote import run_on_host
    from gpu_burnin.fleet.ssh import probe as probe_hosts
    from gpu_burnin.system import known_hosts as kh

    if trust_new:
        probe_hosts([target], known_hosts, trust_new=True)
    try:
        return run_on_host(target, kh.load(known_hosts), run_options, lambda line: click.echo(line, err=True))
    except SshError as error:
        raise GpuBurninError(str(error)) from error


def _show(done: RemoteRun, directory: Path, *, as_json: bool) -> None:
    """Print the report, keep it and its page as the host wrote them, and say where both are. Raises GpuBurninError."""
    from gpu_burnin.cli import terminal
    from gpu_burnin.report import model, outputs
    from gpu_burnin.system.files import write_atomic

    try:
        report = model.parse(done.report, "what the host sent")
    except model.ReportError as error:
        raise GpuBurninError(f"{directory.name}: {error}", EXIT_INCONCLUSIVE) from error
    with readers_may_leave("the report"):
        if as_json:
            click.echo(done.report, nl=False)
        else:
            terminal.show(outputs.as_text(report, terminal.width()))
    run_id = report.run_id
    if not _RUN_ID.fullmatch(run_id):
        raise GpuBurninError(f"{directory.name}: the report's run_id {run_id!r} is not one", EXIT_INCONCLUSIVE)
    path, page = directory / f"{run_id}.json", directory / f"{run_id}.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if done.page:
            write_atomic(page, done.page, mode=0o644)
        write_atomic(path, done.report, mode=0o644)
    except OSError as error:
        # The verdict is that of the host, and its files are there.
        click.echo(f"gpu-burnin: cannot write to {directory} ({error.strerror}); give another --reports", err=True)
        return
    click.echo(f"report: {path}", err=True)
    click.echo(f"page: {page}" if done.page else "page: none was found on the host", err=True)
