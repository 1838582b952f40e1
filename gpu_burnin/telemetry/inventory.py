"""The state of the node's GPUs, read in a child process: NVML may hang or crash, its caller must not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.system.children import child_environment
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.system.host_limits import scarce_in, shortage
from gpu_burnin.system.own_name import host_name
from gpu_burnin.telemetry.state import NodeState

# A driver that has to wake 8 GPUs without persistence mode takes 20 to 30 s; a GPU that hangs takes for ever.
DEFAULT_TIMEOUT_S = 60.0
# What the lab's stand-in for NVML says of a scenario file that it cannot use: "fake-nvml: FILE:LINE: the line ...".
_SCENARIO_ERROR = re.compile(r"^fake-nvml: (.+:\d+: .+)$", re.MULTILINE)


class InventoryError(GpuBurninError):
    """The GPUs of this node could not be listed; one sentence with the fix. Exit code 3."""

    def __init__(self, message: str) -> None:
        super().__init__(message, EXIT_INCONCLUSIVE)


class ScenarioError(GpuBurninError):
    """The scenario of a fake NVML is malformed; the message names file and line. Exit code 2."""


def read_inventory_in_child(timeout_s: float = DEFAULT_TIMEOUT_S) -> NodeState:
    """Start a child that reads NVML, and take its answer; raises InventoryError, or ScenarioError in a lab.

    A child that does not end in time is killed, and left behind when it cannot be (stuck in the driver). Raises
    ModuleNotFoundError where the library is not installed, which the child could say only as an end of its own.
    """
    if find_spec("pynvml") is None:
        raise ModuleNotFoundError("No module named 'pynvml'", name="pynvml")
    host = host_name()
    child = subprocess.Popen(
        [sys.executable, "-m", "gpu_burnin.telemetry.inventory"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=child_environment(os.environ),
    )
    try:
        output, errors = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.kill()
        raise InventoryError(
            f"{host}: NVML did not answer within {timeout_s:g} s; a GPU hangs in the driver: "
            "look at the kernel log for NVRM lines and power cycle the machine"
        ) from None
    except BaseException:  # Ctrl-C must not leave it behind
        child.kill()
        raise
    messages = errors.decode(errors="replace")
    if wrong := _SCENARIO_ERROR.search(messages):
        raise ScenarioError(f"{host}: {wrong[1]}")
    if child.returncode != 0 or not output:
        last = messages.strip().splitlines()[-1:] or ["no message"]
        scarce = scarce_in(messages) if child.returncode > 0 else None
        met = shortage(scarce) if scarce else None
        fix = met.text if met is not None and met.by_limit else "reboot"
        raise InventoryError(f"{host}: reading NVML ended with status {child.returncode} ({last[0]}); {fix}")
    answer = json.loads(output)
    if "error" in answer:
        raise InventoryError(str(answer["error"]))
    return from_json(NodeState, answer)


def _main() -> None:
    """The child: one JSON document on standard output."""
    from gpu_burnin.telemetry.nvml import read_node

    try:
        print(json.dumps(to_json(read_node())))
    except GpuBurninError as error:  # NVML cannot be used, or the simulated GPUs are none
        print(json.dumps({"error": str(error)}))


if __name__ == "__main__":
    _main()
