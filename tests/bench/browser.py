"""Chromium opens a page, by its own debugging protocol over a pipe (--remote-debugging-pipe: fds 3 and 4)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass(frozen=True)
class Opened:
    """Seconds from the navigation until the first screen is painted, and of a processor in the page's own process."""

    painted_s: float
    cpu_s: float


class _Pipe:
    def __init__(self, to: BinaryIO, answers: BinaryIO) -> None:
        self._to, self._answers, self._rest, self._id = to, answers, b"", 0
        self._events: list[dict[str, Any]] = []

    def _next(self) -> dict[str, Any]:
        """The next message. Raises EOFError when the browser is gone."""
        while b"\0" not in self._rest:
            data = os.read(self._answers.fileno(), 1 << 20)
            if not data:
                raise EOFError("the browser ended")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """What a command answers."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self._id:
                return dict(answer["result"])
            self._events.append(answer)

    def event(self, method: str) -> dict[str, Any]:
        """What the next event of this name says; those before it are forgotten."""
        while True:
            event = self._events.pop(0) if self._events else self._next()
            if event.get("method") == method:
                return dict(event["params"])


@contextmanager
def _browser(folder: Path) -> Iterator[_Pipe]:
    assert CHROMIUM is not None
    there, to = os.pipe()
    answers, back = os.pipe()
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--window-size=1280,900",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
    ]
    # The shell puts our ends where the browser looks for them; dash knows no descriptors above 9.
    shell = ["bash", "-c", f'exec "$@" 3<&{there} 4>&{back}', "bash", *command]
    with subprocess.Popen(shell, pass_fds=(there, back), stderr=subprocess.DEVNULL) as process:
        os.close(there)
        os.close(back)
        with os.fdopen(to, "wb") as writer, os.fdopen(answers, "rb", buffering=0) as reader:
            try:
                yield _Pipe(writer, reader)
            finally:
                process.kill()


def opened(page: Path, folder: Path, times: int) -> list[Opened]:
    """Open a page so often, each time in a new tab of one browser, at 1280 by 900."""
    found = []
    with _browser(folder) as pipe:
        for _ in range(times):
            target = pipe.call("Target.createTarget", url="about:blank")["targetId"]
            session = str(pipe.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
            pipe.call("Performance.enable", session)
            pipe.call("Page.enable", session)
            pipe.call("Page.navigate", session, url=page.absolute().as_uri())
            pipe.event("Page.loadEventFired")
            pipe.call("Page.captureScreenshot", session)
            metrics = {one["name"]: one["value"] for one in pipe.call("Performance.getMetrics", session)["metrics"]}
            found.append(Opened(metrics["Timestamp"] - metrics["NavigationStart"], metrics["ProcessTime"]))
            pipe.call("Target.closeTarget", targetId=target)
    return found
