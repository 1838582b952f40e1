"""`muster fabric run`: the tests between the nodes of an inventory, from the plan to what they name."""

from __future__ import annotations

import contextlib
import getpass
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.fabric_options import READS_INVENTORY, plan_options, show_report
from gpu_burnin.cli.muster.inventory_option import inventories_option
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import temporary

if TYPE_CHECKING:
    from gpu_burnin.fabric.model import Settings
    from gpu_burnin.fleet.fabric.execute import Executor, Keeper
    from gpu_burnin.fleet.fabric.places import Given

_T = TypeVar("_T")
_FILE = click.Path(path_type=Path, dir_okay=False)
# How often it looks whether a person stops it.
_POLL_S = 0.5


@click.command(short_help="Test the nodes with each other, until nothing is left to test.")
@inventories_option
@click.option("-l", "--limit", default="", metavar="HOSTS", help="These GPU nodes, as ansible-playbook takes them.")
@plan_options
@click.option(
    "--seconds",
    type=click.FloatRange(1, 600),
    default=10.0,
    show_default=True,
    help="How long the members of a test work.",
)
@click.option("--output", type=_FILE, metavar="RUN", help="The run's file.  [default: fabric/run.json in STATE]")
@click.option("--again", is_flag=True, help="Begin a new run in the place of the one in RUN.")
@click.option(
    "--kubeconfig",
    type=_FILE,
    help="Of an admin, to keep work from the nodes.  [default: kubeconfig/admin.kubeconfig in STATE]",
)
@click.option("--without-cluster", is_flag=True, help="No cluster gives work to these nodes; who works is looked at.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def run(
    context: click.Context,
    inventories: tuple[Path, ...],
    limit: str,
    through: str,
    pairings: int,
    every_pair_of_leaves: bool,
    rates: Path | None,
    seconds: float,
    output: Path | None,
    again: bool,
    kubeconfig: Path | None,
    without_cluster: bool,
    as_json: bool,
) -> None:
    """Test GPU nodes with each other, round by round, and say what is bad between them.

    Nodes that do work are left out, and those that are tested are kept from work until the end. Each round is kept in
    RUN: called again, it goes on where it was stopped or killed. Ctrl-C stops it after the round that runs. STATE is
    the inventory's fleet_state_dir.

    Exit codes: 0 all nodes were tested and nothing is named, 1 something is named, 2 it cannot begin or go on, 3
    something is open: a node was left out or not decided, or it was stopped.
    """
    from gpu_burnin.fabric.model import Fabric, Settings, Through
    from gpu_burnin.fleet.fabric import course, execute, plan, results
    from gpu_burnin.fleet.fabric.report import usual_rates
    from gpu_burnin.fleet.roll import lock
    from gpu_burnin.system import known_hosts
    from gpu_burnin.system.clock import rfc3339_s

    if kubeconfig is not None and without_cluster:
        raise click.UsageError("--kubeconfig and --without-cluster: give one of them")
    terminal.note(READS_INVENTORY)
    site = plan.given([str(one) for one in inventories], limit)
    course.refuse_site(site, limit)
    usual = usual_rates(results.state_of(results.read(rates))) if rates is not None else {}
    settings = Settings(
        Through(through), every_pair_of_leaves, pairings, usual=usual, pair_s=seconds, group_s=seconds, rail_s=0.0
    )
    folder = Path(site.state_dir) / "fabric"
    path = output or folder / "run.json"
    keys, left = course.keys(site, known_hosts.load(Path(site.known_hosts)))
    mine = lock.Lock(_user(), rfc3339_s(datetime.now(UTC)), lock.process(os.getpid()), "tests the fabric")
    if taken := lock.take(folder, mine):
        click.echo(taken, err=True)
    stop = _Stop()
    try:
        made = None if again else course.begun(path, site, _named(context, settings))
        if made is None:
            temporary.remove_all(folder / "rounds")
            made = results.begin(Fabric(site.nodes), settings)
        course.refuse_keyless(made, left)
        keep = _keeper(site, made.id, kubeconfig, without_cluster=without_cluster)
        executor = execute.Executor(
            made.id,
            Fabric(site.nodes),
            made.settings,
            keys,
            [str(one) for one in inventories],
            folder / "rounds",
            keep,
            execute.result_of,
            _say,
        )
        with _given_back(keep, executor, stop):
            if not made.rounds:
                # What is no round yet is begun anew: who answers and has no work is another one now.
                left |= stop.wait_for(lambda: executor.ready(_others(site, left)))
                left |= stop.wait_for(lambda: keep.take(_others(site, left), 0.0))
                made = course.choose(made, site.nodes, left)
                results.write(path, made)
            for name, why in made.left.items():
                click.echo(f"{name}: left out: {why}", err=True)
            if not course.is_over(made):
                click.echo(plan.render(plan.make(Fabric(made.nodes), made.settings)), err=True)
            begun = made
            made, _ = stop.wait_for(lambda: course.go_on(path, begun, executor, _say, stop.why))
    finally:
        lock.release(folder, mine.owner)
    show_report(made, as_json=as_json)


class _Stop:
    """Ctrl-C: the first stops after the round that runs, the second at once."""

    def __init__(self) -> None:
        self.times = 0

    def why(self) -> str:
        """Why no further round begins."""
        return "it was stopped" if self.times else ""

    def wait_for(self, work: Callable[[], _T]) -> _T:
        """What `work` gives, which the first Ctrl-C does not cut off. Raises what it raises, and KeyboardInterrupt."""
        found: list[_T] = []
        faults: list[BaseException] = []
        done = threading.Event()

        def carry_out() -> None:
            try:
                found.append(work())
            except BaseException as error:
                faults.append(error)
            finally:
                done.set()

        threading.Thread(target=carry_out, daemon=True).start()
        while not done.is_set():
            try:
                done.wait(_POLL_S)
            except KeyboardInterrupt:
                self.times += 1
                if self.times > 1:
                    raise
                _say("it stops after this round, and the nodes are given back; Ctrl-C again stops at once")
        if faults:
            raise faults[0]
        return found[0]


@contextlib.contextmanager
def _given_back(keep: Keeper, executor: Executor, stop: _Stop) -> Iterator[None]:
    """However it ends, the nodes may work again; those of a test that is cut off when it is over."""
    try:
        yield
    except KeyboardInterrupt:
        _say("the nodes are kept from work until their tests are over: their holds end by themselves within hours")
        raise
    except BaseException:
        try:
            stop.wait_for(lambda: _release(keep, executor))
        except GpuBurninError as error:
            _say(str(error))
        raise
    stop.wait_for(lambda: _release(keep, executor))


def _release(keep: Keeper, executor: Executor) -> None:
    """Give the nodes back, of which none is tested any more. Raises GpuBurninError."""
    from gpu_burnin.system.prose import listed
    from gpu_burnin.system.quantities import duration

    running = executor.end_tests()
    if running:
        longest = duration(max(running.values()))
        _say(f"{listed(list(running))}: no answer, and a test may go on there: kept from work for {longest} more")
    keep.release(running)


def _keeper(site: Given, run_id: str, kubeconfig: Path | None, *, without_cluster: bool) -> Keeper:
    from gpu_burnin.api.names import Names
    from gpu_burnin.fleet.fabric.keep import InLedger, Nobody
    from gpu_burnin.fleet.repair.cluster import Cluster

    if without_cluster:
        return Nobody()
    path = kubeconfig or Path(site.state_dir) / "kubeconfig/admin.kubeconfig"
    if not path.exists():
        raise GpuBurninError(
            f"{path} does not exist, so nobody can be asked to keep work away; give --kubeconfig, or --without-cluster "
            "where no cluster gives work to these nodes"
        )
    return InLedger(Cluster.of(path, site.domain), Names(site.domain), run_id)


def _others(site: Given, left: Mapping[str, str]) -> list[str]:
    return [node.name for node in site.nodes if node.name not in left]


def _named(context: click.Context, settings: Settings) -> dict[str, Any]:
    """The settings that the call names, as one that goes on with a run has to agree with it."""
    fields = {
        "through": ("through",),
        "pairings": ("pairings",),
        "every_pair_of_leaves": ("every_pair_of_leaves",),
        "seconds": ("pair_s", "group_s"),
    }
    named = (name for name in fields if context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    return {field: getattr(settings, field) for name in named for field in fields[name]}


def _say(line: str) -> None:
    click.echo(f"{datetime.now(UTC):%H:%M:%S} {line}", err=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this user
        return f"uid {os.getuid()}"
