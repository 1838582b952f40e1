"""`muster baseline`: GPUs that pass and are slow among their peers, or get slower."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect, state_beside, state_option
from gpu_burnin.cli.options import goes_with
from gpu_burnin.fleet.baseline import LEAST_PEERS, MOST_ASKED
from gpu_burnin.system.clock import rfc3339_s
from gpu_burnin.system.quantities import count
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.fleet.baseline.ask import RetestAsk
    from gpu_burnin.fleet.baseline.comparison import Baseline


@click.command()
@state_option
@click.option(
    "--peers",
    type=click.IntRange(min=LEAST_PEERS),
    default=LEAST_PEERS,
    show_default=True,
    help="Compare only where so many are alike.",
)
@click.option("--retest", "retests_", is_flag=True, help="Say which nodes outside would be asked for a test.")
@click.option("--yes", is_flag=True, help="With --retest: ask them.")
@click.option(
    "--most",
    type=click.IntRange(min=1),
    default=MOST_ASKED,
    show_default=True,
    help="With --retest: such tests at a time, those included that wait.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON and nothing else.")
@cluster_options
def baseline(
    state: Path | None,
    peers: int,
    retests_: bool,
    yes: bool,
    most: int,
    as_json: bool,
    kubeconfig: Path,
    domain: str,
) -> None:
    """Say which GPUs pass and are slower than all their peers can be, or lose against them over the weeks.

    It compares each rate of the newest reports with those of the same model, driver, VBIOS, slot and level. Simulated
    hardware does not count. Without --retest the cluster is not asked. Exit codes: 0 none is outside, 1 some are,
    2 usage error or a node that could not be asked, 3 too few to say.
    """
    from gpu_burnin.fleet.baseline import comparison, text

    goes_with("yes", "--retest", retests_)
    goes_with("most", "--retest", retests_)
    place = state or state_beside(kubeconfig.expanduser())
    if place is None:
        raise click.UsageError("give the inventory's fleet_state_dir with --state")
    found = comparison.compare(place, datetime.now(UTC), peers)
    asks = _asks(found, most, kubeconfig, domain) if retests_ else []
    failed = _request_tests(asks, kubeconfig, domain) if yes else {}
    with readers_may_leave("the baseline", "muster"):
        if as_json:
            document = found.to_json()
            if retests_:
                document["retest"] = [asdict(one) | {"failed": failed.get(one.node)} for one in asks]
                document["retest_asked"] = yes
            click.echo(json.dumps(document, indent=1, ensure_ascii=False))
        else:
            terminal.show(text.render(found, terminal.width()))
            if retests_:
                _print(asks, failed, done=yes)
    sys.exit(2 if any(failed.values()) else found.exit_code)


def _asks(found: Baseline, most: int, kubeconfig: Path, domain: str) -> list[RetestAsk]:
    from gpu_burnin.fleet.baseline import ask
    from gpu_burnin.fleet.cluster import retests

    admissions, problems = retests.read(connect(kubeconfig), Names(domain))
    for problem in problems:
        click.echo(problem, err=True)
    return ask.asks_of(found.by_host, admissions, datetime.now(UTC), most)


def _request_tests(wanted: list[RetestAsk], kubeconfig: Path, domain: str) -> dict[str, str]:
    """Ask the nodes that may be asked; for each why it could not be, "" where it was."""
    from gpu_burnin.api.record import Ask
    from gpu_burnin.fleet.cluster import asks

    wanted = [one for one in wanted if not one.not_asked]
    if not wanted:
        return {}
    api = connect(kubeconfig)
    who, since = asks.user(api), rfc3339_s(datetime.now(UTC))
    return {
        answer.node: answer.failed
        for one in wanted
        for answer in asks.ask_all(api, Names(domain), [one.node], asks.Verb.RETEST, Ask(who, one.why, since))
    }


def _print(asks: list[RetestAsk], failed: dict[str, str], *, done: bool) -> None:
    click.echo()
    for one in asks:
        if one.not_asked:
            click.echo(f"{one.node}: not asked: {one.not_asked}")
        elif why := failed.get(one.node):
            click.echo(f"muster: {one.node}: {why}", err=True)
        else:
            click.echo(f"{one.node}: {'asked for a test' if done else 'would be asked for a test'}: {one.why}")
    if not done:
        number = sum(not one.not_asked for one in asks)
        click.echo(f"Nothing was asked. With --yes {count(number, 'node')} would be.")
