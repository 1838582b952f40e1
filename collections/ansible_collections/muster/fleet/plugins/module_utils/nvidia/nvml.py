"""What NVML says of the driver and the GPUs, asked by a process of its own and within a deadline."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.nvidia import library, nvml_child

# nvmlInit wakes GPUs whose driver does not persist, a few seconds for each.
TIMEOUT_S = 60.0
# Numbers of nvmlReturn_t.
NO_PERMISSION, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LIBRARY_MISMATCH = 4, 9, 12, 18


@dataclass(frozen=True)
class Gpu:
    """One GPU. Modes are on, off or unsupported, `pending`: after its next reset. None: not read, see `errors`.

    `pci` is its address as the kernel writes it. `power_limit_w` is in watts; None without an error for a GPU that has
    none. `fabric_state`: not_supported, not_started, in_progress or completed; `fabric_status` is NVML's code of it.
    """

    uuid: str | None
    pci: str | None
    mig: str | None
    mig_pending: str | None
    ecc: str | None
    ecc_pending: str | None
    persistence: bool | None
    power_limit_w: float | None
    fabric_state: str | None
    fabric_status: int | None
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Nvml:
    """NVML's answers. `error` is empty where it works, `code` its number (0: works; None: it gave no answer).

    `simulated`: it is a library of made-up GPUs.
    """

    error: str
    code: int | None
    driver_version: str | None
    library_version: str | None
    gpus: tuple[Gpu, ...] | None
    simulated: bool


def read(run: Run, may_start: bool, timeout_s: float = TIMEOUT_S, name: str = library.NAME) -> Nvml:
    """Ask the library `name`. `may_start`: see nvml_child; a loaded driver is enough."""
    command = [sys.executable, "-I", "-c", inspect.getsource(nvml_child), name, "1" if may_start else "0"]
    try:
        done = run(command, timeout_s)
    except CommandError:
        return _silent(
            f"gave no answer in {timeout_s:g} s: a call into the driver hangs; look at the kernel log, reboot"
        )
    if done.code != 0 or not done.out.strip():
        how = f"was killed by signal {-done.code}" if done.code < 0 else f"ended with {done.code}"
        last = (done.err.strip().splitlines() or [""])[-1]
        return _silent(f"{how} in the middle of a call{': ' if last else ''}{last}")
    # The library itself may write lines of its own before.
    answer: dict[str, Any] = json.loads(done.out.strip().splitlines()[-1])
    gpus = answer.pop("gpus")
    return Nvml(gpus=None if gpus is None else tuple(Gpu(**gpu) for gpu in gpus), **answer)


def _silent(error: str) -> Nvml:
    return Nvml(f"NVML {error}", None, None, None, None, simulated=False)
