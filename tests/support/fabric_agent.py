"""An agent that does nothing but its part in tests with other nodes, as a process on loopback.

`python -m tests.support.fabric_agent CONFIG FOLDER`: it watches and annotates its own Node as `gpu-burnin watch` does,
and joins by the same command, in a process of its own and not in a unit. FOLDER/fault, where it is there, is put on
purpose into what it sends: `wrong_byte`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.node.api import NodeApi, annotations_of
from gpu_burnin.node.fabric.unit import KEYS, OFFER, OUTCOME, PROGRESS, VIEW
from gpu_burnin.node.watch.cluster import Watcher, Writer
from gpu_burnin.node.watch.fabric import FabricPart
from gpu_burnin.node.watch.system import System
from gpu_burnin.settings.config import Config, load_config
from gpu_burnin.system import host

_TICK_S = 0.2


class Processes(System):
    """Starts the part in a test as a child."""

    def __init__(self, config_path: Path, fault: Path) -> None:
        self._config_path, self._fault = config_path, fault
        self._child: subprocess.Popen[bytes] | None = None

    def join(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.support.fabric_agent", "--join", str(self._config_path), str(folder)]
        with (folder / OUTCOME).open("wb") as outcome, (folder / PROGRESS).open("wb") as progress:
            fault = self._fault.read_text() if self._fault.exists() else ""
            self._child = subprocess.Popen(
                command, stdout=outcome, stderr=progress, env={**os.environ, "FABRIC_FAULT": fault}
            )

    def joining(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def end_part(self) -> bool:
        if self._child is None or self._child.poll() is not None:
            return True
        self._child.terminate()
        return False


def serve(config_path: Path, folder: Path) -> None:
    """Until it is killed."""
    config = load_config(config_path)
    part = FabricPart(
        config,
        Processes(config_path, folder / "fault"),
        host.boot_id(),
        lambda: datetime.now(UTC),
        lambda: "",
        folder / "run",
    )
    api, lock = NodeApi(config), threading.Lock()
    writer = Writer(api, lambda why, _: print(why, flush=True))
    keys = config.publish.names

    def node_came(node: dict[str, object] | None) -> None:
        writer.found(node)
        if node is not None:
            text = annotations_of(node).get(keys.fabric_test)
            with lock:
                print(part.take(None if text is None else str(text)), flush=True)

    watcher, never = Watcher(api, node_came, lambda why, _: print(why, flush=True)), threading.Event()
    for run in (watcher.run, writer.run):
        threading.Thread(target=run, args=(never,), daemon=True).start()
    while True:
        with lock:
            if said := part.go_on(time.monotonic()):
                print(said, flush=True)
            if part.known:
                writer.want({keys.fabric: part.annotation})
        time.sleep(_TICK_S)


def join(config: Config, folder: Path) -> None:
    """`gpu-burnin fabric join`, with a fault on purpose."""
    from gpu_burnin.checks.fabric import run
    from gpu_burnin.checks.fabric.meeting import Fault, Meeting
    from gpu_burnin.checks.fabric.result import Finding
    from gpu_burnin.node.fabric.join import join as join_offer
    from gpu_burnin.node.fabric.own import own_identity

    def with_fault(meeting: Meeting) -> Finding:
        return run(meeting, [Fault("wrong_byte", meeting.others[0])] if os.environ["FABRIC_FAULT"] else ())

    now = datetime.now(UTC)
    join_offer(folder / OFFER, folder / KEYS, folder / VIEW, own_identity(config), now, with_fault)


if __name__ == "__main__":
    if sys.argv[1] == "--join":
        join(load_config(Path(sys.argv[2])), Path(sys.argv[3]))
    else:
        serve(Path(sys.argv[1]), Path(sys.argv[2]))
