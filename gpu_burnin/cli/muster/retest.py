"""`muster retest --random SHARE`: tests at random for clusters that want just that, from a CronJob."""

from __future__ import annotations

import json
import random
import re
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect
from gpu_burnin.errors import EXIT_INCONCLUSIVE
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.host_names import natural
from gpu_burnin.system.quantities import count
from gpu_burnin.system.streams import readers_may_leave

_SHARE = re.compile(r"(\d+(?:\.\d+)?)(%?)")


def share(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """A share such as 1% or 0.01."""
    match = _SHARE.fullmatch(text)
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 < value <= 1:
        raise click.BadParameter(f"{text!r} is not a share; write it as 1% or 0.01")
    return value


@click.command()
@click.option("--random", "share_", required=True, metavar="SHARE", callback=share, help="Share of the fleet: 1%.")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it stands in each node's history.")
@click.option(
    "--level",
    type=click.Choice(["quick", "standard", "extended"]),
    default="quick",
    show_default=True,
    help="How deep.",
)
@click.option("--seed", type=int, help="Draw the same nodes again.  [default: by chance]")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON and nothing else.")
@cluster_options
def retest(
    share_: float, reason: str, level: str, seed: int | None, as_json: bool, kubeconfig: Path, domain: str
) -> None:
    """Ask idle nodes, drawn at random, for a test. No node with work is interrupted: the admitter asks it again later.

    At least one node is asked, where one is idle. Exit codes: 0 done, also when no node is idle; 3 when none of those
    drawn could be asked.
    """
    from gpu_burnin.api.record import Ask
    from gpu_burnin.fleet.cluster import asks, retests

    if not reason.strip():
        raise click.BadParameter("it is empty; say why", param_hint="--reason")
    api, names = connect(kubeconfig), Names(domain)
    admissions, problems = retests.read(api, names)
    seed = secrets.randbelow(2**32) if seed is None else seed
    now = datetime.now(UTC)
    chosen = sorted(retests.draw(admissions, share_, random.Random(seed), now), key=lambda item: natural(item.name))
    idle = sum(retests.may_be_asked(one, now) for one in admissions)
    who = asks.user(api) if chosen else ""
    ask = Ask(who, reason.strip(), rfc3339(now), level=level)
    answers = list(asks.ask_all(api, names, [item.name for item in chosen], asks.Verb.RETEST, ask))
    asked = [answer.node for answer in answers if not answer.failed]
    with readers_may_leave("the answer", "muster"):
        if as_json:
            document = {
                "schema": "muster-retest/v1",
                "asked": asked,
                "not_asked": {answer.node: answer.failed for answer in answers if answer.failed},
                "nodes": len(admissions),
                "idle": idle,
                "level": level,
                "seed": seed,
                "unreadable": problems,
            }
            click.echo(json.dumps(document, indent=1))
        else:
            for problem in problems:
                click.echo(problem, err=True)
            for answer in answers:
                click.echo(f"{answer.node}: {answer.failed or f'asked for a {level} test; {answer.follows}'}")
            click.echo(
                f"{count(len(asked), 'node')} asked; {idle} of {count(len(admissions), 'node')} idle (seed {seed})"
            )
    sys.exit(EXIT_INCONCLUSIVE if answers and not asked else 0)
