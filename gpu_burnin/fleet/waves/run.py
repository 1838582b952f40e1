"""The executor of a roll: begins its steps, waits for them, and stops where too much has failed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import forecast, plan, temporary, text
from gpu_burnin.fleet.waves.begin import merge
from gpu_burnin.fleet.waves.book import Book, alone, gates, keep_result, result_in, writing
from gpu_burnin.fleet.waves.kinds import Kind
from gpu_burnin.fleet.waves.model import HostResult, Outcome, Part, Roll, Step, StepResult
from gpu_burnin.fleet.waves.names import LOST_WHY, NO_TURN, OUTPUT, PLAY
from gpu_burnin.fleet.waves.near import Far
from gpu_burnin.fleet.waves.worker import Job, end_on_worker, write_job
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.host import busy_s

# How often a line says where the roll is.
_LINE_S = 60.0
# A step whose process was lost runs a second time, and not a third.
_MOST_LOST = 2
_LOST, _LOG = "lost", "worker.log"


@dataclass
class Executor:
    """One call's work on a roll. `say` shows a line of progress."""

    book: Book
    roll: Roll
    kind: Kind
    workers: int
    project: Path
    inventory_dir: str
    say: Callable[[str], None]
    cores: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    # A shard at a time each, beside those of this machine.
    far: tuple[Far, ...] = ()
    results: dict[str, HostResult] = field(default_factory=dict)
    # Why no further step begins; and whether a person said so, and not what came of the nodes.
    stopped: str = ""
    interrupted: bool = False

    def __post_init__(self) -> None:
        self._change = threading.Condition()
        self._running: dict[str, Step] = {}
        self._done: dict[str, StepResult] = {}
        self._faults: list[BaseException] = []
        # A shard that a worker has lost runs here, and not beside as many as this machine bears.
        self._local = threading.Semaphore(self.workers)
        self._lost: set[str] = set()
        # Steps without a process: a worker is asked to end what it may still run of them.
        self._ending: set[str] = set()
        # What a call that was killed has begun: it comes to its end, also where the roll has stopped.
        self._begun = frozenset(self.book.running())
        # Seconds of the processors while shards ran that are done: of the whole machine, and of the shards.
        self._busy_s, self._own_s = 0.0, 0.0

    def run(self) -> None:
        """Go on until all is done, or the roll is stopped. Ctrl-C stops it; a second one leaves what runs alone.

        Raises GpuBurninError where the book cannot be written, and KeyboardInterrupt.
        """
        stages = plan.stages(self.roll, self.kind)
        for step in itertools.chain.from_iterable(stages):
            if (result := self.book.result(step)) is not None:
                self._keep(step, result)
        for stage in stages:
            for step in stage:
                if step.name in self._done:
                    self._judge(step)
            left = deque(step for step in stage if step.name not in self._done)
            left = deque(sorted(left, key=lambda step: step.name not in self._begun))
            if left and self._goes_on(left[0]):
                begun = list(left)
                before_s = busy_s()
                self._stage(left, stages)
                if stage[0].part is Part.NODES:
                    self._busy_s += busy_s() - before_s
                    self._own_s += sum(self._done[step.name].cpu_s for step in begun if step.name in self._done)

    @property
    def shards(self) -> list[StepResult]:
        """The shards that are done."""
        return [result for result in self._done.values() if result.name.startswith("shard-")]

    def _goes_on(self, step: Step) -> bool:
        """Whether a step may run: after a stop those that run already, and those for what has been done.

        Nodes whose shards ran are let in. After Ctrl-C the same call goes on with a wave, and then waits for all of it.
        """
        if not self.stopped or step.name in self._begun:
            return True
        done = [one.name in self._done for one in self._shards(step.wave)]
        return step.part is Part.ADMIT and (all(done) if self.interrupted else any(done))

    def _stage(self, left: deque[Step], stages: Sequence[Sequence[Step]]) -> None:
        last = left[-1]
        far = self.far if last.part is Part.NODES else ()
        slots = [*[None] * self.workers, *far][: len(left)] if len(left) > 1 else [None]
        threads = [threading.Thread(target=self._work, args=(left, slot), daemon=True) for slot in slots]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                self._wait(threads, stages, last.wave)
            except KeyboardInterrupt:
                if self.interrupted:
                    raise
                if not self.stopped:
                    self.stopped = "Ctrl-C"
                self.interrupted = True
                self.say("; ".join(["no further step begins", *self._waits()]))
        if self._faults:
            raise self._faults[0]

    def _waits(self) -> list[str]:
        """For what a person waits who has stopped the roll, and what a second Ctrl-C does with it."""
        with self._change:
            there, here = sorted(self._ending), sorted(self._running.keys() - self._ending)
        return [
            *[f"waiting for {', '.join(here)}; Ctrl-C again leaves them running by themselves"] * bool(here),
            *[f"waiting for the worker of {', '.join(there)}; Ctrl-C again leaves that to the next call"] * bool(there),
        ]

    def _wait(self, threads: Sequence[threading.Thread], stages: Sequence[Sequence[Step]], wave: int) -> None:
        with self._change:
            while any(thread.is_alive() for thread in threads):
                self._change.wait(_LINE_S)
                running = [f"{name} ({self._play(name)})" for name in sorted(self._running)]
                if running:
                    left = "" if self.stopped else self._left(stages)
                    self.say(text.progress(self.roll, self.results, wave, running, left))

    def _work(self, left: deque[Step], far: Far | None) -> None:
        """Steps one after the other, until none is left or the roll is stopped."""
        try:
            while True:
                with self._change:
                    if not left or not self._goes_on(left[0]):
                        return
                    if far is not None and far.place.name in self._lost:
                        return
                    step = left.popleft()
                    self._running[step.name] = step
                result = self._perform(step, far)
                with self._change:
                    del self._running[step.name]
                    self._keep(step, result)
                    self._judge(step)
                    self._change.notify_all()
        except Exception as error:
            # Of any kind: a step that nobody waits for would be passed over. What runs may run on for hours.
            self.say(f"no further step begins: {error}")
            with self._change:
                self._faults.append(error)
                self.stopped = self.stopped or str(error)
                self._change.notify_all()

    def _keep(self, step: Step, result: StepResult) -> None:
        self._done[step.name] = result
        merge(self.results, result.hosts, admission=step.part is Part.ADMIT)

    def _perform(self, step: Step, far: Far | None) -> StepResult:
        """The result of a step: of the process that runs it already, or of one that is begun now."""
        while True:
            with self._local if far is None else contextlib.nullcontext():
                result, why = self._attempt(step, far)
            if result is not None:
                if result.warning:
                    self.say(f"{step.name}: {result.warning}")
                return result
            self.say(f"{step.name}: {why}")
            if far is not None and (self.book.step(step) / NO_TURN).exists():
                self.say(f"{step.name} is run here, where its nodes take a turn each; {far.place.name} goes on")
            elif far is not None:
                self._lost.add(far.place.name)
                self.say(f"{step.name} is run here, when {far.place.name} has ended it; no further one begins there")
                if (result := self._ended_there(step)) is not None:
                    return result
            far = None

    def _ended_there(self, step: Step) -> StepResult | None:
        """Wait, in no place of this machine, until its worker has ended a lost step; the result where it may run on."""
        with self._change:
            self._ending.add(step.name)
        try:
            return end_on_worker(self.book.step(step), step.name, step.hosts)
        except (GpuBurninError, OSError) as error:
            # The process that runs it here asks again, and fails alone.
            self.say(f"{step.name}: {error}")
            return None
        finally:
            with self._change:
                self._ending.discard(step.name)

    def _attempt(self, step: Step, far: Far | None) -> tuple[StepResult | None, str]:
        """The result, or how its process was lost."""
        folder = self.book.step(step)
        with alone(folder) as lock:
            if (result := result_in(folder)) is not None:
                return result, ""
            if (result := self._given_up(step, folder)) is not None:
                return result, ""
            with writing(folder):
                self._write(step, folder, far)
                for name in (NO_TURN, LOST_WHY):
                    (folder / name).unlink(missing_ok=True)
                log = (folder / _LOG).open("ab")
            with log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "gpu_burnin.fleet.waves.worker", str(folder)],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[lock],
                    # It goes on when this one is killed, and the next one waits for the lock that it has.
                    start_new_session=True,
                )  # fmt: skip
        code = process.wait()
        if (result := result_in(folder)) is not None:
            return result, ""
        if (folder / NO_TURN).exists():
            return None, (folder / NO_TURN).read_text().strip()
        where = f" on {far.place.name}" if far else ""
        why, log_name = f"its process{where} ended with {code} and no result", _LOG
        with contextlib.suppress(FileNotFoundError):
            why, log_name = (folder / LOST_WHY).read_text().strip(), OUTPUT
        with writing(folder), (folder / _LOST).open("a") as lost:
            lost.write(f"{why}\n")
        return None, f"{why}; see {folder / log_name}"

    def _given_up(self, step: Step, folder: Path) -> StepResult | None:
        """The result of a step whose processes were lost too often."""
        try:
            lost = (folder / _LOST).read_text().splitlines()
        except FileNotFoundError:
            return None
        if len(lost) < _MOST_LOST:
            return None
        temporary.clear(folder)
        why = f"{lost[-1]}, {len(lost)} times; see {folder / _LOG}"
        hosts = {host: HostResult(Outcome.FAILED, why) for host in step.hosts if step.part is Part.NODES}
        result = StepResult(step.name, 1, 0.0, 0.0, 0, hosts, "" if hosts else why)
        keep_result(folder, result)
        return result

    def _write(self, step: Step, folder: Path, far: Far | None) -> None:
        order, inventory = self.roll.order, [str(self.book.inventory)]
        if step.part is Part.ADMIT:
            shards = {one.name: self._done[one.name] for one in self._shards(step.wave) if one.name in self._done}
            inventory.append(str(self.book.keep_inventory(folder, "gates", gates(shards))))
        job = Job(
            name=step.name,
            part=step.part,
            playbook=str((self.project / order.playbook).resolve()),
            inventory=tuple(inventory),
            arguments=(
                *order.arguments,
                *(() if far else ("-e", json.dumps({"inventory_dir": self.inventory_dir}))),
                *self.kind.parts[step.part],
            ),
            project=str(self.project),
            limit=self.kind.limits.get(step.part, ""),
            controller=step.part in self.kind.beside,
            seen=self.kind.seen.get(step.part, ()),
            far=far and replace(far, swings=far.swings and far.swings.of(step.hosts)),
        )  # fmt: skip
        made = to_json(job)
        assert isinstance(made, dict)
        write_job(folder, made)

    def _judge(self, step: Step) -> None:
        """Whether a further step may begin after this one."""
        if self.stopped:
            return
        result = self._done[step.name]
        if result.error:
            self.stopped = f"{step.name}: {result.error}"
            return
        failed = [host for host, one in self.results.items() if one.outcome is Outcome.FAILED]
        self.stopped = plan.stop(failed, len(self.results), self.roll.order.most_failed)
        last = Part.ADMIT if Part.ADMIT in self.kind.parts else Part.NODES
        if not self.stopped and step.wave == 1 and step.part is last:
            self.stopped = plan.held_canaries(self.roll, self.results)

    def _shards(self, wave: int) -> list[Step]:
        every = itertools.chain.from_iterable(plan.stages(self.roll, self.kind))
        return [step for step in every if step.part is Part.NODES and step.wave == wave]

    def _left(self, stages: Sequence[Sequence[Step]]) -> str:
        """The time left in words."""
        seen, between = [], []
        ahead: dict[int, list[int]] = {}
        for step in itertools.chain.from_iterable(stages):
            result = self._done.get(step.name)
            if step.part is Part.NODES and result is not None:
                seen.append(forecast.Seen(len(step.hosts), result.wall_s, result.cpu_s))
            elif step.part is Part.NODES:
                ahead.setdefault(step.wave, []).append(len(step.hosts))
            elif step.wave and result is not None:
                between.append(result.wall_s)
        waves = len({step.wave for step in itertools.chain.from_iterable(stages) if step.name in self._done}) or 1
        others = max(0.0, self._busy_s / self._own_s - 1) if self._own_s else 0.0
        left_s = forecast.left_s(
            seen, list(ahead.values()), self.workers + len(self.far), self.cores, sum(between) / waves, others
        )
        return text.minutes(left_s)

    def _play(self, name: str) -> str:
        try:
            return (self.book.step(self._running[name]) / PLAY).read_text()
        except (OSError, KeyError):
            return "starting"
