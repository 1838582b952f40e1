"""Nodes of one leaf, and an Ansible, of this process: what they sign is real, and each round is played at once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpu_burnin.fabric.model import Fabric, Kind, Nic, Node, Purpose, Result, Round, Settings, Test, Through
from gpu_burnin.fleet.fabric import course, results
from gpu_burnin.fleet.fabric.execute import Executor, result_of
from gpu_burnin.fleet.fabric.folder import Answer, Presence, RoundFolder
from gpu_burnin.fleet.fabric.keep import Nobody
from gpu_burnin.fleet.fabric.results import Run
from gpu_burnin.fleet.waves.names import OUTCOMES
from gpu_burnin.fleet.waves.worker import Job
from tests.support import fabric_node

RUN = "6f1d9c0e-5a6b-4c3d-8e2f-000000000001"
SETTINGS = Settings(Through.NODES, pair_s=10.0, group_s=10.0, rail_s=0.0)


class Nodes:
    """Four nodes of a leaf or more, and Ansible: each play, and what each node gives as its state says."""

    def __init__(self, folder: Path, count: int = 4) -> None:
        self.folder, self.log = folder, folder / "plays"
        names = [f"gpu-{number}" for number in range(1, count + 1)]
        self.keys = {name: fabric_node.make(folder / name) for name in names}
        self.fabric = Fabric(
            tuple(Node(name, "leaf-1", nics=(Nic(0, f"198.51.100.{at}"),)) for at, name in enumerate(names, 1))
        )
        self.boots = {name: str(uuid.uuid4()) for name in names}
        # Called at each of these moments.
        self.at: Callable[[str], None] = lambda moment: None
        self.lines: list[str] = []

    def becomes(self, **states: str) -> None:
        """What becomes of tests of nodes from here on."""
        for name, state in states.items():
            (self.folder / name.replace("_", "-") / fabric_node.STATE).write_text(state)

    def state(self, name: str) -> str:
        """What becomes of a node's tests."""
        return fabric_node.state_of(self.folder / name)

    def plays(self) -> list[str]:
        """The folders of the rounds that were played."""
        return self.log.read_text().split() if self.log.exists() else []

    def play(self, folder: Path, job: Job, hosts: Sequence[str]) -> tuple[int, Mapping[str, object]]:
        """waves.worker.play."""
        made = RoundFolder(folder)
        with self.log.open("a") as log:
            log.write(f"{folder.name}\n")
        self.at("before the offer")
        silent: dict[str, dict[str, str]] = {}
        for name in hosts:
            if self.state(name) == "unreachable by ssh":
                silent[name] = {"unreachable": "refused"}
            else:
                working = ("python (process 7)",) if self.state(name) == "busy" else ()
                made.keep_presence(name, Presence(self.boots[name], working))
        (folder / OUTCOMES).write_text(json.dumps({"hosts": silent}))
        if "look" in job.arguments:
            return 0, {}
        for path in sorted((folder / "tests").iterdir()):
            self.meet(made, int(path.name))
        return 4, {}

    def meet(self, made: RoundFolder, number: int) -> None:
        """One test."""
        agreed = made.agreed(number)
        if agreed is None:
            return
        made.keep_offer(number, fabric_node.offer(self.folder / agreed.names[0], agreed).decode())
        offer = made.offer(number)
        assert offer is not None
        for name in agreed.names:
            state = self.state(name)
            if state in ("unreachable by ssh", "silent"):
                continue
            if state == "refuses":
                made.keep_answer(name, Answer(self.boots[name], 3, "", "gpu-1: the offer expired; make it anew"))
            elif state == "killed":
                made.keep_answer(name, Answer(self.boots[name], 137))
            elif state == "reboots":
                made.keep_answer(name, Answer(str(uuid.uuid4()), None))
            else:
                view = fabric_node.view(self.folder / name, name, offer[0], made.keys(number), self.boots[name])
                made.keep_answer(name, Answer(self.boots[name], 0, view.decode()))
            self.at("during the round")

    def executor(self, keep: Nobody | None = None) -> Executor:
        """The executor of these nodes."""
        return Executor(
            RUN, self.fabric, SETTINGS, self.keys, ["hosts.yml"], self.folder / "rounds", keep or Nobody(), result_of,
            self.lines.append, play=self.play,
        )  # fmt: skip

    def test_of(self, *members: str) -> Round:
        """A round of one test."""
        return Round(1, (Test(1, Kind.PAIR, Purpose.PAIRS, members, members, rails=(0,)),))

    def one(self, *members: str) -> Result:
        """The result of one test, of gpu-1 and gpu-2 where nobody is named."""
        [result] = self.executor()(self.test_of(*(members or ("gpu-1", "gpu-2"))))
        return result

    @property
    def file(self) -> Path:
        """The file of the run."""
        return self.folder / "run.json"

    def begin(self) -> None:
        """Begin a run of all of them."""
        results.write(self.file, replace(results.begin(self.fabric, SETTINGS), id=RUN))

    def go_on(self) -> Run:
        """Go on with it to its end."""
        made, _ = course.go_on(self.file, results.read(self.file), self.executor(), self.lines.append)
        return made
