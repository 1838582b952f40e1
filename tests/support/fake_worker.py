"""A worker that misbehaves on demand: python fake_worker.py MODE. Standard library only, so it starts at once."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any


def send(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def hang() -> None:
    while True:
        threading.Event().wait()


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


BUSY = {
    "code": "GPU_BUSY", "check": "state", "message": "GPU 1 is in use by process 4711", "gpu": "GPU-1", "evidence": {},
    "action": "retest", "severity": "INCONCLUSIVE",
}  # fmt: skip
FAULT = {
    "code": "GEMM_MISMATCH", "check": "gemm", "message": "bf16 product is wrong",
    "evidence": {"row": 3, "phase": "self-test"}, "action": "repair", "severity": "FAIL",
}  # fmt: skip
HINDERED = {
    "fault": "bitflip bf16", "check": "gemm", "injected": False, "detected": False, "latency_s": 0.0,
    "scope": "device buffers",
}  # fmt: skip


def main(mode: str, state: Path) -> None:
    job = json.loads(sys.stdin.readline())
    if mode == "runs out of memory at start":
        sys.exit("OpenBLAS error: Memory allocation still failed after 10 retries, giving up.")
    if mode == "dies at start":
        sys.exit("no such library")
    if mode == "dies at first start" and not state.exists():
        state.touch()
        sys.exit(7)
    if mode == "cannot open":
        send(type="failed", message="CuPy is missing")
        sys.exit(1)
    if mode == "GPU is damaged at once":
        send(type="failed", message="uncorrectable ECC error encountered", code="ECC_UNCORRECTED")
        sys.exit(1)
    if mode == "cannot open and stays":
        send(type="failed", message="CuPy is missing")
        hang()
    if mode == "hangs at start":
        hang()
    if mode == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send(type="ready", facts={"gpu": job["gpu"], "kernel_dir": job["kernel_dir"]})
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "selftest":
            if mode == "selftest dies" or (mode == "selftest dies once" and not state.exists()):
                state.touch()
                sys.exit(3)
            if mode == "selftest has no memory":
                send(type="failed", message="memory ran out", scarce="memory")
                continue
            if mode == "selftest segfaults":
                os.kill(os.getpid(), signal.SIGSEGV)
            if mode in ("selftest raises", "selftest reports damage"):
                damage = {"code": "ECC_UNCORRECTED"} if mode.endswith("damage") else {}
                send(type="failed", message="it did not work", **damage)
                continue
            if mode == "selftest meets a fault" and request["name"] == "gemm":
                send(type="selftest", results=[{**HINDERED, "gpu": job["gpu"], "real": {**FAULT, "gpu": job["gpu"]}}])
                continue
            if mode == "selftest hangs":
                hang()
            send(type="selftest", results=[])
            continue
        if mode == "is killed" and request["name"] == "gemm":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "GPU-0 stops itself" and request["name"] == "gemm" and job["gpu"] == "GPU-0":
            os.kill(os.getpid(), signal.SIGSTOP)
        if mode == "says it waited":
            send(type="progress", data={"waited_s": 600.0})
            time.sleep(1.5)  # longer than the run has left
        if mode == "GPU-0 is late" and request["name"] == "gemm" and job["gpu"] == "GPU-0":
            wait_for(state)
        offers: dict[str, Any] = {}
        if mode.startswith("exchanges") and request["name"] == "hbm":
            if mode == "exchanges, GPU-1 dies" and job["gpu"] == "GPU-1":
                wait_for(state)
                sys.exit(9)
            too_much = {"large": "x" * (1 << 16)} if mode == "exchanges too much" else {}
            send(type="share", data={"handle": job["gpu"], **too_much})
            offers = json.loads(sys.stdin.readline())["data"]
        if mode == "closes its output":
            os.close(1)
            hang()
        if mode == "has no memory and hangs":
            print("MemoryError", file=sys.stderr, flush=True)
        if mode in ("hangs", "ignores SIGTERM", "has no memory and hangs") and request["name"] == "gemm":
            hang()
        if mode == "never stops talking" and job["gpu"] == "GPU-0":
            while True:
                send(type="progress", data={"products": 1})
        if mode == "speaks for another" and job["gpu"] == "GPU-0":
            job["gpu"] = "GPU-1"
        if mode == "garbage":
            print("Segmentation fault", flush=True)
            hang()
        if mode == "GPU reports damage" and request["name"] == "gemm":
            send(type="failed", message="uncorrectable ECC error encountered", code="ECC_UNCORRECTED")
            continue
        if mode == "raises":
            send(type="failed", message="no memory")
            continue
        send(type="progress", data={"products": 1})
        result = {"name": request["name"], "gpu": job["gpu"], "verdict": "PASS", "seconds": 0.1}
        if mode == "GPU is busy" and request["name"] == "state":
            result["verdict"] = "INCONCLUSIVE"
        reasons = [BUSY] if result["verdict"] != "PASS" else []
        empty = {
            "measurements": [],
            "coverage": {},
            "errors": [offers] if offers else [],
            "reasons": reasons,
            "series": [],
        }
        send(type="result", result={**result, **empty})
    if mode == "hangs at the end":
        hang()


main(sys.argv[1], Path(sys.argv[2]))
