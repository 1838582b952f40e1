"""A shard on a worker: `python -m gpu_burnin.fleet.waves.far run ID`, between ansible-runner's transmit and process.

It reads what is transmitted, and then waits for a sign of life of the controller: where none comes, it ends all that it
began. `end ID` does so too, and `look PROJECT` says what this machine is. Nothing is kept here but wheelhouses.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import select
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from ansible_runner.streaming import Worker

from gpu_burnin.fleet.waves import leftovers, places, temporary
from gpu_burnin.fleet.waves.names import FOLDER_VARIABLE, OUTCOMES
from gpu_burnin.fleet.waves.workers import available_bytes

# The controller says that it lives every BEAT_S; here a shard ends after LEASE_S without it.
BEAT_S, LEASE_S = 10.0, 60.0
STATE = "state"


def scratch(home: str, run: str) -> str:
    """The folder of a run on the worker, by which its processes are known too."""
    return f"{home}/.cache/muster/roll/{run}"


def sockets(folder: str) -> str:
    """The folder of a run's SSH connections, whose names have to be short."""
    return f"/tmp/muster-{folder[-12:]}"


class _Far(Worker):  # type: ignore[misc]
    """Sends the files of the run in place of ansible-runner's own artefacts, each as one line."""

    def status_handler(self, status_data: Any, runner_config: Any) -> None:
        """Nothing is read by ansible-runner any more when its run starts."""
        # It has the environment of this machine.
        kept = {key: value for key, value in status_data.items() if key not in ("env", "command", "cwd")}
        if kept.get("status") == "starting":
            threading.Thread(target=_mind, args=(self.private_data_dir,), daemon=True).start()
        temporary.forget_environment(kept, runner_config)
        super().status_handler(kept, runner_config)

    def finished_callback(self, runner_obj: Any) -> None:
        """The exit code, None where the run was killed or did not begin."""
        self.event_handler({"rc": getattr(runner_obj, "rc", None)})
        super().finished_callback(runner_obj)

    def artifacts_handler(self, artifact_dir: str) -> None:
        """All files that the plays wrote into their state directory."""
        folder = Path(self.private_data_dir)
        state = folder / STATE
        with contextlib.suppress(FileNotFoundError):
            content = base64.b64encode((folder / OUTCOMES).read_bytes()).decode()
            self.event_handler({"file": OUTCOMES, "content": content})
        for path in sorted(one for one in state.rglob("*") if one.is_file() and not one.is_symlink()):
            content = base64.b64encode(path.read_bytes()).decode()
            self.event_handler({"file": str(path.relative_to(state)), "content": content})


def main() -> None:
    """One of the three."""
    what, argument = sys.argv[1:3]
    if what == "look":
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        cores, free_bytes = len(os.sched_getaffinity(0)), available_bytes(Path("/proc/meminfo"))
        found = places.Machine(places.code(Path(argument)), cores, free_bytes, files, str(Path.home()))
        print(json.dumps(vars(found)))
        return
    folder = scratch(str(Path.home()), Path(argument).name)
    if what == "end":
        _clear(folder)
        return
    if os.environ.get(FOLDER_VARIABLE) != folder:
        # So that `end` finds this process too.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, FOLDER_VARIABLE: folder})
    _run(folder)


def _run(folder: str) -> None:
    """Run what is transmitted."""
    os.umask(0o077)
    try:
        (Path(folder) / STATE).mkdir(parents=True)
        # Everybody may write beside it: whoever had made it would answer in place of the nodes.
        Path(sockets(folder)).mkdir()
        _Far(private_data_dir=folder, keepalive_seconds=BEAT_S).run()
    finally:
        _clear(folder)


def _mind(folder: str) -> None:
    """End everything when the controller is gone."""
    while select.select([0], [], [], LEASE_S)[0] and os.read(0, 4096):
        pass
    _clear(folder)
    os._exit(1)


def _clear(folder: str) -> None:
    """End all processes of a run but this one, and remove what it has written."""
    leftovers.end(FOLDER_VARIABLE, folder)
    for path in (folder, sockets(folder)):
        shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    main()
