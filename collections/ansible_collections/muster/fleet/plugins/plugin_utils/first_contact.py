"""First contact with all hosts: what the action ssh_probe does, and how it tells the problems of thousands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.preflight.absent_nodes import left_out
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.plugin_utils.failure import failure, forget

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.cluster.machines import powered_off
from gpu_burnin.fleet.model import ProbeResult, ProblemCode, Target, as_json
from gpu_burnin.fleet.model import Problem as HostProblem
from gpu_burnin.fleet.ssh import probe
from gpu_burnin.system.host_names import SHOWN

# Beside known_hosts: the problems of every host by itself.
LIST_NAME = "first-contact.txt"
# A machine that is off or hangs. All else is a mistake, or a stranger: another key, a name that does not resolve.
SILENCE = frozenset({ProblemCode.UNREACHABLE, ProblemCode.NO_SSH})


def meet(
    arguments: Mapping[str, Any], *, check_mode: bool, on_done: Callable[[int], None], undialled: Collection[str] = ()
) -> dict[str, Any]:
    """Probe the hosts and give the task's result. Raises FleetError, and ProblemsFound with those of all hosts.

    Of the `undialled` ones it only compares the keys that are pinned for them.
    """
    every = [
        Target(
            name=host["name"],
            address=host["address"] or host["name"],
            port=host["port"],
            user=host["user"],
            identity=Path(host["identity"]) if host["identity"] else None,
            fingerprint=host["fingerprint"] or None,
        )
        for host in arguments["hosts"]
    ]
    targets = [target for target in every if target.name not in undialled]
    known_hosts = Path(arguments["known_hosts"])
    try:
        results = probe(
            targets,
            known_hosts,
            trust_new=arguments["trust_new_hosts"],
            write=not check_mode,
            timeout_s=arguments["timeout_s"],
            threads=arguments["threads"],
            on_done=on_done,
            others=[target for target in every if target.name in undialled],
        )
    except GpuBurninError as error:
        raise FleetError(str(error)) from error
    bad = [result for result in results if not result.ok]
    silent = [result.target.name for result in bad if all(problem.code in SILENCE for problem in result.problems)]
    off, doubt = switched_off(arguments["scaler_kubeconfig"], arguments["domain"], arguments["nodes"])
    # A machine that is off because nobody needs it is no silence.
    lost = [name for name in silent if name not in off]
    absent, too_many = left_out(
        lost, [name for name in arguments["nodes"] if name not in off], arguments["max_unreachable_share"]
    )
    absent = [name for name in silent if name in absent or name in off]
    wrong = [result for result in bad if result.target.name not in absent]
    list_file = known_hosts.with_name(LIST_NAME)
    if wrong:
        problems, each = merged_problems(wrong)
        title = f"{len(wrong):,} of {len(results):,} hosts cannot be used over SSH"
        raise failure(title, [*too_many, *problems], list_file, each)
    forget(list_file)
    pinned = [result.target.name for result in results if result.new_key]
    told, _ = merged_problems([result for result in bad if result.target.name not in off])
    return {
        "changed": bool(pinned),
        "hosts": [as_json(result) for result in results],
        "pinned": pinned,
        "absent": absent,
        "switched_off": off,
        "left_out": [
            *doubt,
            *(problem.line() for problem in told),
            *_off_line([name for name in silent if name in off]),
        ],
    }


def switched_off(kubeconfig: str, domain: str, nodes: Sequence[str]) -> tuple[list[str], list[str]]:
    """The nodes whose machines the scaler has switched off; and a line where nobody can say."""
    if not kubeconfig or not Path(kubeconfig).is_file():
        return [], []
    try:
        off = powered_off(Path(kubeconfig), domain)
    except GpuBurninError as error:
        return [], [f"which machines the scaler has switched off is not known: {error}"]
    return [name for name in nodes if name in off], []


def _off_line(names: Sequence[str]) -> list[str]:
    return (
        [Problem("the scaler has switched it off", "it comes back when a job needs it", tuple(names)).line()]
        if names
        else []
    )


def merged_problems(results: Sequence[ProbeResult]) -> tuple[list[Problem], list[str]]:
    """The problems, the same kind of many hosts as one; then, when that left something out, each in full."""
    kinds: dict[tuple[str, str], list[tuple[str, HostProblem]]] = defaultdict(list)
    for result in results:
        for problem in result.problems:
            kinds[problem.code, problem.kind].append((result.target.name, problem))
    told: list[Problem] = []
    folded = False
    for found in kinds.values():
        if len(found) <= SHOWN:
            told += [Problem(problem.message, problem.fix) for _, problem in found]
            continue
        folded = True
        first, problem = found[0]
        fix = problem.fix if len({other.fix for _, other in found}) == 1 else f"for {first}: {problem.fix}"
        told.append(Problem(problem.kind, fix, tuple(name for name, _ in found)))
    every = [str(problem) for result in results for problem in result.problems]
    return told, every if folded else []
