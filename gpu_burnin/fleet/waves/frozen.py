"""The inventory of a roll: what it says of its nodes, and a copy that no later change reaches."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.plan.inventory import ask
from gpu_burnin.fleet.waves.grants import Power
from gpu_burnin.fleet.waves.model import Node, Order

_MOST_S = 600


@dataclass(frozen=True)
class Given:
    """What an inventory says of a roll. `canary` are the hosts of the canary group, None where none was named.

    `jumps`: whether hosts are reached through a jump host. `workers` are the hosts of the group of workers, as --worker
    names them; `power` is there where it was asked for, and so are `sealed`, names of variables in files that are
    encrypted as a whole: an export has what stands in them as it was decrypted.
    """

    state_dir: str
    inventory_dir: str
    nodes: tuple[Node, ...]
    canary: tuple[str, ...] | None
    jumps: bool
    workers: tuple[str, ...] = ()
    power: Power | None = None
    sealed: tuple[str, ...] = ()


def given(order: Order, groups: Sequence[str], *, workers: str = "", power: bool = False) -> Given:
    """The nodes of these groups that an order is for. Raises GpuBurninError.

    `workers` is the group of workers, "" for none; with `power` how the nodes swing their power is read too, and what
    no worker may see.
    """
    for source in order.inventory:
        if not Path(source).exists():
            raise GpuBurninError(f"{source} does not exist; give the inventory as -i FOLDER")
    options = {
        "groups": list(groups),
        "limit": order.limit,
        "canary_group": order.canary_group,
        "worker_group": workers,
        "power": power,
    }
    return ask(Given, "roll_given", order.inventory, options, f"{', '.join(order.inventory)} cannot be rolled")


def export(inventory: Sequence[str]) -> bytes:
    """All of an inventory with its variables as they were written: templates and encrypted values stay what they are.

    Raises GpuBurninError.
    """
    beside = Path(sys.executable).with_name("ansible-inventory")
    program = str(beside) if beside.exists() else "ansible-inventory"
    sources = [word for source in inventory for word in ("-i", source)]
    try:
        done = subprocess.run(
            [program, *sources, "--list", "--export"], capture_output=True, timeout=_MOST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuBurninError(f"ansible-inventory did not print {', '.join(inventory)} ({error})") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise GpuBurninError(f"ansible-inventory did not print {', '.join(inventory)}: {said}")
    return done.stdout


def digest(inventory: bytes) -> str:
    """What tells an inventory from a changed one."""
    return hashlib.sha256(inventory).hexdigest()
