"""`muster coverage`: how old each node's proof is, and with what probability it is tested within a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect
from gpu_burnin.cli.options import duration
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.admission.schedule.rules import TestRules


@click.command()
@click.option("--within", "within_s", type=duration, default="7d", show_default=True, help="The time to come: 24h, 7d.")
@click.option("--seed", default=1, show_default=True, help="Seed of the simulation.")
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The admitter's configuration, for its budgets.  [default: /etc/muster/admitter.yaml, if it exists]",
)
@click.option("--json", "as_json", is_flag=True, help="Print all, each node included, as JSON.")
@cluster_options
def coverage(
    within_s: float, seed: int, config_path: Path | None, as_json: bool, kubeconfig: Path, domain: str
) -> None:
    """Say how old each node's proof is, and how probable a test is in the time to come.

    The probability comes from simulations of the admitter's schedule on a fleet that is used as it was observed. What
    was not observed is said. Exit code 0 whatever it says.
    """
    from gpu_burnin.admission.schedule.pick import row_of
    from gpu_burnin.fleet.cluster import retests
    from gpu_burnin.fleet.coverage import coverage as schedule

    rules, rules_from = _budgets(config_path)
    admissions, problems = retests.read(connect(kubeconfig), Names(domain))
    for problem in problems:
        click.echo(problem, err=True)
    rows = [row_of(item, idle=item.status.use is not None and not item.status.use.busy) for item in admissions]
    found = schedule.coverage(rows, rules, datetime.now(UTC), within_s, seed, rules_from)
    with readers_may_leave("the coverage", "muster"):
        if as_json:
            click.echo(json.dumps(schedule.as_json(found), indent=1))
        else:
            terminal.show(schedule.as_text(found, terminal.width()))


def _budgets(path: Path | None) -> tuple[TestRules, str]:
    """What the admitter was told, and where that was read; its defaults on a machine without its configuration."""
    from gpu_burnin.admission.schedule.rules import TestRules
    from gpu_burnin.admission.settings import DEFAULT_CONFIG, read_settings

    found = path or DEFAULT_CONFIG
    if path is None and not found.exists():
        return TestRules(), "the defaults: no --config is given"
    return read_settings(found).tests, str(found)
