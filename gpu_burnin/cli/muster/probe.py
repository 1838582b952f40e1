"""`muster probe`: which hosts can be reached, and as whom."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import click

from gpu_burnin.cli.ssh_hosts import parse_host, ssh_options
from gpu_burnin.errors import EXIT_FAIL, EXIT_PASS
from gpu_burnin.system.streams import readers_may_leave


@click.command()
@click.argument("hosts", nargs=-1, required=True, metavar="HOST...")
@ssh_options
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
    targets = [replace(parse_host(host, user, port, identity), fingerprint=fingerprint) for host in hosts]
    results = probe_hosts(targets, known_hosts.expanduser(), trust_new=trust_new)
    with readers_may_leave("the results", "muster"):
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
