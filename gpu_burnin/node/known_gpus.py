"""The GPUs that passed an extended burn-in on this host: any other one should get one, once.

A GPU is one serial with one UUID. A board that comes back from repair has another of either, and is new again. One
without a serial is known by its UUID alone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu_burnin.api.levels import LEVELS
from gpu_burnin.checks import CHECKS, USUAL_CHECKS
from gpu_burnin.engine.plan import Plan
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.settings.config import LEAST_EXTENDED_S
from gpu_burnin.settings.durations import write_duration
from gpu_burnin.system.files import parse_json, read_text, write_atomic
from gpu_burnin.system.own_name import host_name
from gpu_burnin.types import Gpu, Notice

KNOWN_GPUS = "known-gpus.json"
SCHEMA = "muster-known-gpus/v1"
CODE = "EXTENDED_WANTED"
# More GPUs than these are named by their index alone.
_MOST_NAMED = 2


class RecordError(GpuBurninError):
    """The record cannot be read."""


@dataclass(frozen=True)
class KnownGpu:
    """One GPU that has passed: in which run, when (RFC 3339 UTC), and whether that run was on simulated hardware."""

    serial: str
    uuid: str
    run_id: str
    passed_at: str
    simulated: bool

    def is_it(self, gpu: Gpu) -> bool:
        """Whether this is the GPU: the same serial and the same UUID."""
        return (self.serial, self.uuid) == (gpu.serial, gpu.uuid)


def read_known(state_dir: Path) -> tuple[KnownGpu, ...]:
    """The GPUs on record, none where there is no record. Raises RecordError for one that cannot be read."""
    path = state_dir / KNOWN_GPUS
    try:
        document = parse_json(read_text(path, follow=False))
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']!r} is not {SCHEMA}")
        known = tuple(KnownGpu(**entry) for entry in document["gpus"])
        values = [item for entry in known for item in vars(entry).items()]
        if any(type(value) is not (bool if name == "simulated" else str) for name, value in values):
            raise ValueError("a GPU's entry holds a value of the wrong kind")
        return known
    except FileNotFoundError:
        return ()
    except PermissionError as error:
        raise RecordError(f"{host_name()}: {path} cannot be read; run as root") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{host_name()}: {path} cannot be read ({error}); remove it") from error


def new_gpus(gpus: Iterable[Gpu], known: Iterable[KnownGpu], *, simulated: bool) -> tuple[Gpu, ...]:
    """The GPUs that are not on record. What passed on simulated hardware counts there alone."""
    counted = [entry for entry in known if simulated or not entry.simulated]
    return tuple(gpu for gpu in gpus if not any(entry.is_it(gpu) for entry in counted))


def makes_known(plan: Plan) -> bool:
    """Whether a PASS of this plan is the extended burn-in that a new GPU should get: that level, at least half an hour
    on real GPUs, no check missing. Of GPUs in MIG mode it is what can be tested of them so."""
    names = {check.name for check in plan.checks}
    in_mig = any(gpu.instances is not None for gpu in plan.gpus)
    wanted = {name for name in USUAL_CHECKS if not (in_mig and CHECKS[name].between_gpus)}
    # The CPU backend covers nothing however long it runs.
    long_enough = plan.backend == "cpu" or plan.total_s >= LEAST_EXTENDED_S
    return plan.level == "extended" and long_enough and not plan.inject and names >= wanted


def remember(
    state_dir: Path, gpus: Iterable[Gpu], *, run_id: str, passed_at: str, simulated: bool
) -> tuple[KnownGpu, ...]:
    """Put GPUs on record in one step, in place of what was there of the same GPU; those that are gone stay.

    A real PASS is not overwritten by a simulated one, a record that cannot be read is replaced. Raises OSError when
    the file cannot be written.
    """
    before: tuple[KnownGpu, ...] = ()
    added = []
    with contextlib.suppress(RecordError):
        before = read_known(state_dir)
    for gpu in gpus:
        if simulated and not new_gpus([gpu], before, simulated=False):
            continue
        added.append(KnownGpu(gpu.serial, gpu.uuid, run_id, passed_at, simulated))
    identities = {(entry.serial, entry.uuid) for entry in added}
    kept = [entry for entry in before if (entry.serial, entry.uuid) not in identities]
    document = {"schema": SCHEMA, "gpus": [asdict(entry) for entry in (*kept, *added)]}
    write_atomic(state_dir / KNOWN_GPUS, (json.dumps(document, indent=1) + "\n").encode())
    return (*kept, *added)


def wanted_notice(new: tuple[Gpu, ...], extended_s: float | None = None, problem: str = "") -> Notice | None:
    """The warning that GPUs should get an extended burn-in, with the command; None where none is new.

    `problem` is what is wrong with the record, "" when it could be read.
    """
    if not new:
        return None
    names = ", ".join(f"GPU {gpu.index} ({_identity(gpu)})" for gpu in new)
    if len(new) > _MOST_NAMED:  # the evidence has the serials
        names = f"{len(new)} GPUs ({', '.join(str(gpu.index) for gpu in new)})"
    have = "has" if len(new) == 1 else "have"
    command = f"gpu-burnin run --level extended --for {write_duration(extended_s or LEVELS['extended'].total_s)}"
    message = f"{names} {have} not passed an extended burn-in on this host; run once: `{command}`"
    message += f" ({problem})" if problem else ""
    gpu = new[0].uuid if len(new) == 1 else None
    return Notice(CODE, "plan", message, gpu, {"gpus": [{"uuid": gpu.uuid, "serial": gpu.serial} for gpu in new]})


def _identity(gpu: Gpu) -> str:
    return f"serial {gpu.serial}" if gpu.serial else gpu.uuid or gpu.pci_bus_id
