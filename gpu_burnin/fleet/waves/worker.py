"""One step of a roll, in a process of its own: `python -m gpu_burnin.fleet.waves.worker FOLDER`.

It outlives the executor that began it. FOLDER has `step.json`, what to run; the result comes there, and the output of
ansible-playbook. Where the preflight finds faults of some hosts, the others are run again without them.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.errors import EXIT_INCONCLUSIVE
from gpu_burnin.fleet.waves import leftovers, near, temporary
from gpu_burnin.fleet.waves.book import hosts_file, keep_result
from gpu_burnin.fleet.waves.model import HostResult, Outcome, Part, StepResult
from gpu_burnin.fleet.waves.names import FOLDER_VARIABLE, LIMIT, LOST_WHY, NO_TURN, OUTCOMES, OUTPUT
from gpu_burnin.system.codec import from_json
from gpu_burnin.system.files import parse_json, read_text, write_atomic
from gpu_burnin.system.prose import printable

STEP = "step.json"
# Of thousands of hosts each has a few hundred bytes.
_MOST_BYTES = 64 << 20
_LAST_LINES = 5
# A run that some hosts have ended for all goes on without them, but not for ever.
_MOST_CUTS = 3


@dataclass(frozen=True)
class Job:
    """What a step runs: ansible-playbook with these arguments and inventories, in the folder of the checkout.

    `limit` is --limit, "" for the hosts of the step, beside which `controller` has the plays of localhost too, and
    `seen` has groups of others. `far` is the worker that it runs on, None for this machine.
    """

    name: str
    part: Part
    playbook: str
    inventory: tuple[str, ...]
    arguments: tuple[str, ...]
    project: str
    limit: str = ""
    controller: bool = False
    seen: tuple[str, ...] = ()
    # After which it is killed; 0: never.
    timeout_s: int = 0
    far: near.Far | None = None


class Killed(Exception):
    """ansible-playbook was killed: nobody knows how far it came."""


def main() -> None:
    """Run the step of the folder that is named, and keep its result; none where ansible-playbook was killed."""
    folder = Path(sys.argv[1])
    job = from_json(Job, parse_json(read_text(folder / STEP)))
    hosts = read_text(hosts_file(folder), _MOST_BYTES).split()
    # Forks of an Ansible that was killed go on with their tasks, on the hosts of this step.
    leftovers.end(FOLDER_VARIABLE, str(folder))
    temporary.clear(folder)
    if end_on_worker(folder, job.name, hosts) is not None:
        return
    try:
        keep_result(folder, perform(folder, job, hosts))
    except near.NoTurn as error:
        # Its executor runs it on this machine.
        write_atomic(folder / NO_TURN, f"{error}\n".encode())
        sys.exit(EXIT_INCONCLUSIVE)
    except near.Lost as error:
        # One line for each loss, and what a worker sent may be in it.
        write_atomic(folder / LOST_WHY, f"{printable(str(error))}\n".encode())
        sys.exit(EXIT_INCONCLUSIVE)


def end_on_worker(folder: Path, name: str, hosts: Sequence[str]) -> StepResult | None:
    """Have what a step left on a worker ended; the step's result where it may still run there, and so nowhere else."""
    if not (why := near.end_patiently(folder)):
        return None
    failed = {host: HostResult(Outcome.FAILED, why) for host in hosts}
    result = StepResult(name, 1, 0.0, 0.0, 0, failed)
    keep_result(folder, result)
    return result


def perform(folder: Path, job: Job, hosts: Sequence[str]) -> StepResult:
    """Run ansible-playbook until every host has a result.

    Raises OSError where the folder cannot be written, Killed, near.Lost and near.NoTurn.
    """
    began_s, found, error = time.monotonic(), dict[str, HostResult](), ""
    rc, outcomes = play(folder, job, hosts)
    warnings = [outcomes.get(near.WARNING)]
    if job.part is Part.NODES:
        left = list(hosts)
        for _ in range(_MOST_CUTS):
            own = _of_their_own(outcomes, left) if outcomes.get("cut") else {}
            left = [host for host in left if host not in own]
            if not own or not left:
                break
            found |= own
            rc, outcomes = play(folder, job, left)
            warnings.append(outcomes.get(near.WARNING))
        # Read once: it may be long, and no host of the shard may have a result.
        said = last_words(folder, rc) if rc else "no play has it"
        found |= {host: _of_node(host, outcomes, said) for host in hosts if host not in found}
    elif job.part is Part.ADMIT:
        found |= _of_admission(outcomes, hosts)
        error = "" if rc == 0 or outcomes.get("missing") else last_words(folder, rc)
    elif rc != 0:
        error = _failed_task(outcomes) or last_words(folder, rc)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(one.ru_utime + one.ru_stime for one in used)
    peak_bytes = max(one.ru_maxrss for one in used) << 10
    where = job.far.place.name if job.far else ""
    wall_s, warning = time.monotonic() - began_s, "; ".join(str(one) for one in warnings if one)
    return StepResult(job.name, rc, wall_s, cpu_s, peak_bytes, found, error, where, warning)


def play(folder: Path, job: Job, hosts: Sequence[str]) -> tuple[int, Mapping[str, Any]]:
    """ansible-playbook on these hosts; its exit code, and what the callback kept.

    Raises OSError where the folder cannot be written, Killed, and on a worker near.Lost and near.NoTurn.
    """
    import ansible_runner

    if job.far is not None:
        inventory = Path(job.inventory[0])
        return near.play(folder, job.far, job.playbook, job.project, job.arguments, hosts, inventory)
    (folder / OUTCOMES).unlink(missing_ok=True)
    limited = folder / LIMIT
    write_atomic(limited, "".join(f"{host}\n" for host in hosts).encode())
    limit = job.limit or ",".join([*(["localhost"] if job.controller else []), *job.seen, f"@{limited}"])
    beside = Path(sys.executable).with_name("ansible-playbook")
    program = str(beside) if beside.exists() else "ansible-playbook"
    # One that lost this process would go on with nobody to keep what it did.
    words = ["--pdeathsig", "KILL", program, job.playbook, *job.arguments, "--limit", limit]
    with (
        temporary.sockets(folder) as sockets,
        temporary.runner(folder) as private,
        (folder / OUTPUT).open("ab") as output,
    ):
        run = ansible_runner.run(
            private_data_dir=private,
            project_dir=job.project,
            binary="setpriv",
            cmdline=shlex.join(words),
            inventory=list(job.inventory),
            envvars={
                FOLDER_VARIABLE: str(folder),
                # Runner would switch it off.
                "ANSIBLE_HOST_KEY_CHECKING": "True",
                "ANSIBLE_NOCOLOR": "1",
                "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets,
                "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            },
            # Whatever a task returns: the callback keeps what is wanted of it, and events cost as much as tasks.
            only_failed_event_data=True,
            event_handler=lambda event: _print(event, output),
            status_handler=temporary.forget_environment,
            suppress_env_files=True,
            fact_cache_type="memory",
            quiet=True,
            timeout=job.timeout_s or None,
        )
        if run.stderr:
            output.write(run.stderr.read().encode())
    # ansible-runner has an exit code of its own for a run that it ended at the timeout.
    if run.rc is None or run.status == "timeout":
        raise Killed(f"{job.name}: ansible-playbook was killed{'' if run.rc is None else f' after {job.timeout_s} s'}")
    try:
        kept: Mapping[str, Any] = parse_json(read_text(folder / OUTCOMES, _MOST_BYTES))
    except FileNotFoundError:
        kept = {}
    return int(run.rc), kept


def _print(event: Mapping[str, Any], output: Any) -> bool:
    if text := event.get("stdout"):
        output.write(f"{text}\n".encode())
    return False


def _of_their_own(outcomes: Mapping[str, Any], hosts: Collection[str]) -> dict[str, HostResult]:
    """The hosts for whose sake a run ended before its last play; none where that is no fault of some of them."""
    found = {
        host: HostResult(Outcome.FAILED, str(fault["message"]))
        for fault in outcomes.get("faults", ())
        for host in fault["hosts"]
        if host in hosts
    }
    if outcomes.get("faults"):
        return found if all(fault["hosts"] for fault in outcomes["faults"]) else {}
    ended = ((host, _ended(outcomes.get("hosts", {}).get(host) or {})) for host in hosts)
    return {host: result for host, result in ended if result is not None}


def _ended(found: Mapping[str, Any]) -> HostResult | None:
    """How a host ended that failed or was lost, or was left as it was; None for another."""
    if "unreachable" in found:
        return HostResult(Outcome.LEFT, str(found["unreachable"]))
    if "left" in found:
        return HostResult(Outcome.LEFT, str(found["left"]))
    return HostResult(Outcome.FAILED, str(found["failed"]), found.get("gate") or {}) if "failed" in found else None


def _of_node(host: str, outcomes: Mapping[str, Any], said: str) -> HostResult:
    """How a host ended; as the run `said` where no play has it."""
    found = outcomes.get("hosts", {}).get(host)
    if found is None:
        return HostResult(Outcome.FAILED, said)
    if (ended := _ended(found)) is not None:
        return ended
    gate = found.get("gate") or {}
    if outcomes.get("cut"):
        return HostResult(Outcome.FAILED, f"the run ended before its last play: {_failed_task(outcomes)}", gate)
    verdict = found.get("verdict", "PASS")
    if verdict != "PASS":
        return HostResult(Outcome.HELD, f"{verdict}: {', '.join(found.get('codes') or ()) or found.get('why')}", gate)
    if gate.get("gate_open") is False:
        return HostResult(Outcome.HELD, str(gate.get("gate_message") or "its own gate is closed"), gate)
    return HostResult(Outcome.DONE, "", gate)


def _of_admission(outcomes: Mapping[str, Any], hosts: Collection[str]) -> dict[str, HostResult]:
    """The nodes of a wave that the admitter does not let in, and those that have not come at all."""
    found: dict[str, HostResult] = {}
    for node in outcomes.get("admission", ()):
        if node["name"] in hosts and node.get("state") != "ready":
            why = "; ".join(f"{one['code']}: {one['message']}" for one in node.get("reasons", ()))
            found[node["name"]] = HostResult(Outcome.HELD, why)
    found |= {
        host: HostResult(Outcome.FAILED, str(why)) for host, why in outcomes.get("missing", {}).items() if host in hosts
    }
    return found


def _failed_task(outcomes: Mapping[str, Any]) -> str:
    failed = (str(one["failed"]) for one in outcomes.get("hosts", {}).values() if "failed" in one)
    return next(failed, "")


def last_words(folder: Path, rc: int) -> str:
    """What ansible-playbook said last, where it ended without a result."""
    try:
        lines = [line for line in (folder / OUTPUT).read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    said = " ".join(" ".join(lines[-_LAST_LINES:]).split())
    return f"ansible-playbook ended with {rc}: {said or 'it said nothing'}"


def write_job(folder: Path, job: Mapping[str, Any]) -> None:
    """Keep what a step runs."""
    write_atomic(folder / STEP, json.dumps(job).encode())


if __name__ == "__main__":
    main()
