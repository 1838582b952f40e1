"""A real worker behind a man in the middle that makes one GPU's worker misbehave.

Command line: proxy_worker.py MODE UUID STATE_FILE. The real worker is started and its lines are passed on both ways;
for the GPU with this UUID the mode acts at its moment. Standard library only, so that it starts at once.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_Injection = Callable[[dict[str, Any]], "bytes | None"]


def hang() -> None:
    """For ever."""
    while True:
        threading.Event().wait()


def say(data: bytes) -> None:
    """Write to the supervisor."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _die(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def _garbage(data: bytes) -> Callable[[], None]:
    def inject() -> None:
        say(data)
        hang()

    return inject


def _ignore_sigterm() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()


def _endless_line() -> None:
    while True:
        say(b"x" * (1 << 20))


def _close_output() -> None:
    os.close(1)
    hang()


# When the worker starts.
AT_START: dict[str, Callable[[], None]] = {
    "dies at start": lambda: sys.exit(7),
    "hangs at start": hang,
    "cannot open": _garbage(b'{"type":"failed","message":"CuPy is missing"}\n'),
}
# When the supervisor asks for the check.
AT_CHECK: dict[str, Callable[[], None]] = {
    "killed": lambda: _die(signal.SIGKILL),
    "segfault": lambda: _die(signal.SIGSEGV),
    "bus error": lambda: _die(signal.SIGBUS),
    "exits with 0": lambda: os._exit(0),
    "exits with 1": lambda: os._exit(1),
    "hangs": hang,
    "ignores sigterm": _ignore_sigterm,
    "text": _garbage(b"Segmentation fault (core dumped)\n"),
    "binary": _garbage(bytes(range(256)) + b"\n"),
    "array": _garbage(b"[1,2,3]\n"),
    "no type": _garbage(b'{"verdict":"PASS"}\n'),
    "unknown message": _garbage(b'{"type":"gossip"}\n'),
    "progress without data": _garbage(b'{"type":"progress"}\n'),
    "endless line": _endless_line,
    "closes its output": _close_output,
    "fails": _garbage(b'{"type":"failed","message":"no such symbol"}\n'),
}
AT_SELFTEST: dict[str, Callable[[], None]] = {
    "selftest killed": lambda: _die(signal.SIGKILL),
    "selftest segfault": lambda: _die(signal.SIGSEGV),
    "selftest bus error": lambda: _die(signal.SIGBUS),
    "selftest abort": lambda: _die(signal.SIGABRT),
    "selftest reports damage": _garbage(
        b'{"type":"failed","message":"uncorrectable ECC error","code":"ECC_UNCORRECTED"}\n'
    ),
    "selftest hangs": hang,
}


def _cut_result(message: dict[str, Any]) -> bytes | None:
    say(json.dumps(message).encode()[:40])
    os._exit(0)


def _changed(**changes: Any) -> _Injection:
    return lambda message: json.dumps({**message, "result": {**message["result"], **changes}}).encode() + b"\n"


def _without(key: str) -> _Injection:
    def inject(message: dict[str, Any]) -> bytes:
        result = {name: value for name, value in message["result"].items() if name != key}
        return json.dumps({**message, "result": result}).encode() + b"\n"

    return inject


def _blinded(**changes: Any) -> _Injection:
    def inject(message: dict[str, Any]) -> bytes:
        first, *rest = message["results"]
        return json.dumps({**message, "results": [{**first, **changes}, *rest]}).encode() + b"\n"

    return inject


def _wrong_before(message: dict[str, Any]) -> bytes:
    first = message["results"][0]
    real = {
        "code": "HBM_BIT_ERROR", "check": first["check"], "message": "other bits than were written",
        "gpu": first["gpu"], "evidence": {"offset_bytes": 64}, "action": "repair", "severity": "FAIL",
    }  # fmt: skip
    return _blinded(injected=False, detected=False, real=real)(message) or b""


# When the worker gives the result of the check, or of the self-test.
AT_RESULT: dict[str, _Injection] = {
    "half a result": _cut_result,
    "result of another check": _changed(name="state"),
    "result of another gpu": _changed(gpu="GPU-of-somebody-else"),
    "result with an unknown verdict": _changed(verdict="FINE"),
    "result without a verdict": _without("verdict"),
    "result with a number for a list": _changed(reasons=7),
    "failing result without a reason": _changed(verdict="FAIL"),
}
AT_SELFTEST_RESULT: dict[str, _Injection] = {
    "selftest did not see a fault": _blinded(detected=False),
    "selftest injected nothing": _blinded(injected=False),
    "selftest was wrong before a fault": _wrong_before,
    "selftest could not run": lambda _: b'{"type":"failed","message":"no such symbol"}\n',
    "selftest without faults": lambda message: json.dumps({**message, "results": []}).encode() + b"\n",
}


def _to_worker(real: subprocess.Popen[bytes], mode: str) -> None:
    """Pass requests on; inject at the one that the mode waits for."""
    assert real.stdin is not None
    for line in sys.stdin.buffer:
        operation = json.loads(line).get("op")
        inject = (AT_CHECK if operation == "check" else AT_SELFTEST if operation == "selftest" else {}).get(mode)
        if inject is not None:
            inject()
        real.stdin.write(line)
        real.stdin.flush()
    if mode == "hangs at the end":
        hang()
    real.stdin.close()


def _from_worker(line: bytes, mode: str) -> bytes | None:
    message = json.loads(line)
    injections = {"result": AT_RESULT, "selftest": AT_SELFTEST_RESULT}.get(message["type"], {})
    return injections[mode](message) if mode in injections else line


def main(mode: str, faulty: str, state: Path) -> None:
    """`once MODE` acts in the first process only; the state file remembers."""
    job = sys.stdin.buffer.readline()
    if json.loads(job)["gpu"] != faulty:
        mode = ""
    elif mode.startswith("once "):
        mode = "" if state.exists() else mode.removeprefix("once ")
        state.touch()
    AT_START.get(mode, lambda: None)()
    real = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpu_burnin.engine.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert real.stdin is not None and real.stdout is not None
    real.stdin.write(job)
    real.stdin.flush()
    threading.Thread(target=_to_worker, args=(real, mode), daemon=True).start()
    for line in real.stdout:
        passed = _from_worker(line, mode)
        if passed is not None:
            say(passed)
    if mode == "hangs at the end":
        hang()
    os._exit(real.wait())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
