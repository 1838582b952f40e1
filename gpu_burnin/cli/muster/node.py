"""`muster node`, `muster pause` and `muster resume`: what people ask of nodes, and of the admitter as a whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.names import DEFAULT_DOMAIN, Names
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect
from gpu_burnin.cli.options import duration
from gpu_burnin.errors import EXIT_INCONCLUSIVE, EXIT_PASS, EXIT_USAGE, GpuBurninError
from gpu_burnin.settings.durations import parse_duration
from gpu_burnin.system.clock import parse_rfc3339, rfc3339_s
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.fleet.cluster.asks import Asked

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _until(context: click.Context, parameter: click.Parameter, text: str | None) -> str:
    """A time as RFC 3339, of one or of a time from now. It lies ahead."""
    if text is None:
        return ""
    now = datetime.now(UTC)
    try:
        time = parse_rfc3339(text)
    except ValueError:
        try:
            time = now + timedelta(seconds=parse_duration(text))
        except (ValueError, OverflowError):
            raise click.BadParameter(
                f"{text!r} is neither a time such as 2026-11-22T18:00:00Z nor a duration such as 2h or 7d"
            ) from None
    if time <= now:
        raise click.BadParameter(f"{text} is over; give a time that lies ahead")
    return rfc3339_s(time)


def _reason(context: click.Context, parameter: click.Parameter, text: str) -> str:
    if not text.strip():
        raise click.BadParameter("it is empty; say why in a few words: people will read it")
    return text.strip()


def _ask_options(*, until: bool = False, level: bool = False) -> Callable[[_Function], _Function]:
    options = [
        click.argument("nodes", nargs=-1, required=True, metavar="NODE..."),
        click.option("--reason", required=True, callback=_reason, metavar="TEXT", help="Why; everybody can read it."),
    ]
    if until:
        options.append(
            click.option("--until", callback=_until, metavar="TIME|DURATION", help="When it ends: RFC 3339, or 2h, 7d.")
        )
    if level:
        options.append(
            click.option(
                "--level", type=click.Choice(LEVEL_NAMES), help="Level of the test.  [default: the node's own]"
            )
        )
    options += [
        click.option(
            "--wait",
            "wait_s",
            type=duration,
            default="30s",
            show_default=True,
            metavar="DURATION",
            help="How long to wait for what follows, to report it; 0s: not at all.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print what became of each as JSON."),
    ]

    def add(function: _Function) -> _Function:
        for option in reversed([*options, cluster_options]):
            function = option(function)
        return function

    return add


@click.group()
def node() -> None:
    """Hold nodes, release them, quarantine them, or have them tested again.

    Each can be asked twice; the second time changes nothing. Where an admitter is at work, each waits and reports what
    has followed. Exit code 2 when a node could not be asked, 3 when nothing followed in the time.
    """


@node.command()
@_ask_options(until=True)
def hold(**asked: Any) -> None:
    """Keep new work from NODE; what runs there goes on."""
    _ask("hold", **asked)


@node.command()
@_ask_options(until=True)
def quarantine(**asked: Any) -> None:
    """Keep new work from NODE, and ask what runs there to leave."""
    _ask("quarantine", **asked)


@node.command()
@_ask_options(level=True)
@click.option(
    "--power-cycled",
    is_flag=True,
    help="Confirm that its power was off since the fault that asked for it, and that the hardware was checked or "
    "replaced where it asked for a repair; a reboot is not enough.",
)
def retest(**asked: Any) -> None:
    """Have NODE tested when it is idle."""
    _ask("retest", **asked)


@node.command(short_help="Take back the hold and the quarantine of NODE.")
@_ask_options()
def release(**asked: Any) -> None:
    """Take back the hold and the quarantine of NODE, whoever asked for them."""
    _ask("release", **asked)


@click.command()
@click.option("--reason", required=True, callback=_reason, metavar="TEXT", help="Why; everybody can read it.")
@click.option("--until", callback=_until, metavar="TIME|DURATION", help="When it ends: RFC 3339, or 2h, 7d.")
@cluster_options
def pause(reason: str, until: str, kubeconfig: Path, domain: str) -> None:
    """Pause the fleet: no node is let in or tested.

    The admitter goes on watching, and says what it would do.
    """
    from gpu_burnin.fleet.cluster import asks

    api = connect(kubeconfig)
    _, told = _settled(lambda: asks.pause(api, asks.user(api), reason, until))
    click.echo(told)


@click.command()
@cluster_options
def resume(kubeconfig: Path, domain: str) -> None:
    """End the fleet's pause."""
    from gpu_burnin.fleet.cluster import asks

    api = connect(kubeconfig)
    _, told = _settled(lambda: asks.resume(api))
    click.echo(told)


def _settled(act: Callable[[], tuple[bool, str]]) -> tuple[bool, str]:
    from gpu_burnin.admission.client import Conflict

    try:
        return act()
    except Conflict as error:
        raise GpuBurninError(f"{error}; somebody else changed it just now: look at `muster status`") from error


def _ask(
    verb: str,
    *,
    nodes: tuple[str, ...],
    reason: str,
    wait_s: float,
    as_json: bool,
    kubeconfig: Path,
    domain: str = DEFAULT_DOMAIN,
    until: str = "",
    level: str | None = None,
    power_cycled: bool = False,
) -> None:
    from gpu_burnin.api.record import Ask
    from gpu_burnin.fleet.cluster import asks, followed

    api, names = connect(kubeconfig), Names(domain)
    ask = Ask(asks.user(api), reason, rfc3339_s(datetime.now(UTC)), until, level or "", power_cycled)
    done: dict[str, Asked] = {}
    with readers_may_leave("the answers", "muster"):
        for one in asks.ask_all(api, names, nodes, asks.Verb(verb), ask):
            done[one.node] = one
            if not as_json:
                _print(one)
        waited = [one for one in done.values() if one.coming and wait_s]
        for one in followed.wait_for(api, names, waited, asks.Verb(verb), ask, wait_s):
            done[one.node] = one
            if not as_json:
                click.echo(f"{one.node}: {one.followed}")
        if as_json:
            click.echo(json.dumps([asdict(one) for one in done.values()], indent=1, ensure_ascii=False))
    if any(one.failed for one in done.values()):
        sys.exit(EXIT_USAGE)
    sys.exit(EXIT_PASS if all(done[one.node].done for one in waited) else EXIT_INCONCLUSIVE)


def _print(one: Asked) -> None:
    if one.failed:
        click.echo(f"muster: {one.node}: {one.failed}", err=True)
    else:
        click.echo(f"{one.node}: {one.told}; {one.follows}" if one.follows else f"{one.node}: {one.told}")
