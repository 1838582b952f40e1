"""A worker that misbehaves on demand: python fake_worker.py MODE. Standard library only, so it starts at once."""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def send(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def hang() -> None:
    while True:
        threading.Event().wait()


def main(mode: str, state: Path) -> None:
    job = json.loads(sys.stdin.readline())
    if mode == "dies at start":
        sys.exit("no such library")
    if mode == "dies at first start" and not state.exists():
        state.touch()
        sys.exit(7)
    if mode == "cannot open":
        send(type="failed", message="CuPy is missing")
        sys.exit(1)
    if mode == "hangs at start":
        hang()
    if mode == "ignores SIGTERM":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    send(type="ready", facts={"gpu": job["gpu"]})
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "selftest":
            if mode == "selftest dies":
                sys.exit(3)
            if mode == "selftest hangs":
                hang()
            send(type="selftest", results=[])
            continue
        if mode in ("hangs", "ignores SIGTERM") and request["name"] == "gemm":
            hang()
        if mode == "garbage":
            print("Segmentation fault", flush=True)
            hang()
        if mode == "raises":
            send(type="failed", message="no memory")
            continue
        send(type="progress", data={"products": 1})
        result = {"name": request["name"], "gpu": job["gpu"], "verdict": "PASS", "seconds": 0.1}
        empty: dict[str, Any] = {"measurements": [], "coverage": {}, "errors": [], "reasons": [], "series": []}
        send(type="result", result={**result, **empty})
    if mode == "hangs at the end":
        hang()


main(sys.argv[1], Path(sys.argv[2]))
