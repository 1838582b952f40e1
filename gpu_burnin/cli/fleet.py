"""The commands of the controller: `gpu-burnin fleet probe` and `gpu-burnin host`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, GpuBurninError
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.fleet.remote import RemoteRun

_Function = TypeVar("_Function", bound=Callable[..., Any])
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# [USER@]ADDRESS[:PORT]; an IPv6 address with a port is written in brackets, as in known_hosts.
_HOST = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?"
    r"(?:\[(?P<bracketed>[^\]\s]+)\](?::(?P<port6>\d+))?|(?P<ipv6>[^@\s\[\]]*:[^@\s\[\]]*:[^@\s\[\]]*)|"
    r"(?P<address>[^:@\s\[\]]+)(?::(?P<port>\d+))?)"
)
_INTERRUPTED = 130


def _ssh_options(function: _Function) -> _Function:
    """Options that all commands which reach hosts share."""
    options = (
        click.option("--user", default="root", show_default=True, help="User to log in as."),
        click.option("--port", default=22, show_default=True, help="Port of sshd."),
        click.option(
            "--identity",
            type=click.Path(path_type=Path),
            help="Private key file. Without it: the agent's keys and the default ones.",
        ),
        click.option(
            "--known-hosts",
            type=click.Path(path_type=Path),
            default=Path("~/.ssh/known_hosts"),
            envvar="GPU_BURNIN_KNOWN_HOSTS",
            show_default=True,
            show_envvar=True,
            help="File with the pinned host keys.",
        ),
        click.option("--trust-new", is_flag=True, help="Accept and pin host keys seen for the first time."),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group()
def fleet() -> None:
    """Look at many hosts from the controller."""


@fleet.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@_ssh_options
@click.option("--fingerprint", help="Fingerprint (SHA256:...) the host key must have; for a single host.")
@click.option("--json", "as_json_", is_flag=True, help="Print the results as JSON and nothing else.")
def probe(
    hosts: tuple[str, ...],
    user: str,
    port: int,
    identity: Path | None,
    known_hosts: Path,
    trust_new: bool,
    fingerprint: str | None,
    as_json_: bool,
) -> None:
    """Try all hosts at once: TCP, SSH, host key, login. HOST is [USER@]ADDRESS[:PORT].

    Exit code 0 when all can be used, 1 when one cannot, 2 for wrong options.
    """
    from gpu_burnin.fleet.model import as_json
    from gpu_burnin.fleet.ssh import probe as probe_hosts

    if fingerprint is not None and len(hosts) != 1:
        raise click.UsageError("--fingerprint is for a single host; probe the hosts one by one")
    targets = [replace(_target(host, user, port, identity), fingerprint=fingerprint) for host in hosts]
    results = probe_hosts(targets, known_hosts.expanduser(), trust_new=trust_new)
    with readers_may_leave("the results"):
        if as_json_:
            click.echo(json.dumps([as_json(result) for result in results], indent=1))
        for result in [] if as_json_ else results:
            rtt = f"{result.rtt_s * 1000:.1f} ms" if result.rtt_s is not None else "-"
            key = f"{result.key.key_type} {result.key.fingerprint}" if result.key else "-"
            click.echo(
                f"{result.target.name}  {'ok' if result.ok else 'FAILED'}  {rtt}  {key}"
                f"{'  pinned now' if result.new_key else ''}"
            )
            for problem in result.problems:
                click.echo(f"  {problem.code}: {problem}")
    sys.exit(EXIT_PASS if all(result.ok for result in results) else EXIT_FAIL)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("host_name", metavar="HOST")
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[RUN OPTIONS]...")
@_ssh_options
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
    target, done = _target(host_name, user, port, identity), None
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


def _run(target: Any, run_options: tuple[str, ...], known_hosts: Path, trust_new: bool) -> RemoteRun:
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
    run_id = report["run_id"]
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


def _target(host_name: str, user: str, port: int, identity: Path | None) -> Any:
    from gpu_burnin.fleet.model import Target

    match = _HOST.fullmatch(host_name)
    if match is None:
        raise click.UsageError(f"{host_name!r} is not [USER@]ADDRESS[:PORT]; write IPv6 addresses as [ADDRESS]:PORT")
    address = match["bracketed"] or match["ipv6"] or match["address"]
    return Target(
        name=address,
        address=address,
        port=int(match["port"] or match["port6"] or port),
        user=match["user"] or user,
        identity=identity,
    )
