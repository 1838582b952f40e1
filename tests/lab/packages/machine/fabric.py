"""nv-fabricmanager and nvidia-imex: refuse what the real ones refuse, and register GPUs with the fabric or never do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from . import nvml, scenario
from .daemon import end_of_service, to_background
from .kernel import Kernel

PID_FILE = "run/nvidia-fabricmanager/nv-fabricmanager.pid"
IMEX_PID_FILE = "run/nvidia-imex/nvidia-imex.pid"
IMEX_NODES = "etc/nvidia-imex/nodes_config.cfg"
# Of infiniband-diags; the real start script ends with 1 without it.
IBSTAT = "usr/sbin/ibstat"
NVLSM = "opt/nvidia/nvlsm/sbin/nvlsm"
_COMPLETED = "3"


def main(arguments: list[str], version: str) -> int:
    """Run the fabric manager of a version; 1 when it cannot start."""
    if "-v" in arguments or "--version" in arguments:
        print(f"Fabric Manager version is : {version}")
        return 0
    if "stop" in arguments:
        return 0
    kernel = Kernel(scenario.root())
    gpus, reason = _gpus(kernel, version, "fabric manager")
    reason = reason or _fabric_refusal(kernel)
    if reason:
        print(reason, file=sys.stderr)
        return 1
    print("Connected to 1 node.")
    to_background(kernel.top / PID_FILE)
    kernel.hold("nv-fabricmanager", os.getpid())
    end = end_of_service()
    if not end.wait(float(kernel.scenario["fabric_after_s"])):
        stuck = set(kernel.scenario["fabric_stuck"])
        done = {f"gpu{gpu}.fabric_{key}": value for gpu in range(gpus) if gpu not in stuck
                for key, value in (("state", _COMPLETED), ("status", "0"))}  # fmt: skip
        kernel.set_nvml(done)
        # The real one says so too when a GPU never registers: what it has configured are the switches.
        print("Successfully configured all the available NVSwitches to route GPU NVLink traffic.", flush=True)
        end.wait()
    return 0


def _gpus(kernel: Kernel, version: str, program: str) -> tuple[int, str]:
    """The number of GPUs, or why a program of this version cannot work with the loaded driver."""
    loaded = kernel.loaded().get("version", "")
    if loaded and loaded != version:
        return 0, (
            f"{program} NVIDIA GPU driver interface version {version} don't match with driver version {loaded}. "
            "Please update with matching NVIDIA driver package."
        )
    try:
        return len(nvml.Nvml().gpus()), ""
    except nvml.NvmlError as error:
        return 0, f"{program} failed to initialize NVML: error {error.code}"


def _fabric_refusal(kernel: Kernel) -> str:
    if kernel.scenario["fabric_exits"]:
        return "failed to initialize all the available NVSwitches"
    if not kernel.has_fabric():
        return (
            "request to query NVSwitch device information failed with error:"
            "WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
        )
    if kernel.scenario["nvlink5"]:
        if not (kernel.top / NVLSM).exists():
            return f"Detected NVL5+ system, but /{NVLSM} is not installed"
        if not (kernel.top / IBSTAT).exists():
            return "Detected NVL5+ system, but ibstat is not installed"
        if "ib_umad" not in kernel.modules():
            return "Detected NVL5+ system, but the kernel module ib_umad is not loaded"
    return ""


def imex(arguments: list[str], version: str) -> int:
    """Run nvidia-imex; 1 when it cannot start."""
    kernel = Kernel(scenario.root())
    _, reason = _gpus(kernel, version, "imex")
    if not reason and not _imex_nodes(kernel):
        reason = f"/{IMEX_NODES} names no node"
    if reason:
        print(reason, file=sys.stderr)
        return 1
    to_background(kernel.top / IMEX_PID_FILE)
    kernel.hold("nvidia-imex", os.getpid())
    end_of_service().wait()
    return 0


def imex_ctl(arguments: list[str], version: str) -> int:
    """nvidia-imex-ctl: -q tells whether this node is ready, -N of all, with -j as JSON."""
    kernel = Kernel(scenario.root())
    pid = kernel.top / IMEX_PID_FILE
    ready = pid.exists() and Path("/proc", pid.read_text().strip()).exists()
    status = "READY" if ready else "UNAVAILABLE"
    if "-N" in arguments and "-j" not in arguments:
        print(f"Domain State: {'UP' if ready else 'DOWN'}")
    elif "-N" in arguments:
        nodes = {str(number): {"host": node, "status": status} for number, node in enumerate(_imex_nodes(kernel))}
        print(json.dumps({"status": "UP" if ready else "DOWN", "nodes": nodes}))
    else:
        print(status)
    return 0 if ready else 1


def _imex_nodes(kernel: Kernel) -> list[str]:
    path = kernel.top / IMEX_NODES
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
