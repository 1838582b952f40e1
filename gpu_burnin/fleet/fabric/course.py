"""A run from where it is to its end, round by round: each is in the run's file before the next begins."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import End, Fabric, Node, Result, Round, Settings
from gpu_burnin.fleet.fabric import places, results
from gpu_burnin.fleet.fabric.cost import forecast, seconds_of_round
from gpu_burnin.fleet.fabric.planner import next_round
from gpu_burnin.fleet.fabric.results import Run
from gpu_burnin.fleet.fabric.run import Executor, run
from gpu_burnin.system.known_hosts import EVIDENCE_KEY_TYPE, KnownHosts
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import count, duration

_LEAST_NODES = 2


def begun(path: Path, site: places.Given, changes: Mapping[str, Any]) -> Run | None:
    """The run that is in the file, None for none. Raises GpuBurninError where it is another one than is called for.

    `changes` are the settings that the call names.
    """
    if not path.exists():
        return None
    made = results.read(path)
    other = f"{path} is a run"
    again = "go on with it by the same call as before, or begin anew: --again"
    if replace(made.settings, **changes) != made.settings:
        raise GpuBurninError(f"{other} that is planned in another way; {again}")
    known = {node.name: node for node in site.nodes}
    names = {node.name for node in made.nodes}
    if names | set(made.left) != set(known):
        raise GpuBurninError(f"{other} of other nodes; {again}")
    if changed := [node.name for node in made.nodes if known[node.name] != node]:
        raise GpuBurninError(
            f"{other} in which {listed(changed)} had another place or other NICs; take the change of the inventory "
            "back, or begin anew: --again"
        )
    return made


def refuse_site(site: places.Given, limit: str) -> None:
    """What has to be set right before any run. Raises GpuBurninError."""
    if not site.state_dir:
        raise GpuBurninError(
            "fleet_state_dir is not set; set it in group_vars/all to a folder of the controller, for the run"
        )
    if len(site.nodes) < _LEAST_NODES:
        where = f"--limit {limit} leaves" if limit else "gpu_nodes has"
        raise GpuBurninError(f"{where} one node, {site.nodes[0].name}; a test needs two: name more")
    if problems := (*places.problems(Fabric(site.nodes)), *_names(site.nodes)):
        raise GpuBurninError("; ".join(problems))


def _names(nodes: Iterable[Node]) -> Iterator[str]:
    """Addresses that are names: what members sign has those that they meet at."""
    for node in nodes:
        for nic in node.nics:
            if not _is_address(nic.address):
                yield f"{node.name}: {nic.address} is no IP address; give its NICs in fleet_fabric_nics"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def keys(site: places.Given, known: KnownHosts) -> tuple[dict[str, str], dict[str, str]]:
    """The host key of each node by which its views are verified; and why a node has none."""
    found, left = {}, {}
    for node in site.nodes:
        address, port = site.logins.get(node.name, (node.name, 22))
        if key := known.evidence_key(address, port):
            found[node.name] = key
        else:
            left[node.name] = (
                f"{known.path} has not exactly one {EVIDENCE_KEY_TYPE} key of {address} (port {port}), so nothing that "
                "it signs can be verified; run site.yml --tags preflight, which meets it"
            )
    return found, left


def refuse_keyless(made: Run, left: Mapping[str, str]) -> None:
    """A node of a run that is under way, whose key has gone meanwhile. Raises GpuBurninError."""
    gone = [node.name for node in made.nodes if node.name in left]
    if made.rounds and gone:
        raise GpuBurninError(f"{listed(gone)}: no key any more: {left[gone[0]]}; or begin anew: --again")


def choose(made: Run, nodes: Iterable[Node], left: Mapping[str, str]) -> Run:
    """The run without the nodes that are left out. Raises GpuBurninError where too few remain."""
    chosen = tuple(node for node in nodes if node.name not in left)
    if len(chosen) < _LEAST_NODES:
        whys = [f"{name}: {why}" for name, why in left.items()]
        raise GpuBurninError(
            f"{count(len(chosen), 'node')} can be tested, and a test needs two; left out: {listed(whys, gap='; ')}"
        )
    return replace(made, nodes=chosen, left=dict(left))


def go_on(
    path: Path,
    known: Run,
    execute: Executor,
    say: Callable[[str], None],
    stopped: Callable[[], str] = lambda: "",
    now_s: Callable[[], float] = time.monotonic,
) -> tuple[Run, End]:
    """Run what is left of it. Each round is kept whole. Raises GpuBurninError."""
    newest, took = [known], list[float]()
    planned = forecast(Fabric(known.nodes), known.settings).rounds

    def carry_out(made: Round) -> tuple[Result, ...]:
        say(progress(made, known.settings, planned, took))
        began_s = now_s()
        found = tuple(execute(made))
        newest[0] = results.with_round(newest[0], made, found)
        try:
            results.write(path, newest[0])
        except OSError as error:
            raise GpuBurninError(
                f"{path} cannot be written ({error.strerror}); make room, then call this again: round "
                f"{made.number} is not run again"
            ) from error
        took.append(now_s() - began_s)
        return found

    _, end = run(results.state_of(known), carry_out, stopped=stopped)
    return newest[0], end


def progress(following: Round, settings: Settings, planned: int, took: list[float]) -> str:
    """What begins now, and how long all of it will go on, by what rounds took so far."""
    nodes = sum(len(test.members) for test in following.tests)
    each_s = sum(took) / len(took) if took else seconds_of_round(following, settings)
    total = max(planned, following.number)
    return (
        f"round {following.number} of about {total}: {count(len(following.tests), 'test')} of {count(nodes, 'node')}; "
        f"about {duration(each_s)}, and {duration((total - following.number) * each_s)} for those after it"
    )


def is_over(made: Run) -> bool:
    """Whether no round is left."""
    return isinstance(next_round(results.state_of(made)), End)
