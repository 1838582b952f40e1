"""nvidia-persistenced: keeps the driver open and switches persistence on; off again at its end."""

from __future__ import annotations

import os
import sys

from . import nvml, scenario
from .daemon import end_of_service, to_background
from .kernel import Kernel

PID_FILE = "run/nvidia-persistenced/nvidia-persistenced.pid"


def main(_arguments: list[str]) -> int:
    """Run the daemon: 1 when it cannot start, as without a driver."""
    kernel = Kernel(scenario.root())
    try:
        count = len(nvml.Nvml().gpus())
    except nvml.NvmlError as error:
        print(
            f"nvidia-persistenced failed to initialize: NVML error {error.code}. Check syslog for more details.",
            file=sys.stderr,
        )
        return 1
    if kernel.scenario["persistenced_exits"]:
        print("nvidia-persistenced failed to initialize. Check syslog for more details.", file=sys.stderr)
        return 1
    to_background(kernel.top / PID_FILE)
    kernel.hold("nvidia-persistenced", os.getpid())
    end = end_of_service()
    kernel.set_nvml({f"gpu{gpu}.persistence": "yes" for gpu in range(count)})
    end.wait()
    kernel.set_nvml({f"gpu{gpu}.persistence": "no" for gpu in range(count)})
    return 0
