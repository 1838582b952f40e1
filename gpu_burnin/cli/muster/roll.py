"""`muster roll`: a playbook over thousands of nodes, in waves."""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.inventory_option import inventories_option
from gpu_burnin.cli.options import goes_with
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE
from gpu_burnin.system.prose import printable
from gpu_burnin.system.streams import readers_may_leave


class _Key(click.Path):
    """A file as ssh names one: in --worker-key=~/FILE no shell puts the home folder for `~`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        return super().convert(str(Path(value).expanduser()), param, ctx)


@click.command()
@click.argument("playbook", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS]")
@inventories_option
@click.option(
    "-l", "--limit", default="", metavar="PATTERN", help="The nodes, as for ansible-playbook.  [default: all]"
)
@click.option(
    "--canary",
    type=click.IntRange(1),
    show_default="1",
    help="How many nodes of each GPU model come first, alone.",
)
@click.option(
    "--canary-group",
    default="",
    metavar="GROUP",
    help="A group of the inventory that comes first instead; it needs a node of each model.",
)
@click.option(
    "--shard",
    "shard_hosts",
    type=click.IntRange(1),
    default=250,
    show_default=True,
    help="Nodes of one process of ansible-playbook, at most.",
)
@click.option(
    "--most-failed",
    default="2%",
    show_default=True,
    metavar="COUNT|SHARE%",
    help="So many failed nodes, or a larger share of those tried, stop the roll.",
)
@click.option("--workers", type=click.IntRange(1), help="Shards at a time, at most.  [default: what the machine bears]")
@click.option(
    "--worker",
    "others",
    multiple=True,
    metavar="[USER@]HOST[:PORT][=SHARDS]",
    help="Another machine for shards of burnin.yml; may be given again.  [SHARDS: what it bears]",
)
@click.option(
    "--worker-group",
    default="",
    metavar="GROUP",
    help="A group of the inventory whose hosts are such workers; its nodes may not be.",
)
@click.option(
    "--worker-key",
    type=_Key(exists=True, dir_okay=False),
    metavar="FILE",
    help="Private key for the login to workers; it stays here.  [default: ssh's own]",
)
@click.option(
    "--jump-startups",
    type=click.IntRange(1),
    metavar="N",
    help="MaxStartups of the jump host, the first number.  [default: 10 where hosts are behind one, as sshd has it]",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, or how far it is, and end.")
@click.option("--again", is_flag=True, help="Begin anew, whatever an earlier call has left.")
@click.option("--json", "as_json", is_flag=True, help="Print the report, or with --dry-run the waves, as JSON.")
def roll(
    playbook: Path,
    arguments: tuple[str, ...],
    inventories: tuple[Path, ...],
    limit: str,
    canary: int | None,
    canary_group: str,
    shard_hosts: int,
    most_failed: str,
    workers: int | None,
    others: tuple[str, ...],
    worker_group: str,
    worker_key: str | None,
    jump_startups: int | None,
    dry_run: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Run PLAYBOOK over the nodes of an inventory in waves: canaries, then twice as many each time.

    For site.yml, and of playbooks/ burnin.yml, repair.yml, driver_upgrade.yml, and the nodes of upgrade.yml. Nodes are
    in shards, each a process of its own; the control plane comes first, once. It stops where too many nodes have
    failed. A burn-in's FAIL is a result; a node that does not answer is left behind. Called again, it goes on where it
    was stopped or killed.
    ARGUMENTS are ansible-playbook's.

    Exit codes: 0 each node is done or held, 1 nodes failed or the roll was stopped, 2 it cannot begin, 3 nodes were
    left behind.
    """
    from gpu_burnin.fleet.roll import lock
    from gpu_burnin.fleet.waves import begin, frozen, grants, near, places, sent, text
    from gpu_burnin.fleet.waves import workers as bounds
    from gpu_burnin.fleet.waves.book import Book
    from gpu_burnin.fleet.waves.kinds import kind_of, refuse
    from gpu_burnin.fleet.waves.model import Order, Outcome
    from gpu_burnin.fleet.waves.plan import most_failed as read_limit
    from gpu_burnin.fleet.waves.run import Executor
    from gpu_burnin.system.clock import rfc3339_s

    if canary and canary_group:
        raise click.UsageError("--canary and --canary-group: give one of them")
    kind = kind_of(str(playbook))
    refuse(kind, arguments)
    read_limit(most_failed)
    away = bool(others or worker_group)
    goes_with("worker_key", "--worker or --worker-group", present=away)
    if away:
        sent.refuse(str(playbook), arguments)
    order = Order(
        str(playbook),
        tuple(map(str, inventories)),
        limit,
        arguments,
        canary or 1,
        canary_group,
        shard_hosts,
        most_failed,
    )
    given = frozen.given(order, kind.groups, workers=worker_group, power=away)
    exported = frozen.export(order.inventory)
    sha256 = frozen.digest(exported)
    startups = jump_startups or (_MAX_STARTUPS if given.jumps else None)
    allowed = min((one for one in (workers, kind.most_workers) if one is not None), default=None)
    count = bounds.of_this_machine(min(shard_hosts, max(1, len(given.nodes))), startups, allowed)
    book = Book(Path(given.state_dir) / "roll")
    known = Path(given.state_dir) / "known_hosts"
    offered = list[tuple[near.Far, bounds.Workers]]()
    for place, most in places.each([*others, *given.workers], worker_key or "", known):
        machine = places.look(place, Path.cwd())
        bears = places.bear(machine, min(shard_hosts, max(1, len(given.nodes))), most, place)
        offered.append((near.Far(place, machine.home, given.state_dir, str(known)), bears))
    swings = None
    if away:
        most_far = sum(bears.count for _, bears in offered)
        swings = grants.swings(given.power or grants.Power(), arguments, most_far)
        sent.inventory(exported, [node.name for node in given.nodes], given.sealed)
    far, borne = near.slots(offered, swings)
    at_once = count.count + len(far)
    now = datetime.now(UTC)
    mine = lock.Lock(_user(), rfc3339_s(now), lock.process(os.getpid()), f"rolls {playbook}")
    if dry_run:
        found = None if again else begin.unended(book, order, sha256)
        shown = found or begin.new(book, order, given, sha256, kind, at_once, now, again=again)
        done = begin.results(book, found, kind) if found is not None and book.begun else None
        if as_json:
            planned = text.planned_to_json(shown, [*count.bounds, *borne], at_once, done)
            click.echo(json.dumps(planned, indent=1, ensure_ascii=False))
            return
        terminal.show("\n".join([*text.planned(shown, count), *borne]))
        if done is not None:
            terminal.show(text.progress(shown, done, 0, (), "it has not ended"))
        return
    if taken := lock.take(book.folder, mine):
        click.echo(taken, err=True)
    try:
        running = book.running()
        for note in near.left_by(book.folder):
            if not any(note.name.startswith(f"{step}-") for step in running):
                near.end(note)
        current = None if again else begin.unended(book, order, sha256)
        if current is None:
            current = begin.new(book, order, given, sha256, kind, at_once, now, again=again)
            book.begin(current, exported)
        elif not book.begun:
            book.begin(current, exported)
        click.echo("\n".join([*text.planned(current, count), *borne]), err=True)
        executor = Executor(book, current, kind, count.count, Path.cwd(), given.inventory_dir, _say, far=tuple(far))
        began_s = time.monotonic()
        executor.run()
        results, stopped, shards = executor.results, executor.stopped, executor.shards
        lines = [*text.summary(current, results, stopped, begin.command(order)), *text.where(shards)]
        lines.append(f"it took {text.duration(time.monotonic() - began_s)}")
        # One that a person stopped is not at its end: the same call goes on with it.
        if not executor.interrupted:
            lines[-1] += f"; each node: {book.folder / 'ended'}"
            book.end([*lines, "", *text.listing(results)])
    finally:
        lock.release(book.folder, mine.owner)
    with readers_may_leave("the report", "muster"):
        if as_json:
            click.echo(json.dumps(text.to_json(current, results, stopped, shards), indent=1, ensure_ascii=False))
        else:
            terminal.show("\n".join(lines))
    counts = text.tally(results)
    if stopped or counts[Outcome.FAILED]:
        sys.exit(EXIT_FAIL)
    sys.exit(EXIT_INCONCLUSIVE if counts[Outcome.LEFT] else 0)


# sshd_config(5): the first number of its default, 10:30:100.
_MAX_STARTUPS = 10


def _say(line: str) -> None:
    # Words of hosts and workers are in it.
    click.echo(f"{datetime.now(UTC):%H:%M:%S} {printable(line)}", err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user
        return f"uid {os.getuid()}"
