"""A burn-in that the admitter asks for: looked at, refused or started, and told when it is done. Each id once."""

from __future__ import annotations

from collections.abc import Callable

from gpu_burnin.api.agent_note import Answer, Asked, NoteError, read_request
from gpu_burnin.api.evidence import parse_statement
from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.store import Store
from gpu_burnin.node.watch.kept import Memory
from gpu_burnin.node.watch.system import System
from gpu_burnin.settings.config import ALWAYS, NEVER, Config
from gpu_burnin.system.files import read_bytes
from gpu_burnin.telemetry.vitals import Vitals

RUNNING, DONE, REFUSED = "running", "done", "refused"
# The code of a run that was asked to end before it was complete.
_INTERRUPTED = "INTERRUPTED"
_MOST_WHY = 200
# How often systemd is asked whether the burn-in runs.
_LOOK_S = 5.0
# A driver call can hang for ever. Longer than any reading takes, and shorter than the admitter waits for an answer.
_NVML_DEADLINE_S = 60.0


class Requests:
    """Serves the annotation DOMAIN/request. `ask` has NVML read anew."""

    def __init__(self, config: Config, memory: Memory, system: System, ask: Callable[[], None]) -> None:
        self._config, self._memory, self._system, self._ask = config, memory, system, ask
        self._look_s = 0.0
        # A request that waits for a fresh reading of NVML, and since when (monotonic).
        self._waiting: tuple[Asked, float] | None = None
        self._refused_text: str | None = None
        # Its burn-in may have ended with the agent before this one, so that what it has left is no answer. Until the
        # Node is read.
        self._again = self._may_be_cut_short()
        # The number of the run that was cut short, until the one that comes in its place has begun.
        self._replaced: int | None = None

    def withheld(self) -> bool:
        """Whether what the newest run has left is no result, since it was cut short and comes again."""
        return self._again or (self._replaced is not None and self._replaced == self._counter())

    def take(self, text: str | None, now_s: float) -> str:
        """What the Node asks for now; a sentence for the journal, "" for nothing new."""
        if text is None:
            self._waiting, self._refused_text, self._again = None, None, False
            return ""
        try:
            asked = read_request(text)
        except NoteError as error:
            if text == self._refused_text:
                return ""
            # It has no id that could be answered, and the answer that is kept says which request was served.
            self._refused_text = text
            return f"a request cannot be read: {error}"
        answer = self._memory.kept.answer
        served = answer is not None and answer.id == asked.id
        self._again = self._again and served and not self._has_result(asked)
        if (served and not self._again) or (self._waiting and self._waiting[0].id == asked.id):
            return ""
        if asked.level not in LEVEL_NAMES:
            self._answer(asked.id, REFUSED, f"there is no level {asked.level[:40]!r}")
            return f"request {asked.id[:40]} is refused: it asks for an unknown level"
        self._waiting = (asked, now_s)
        self._ask()
        return ""

    def go_on(self, vitals: Vitals | None, trouble: str, now_s: float) -> str:
        """Start what waits, once NVML was read after it was asked for; or see whether what runs has ended.

        `trouble` is why NVML cannot be read, "" when it can. A sentence for the journal, "" for nothing new.
        """
        if self._waiting is not None:
            fresh = vitals if vitals is not None and vitals.at_s > self._waiting[1] else None
            if fresh is None and not trouble:
                if now_s - self._waiting[1] < _NVML_DEADLINE_S:
                    return ""
                request, self._waiting = self._waiting[0].id, None
                return self._refuse(request, f"NVML has not answered for {_NVML_DEADLINE_S:.0f} s: reboot the node")
            self._look_s = now_s + _LOOK_S
            return self._serve(self._waiting[0], fresh)
        answer = self._memory.kept.answer
        if answer is not None and answer.state == REFUSED and answer.id == self._memory.kept.hindered:
            return self._take_back(answer)
        if answer is None or answer.state != RUNNING or self._again or now_s < self._look_s:
            return ""
        self._look_s = now_s + _LOOK_S
        if not self._running():
            self._replaced = None
            self._answer(answer.id, DONE)
            return f"the burn-in of request {answer.id} has ended"
        return ""

    def _serve(self, asked: Asked, vitals: Vitals | None) -> str:
        self._waiting, request, level, again = None, asked.id, asked.level, self._again
        self._again = False
        # Without NVML no process can be seen, but no burn-in touches a GPU either: its verdict says what is wrong.
        if busy := used_by(vitals):
            return self._refuse(request, busy)
        if why := self._system.hindered():
            self._memory.change(hindered=request[:100])
            return self._refuse(request, why)
        try:
            if self._system.burnin().running:
                return self._refuse(request, "busy: a burn-in is under way")
            # Numbers begin anew on a node that lost its state directory, and the ledger refuses those below its own.
            Store(self._config.state_dir).raise_floor(asked.after)
            # On the disk first: an agent that is killed here must not start it again.
            self._memory.change(answer=Answer(request[:100], RUNNING), again=request if again else "")
            self._replaced = self._counter() if again else None
            # Nobody has granted this node a turn for its power waves.
            waves = ALWAYS if self._config.power_waves == ALWAYS else NEVER
            self._system.start(("--level", level, "--waves", waves))
        except GpuBurninError as error:
            return self._refuse(request, str(error))
        once_more = " once more, since it ended with the agent before this one" if again else ""
        return f"a burn-in at level {level} is started{once_more}: the admitter asks for it (request {request})"

    def _take_back(self, answer: Answer) -> str:
        """Refuse it no more once what stood in its way is over: it is served where it still stands, or asked anew."""
        if self._system.hindered():
            return ""
        self._memory.change(answer=None, hindered="")
        return f"request {answer.id} is refused no more: what stood in its way is over"

    def _refuse(self, request: str, why: str) -> str:
        self._answer(request, REFUSED, why)
        return f"request {request} is refused: {why}"

    def _answer(self, request: str, state: str, why: str = "") -> None:
        self._memory.change(answer=Answer(request[:100], state, why[:_MOST_WHY]))

    def _may_be_cut_short(self) -> bool:
        """Whether the burn-in of the request that is under way may have ended with an agent, for the first time."""
        answer, ends = self._memory.kept.answer, self._system.ends_with_agent
        if not ends or answer is None or answer.state != RUNNING or self._memory.kept.again == answer.id:
            return False
        return not self._running()

    def _counter(self) -> int | None:
        try:
            return Store(self._config.state_dir).counter()
        except GpuBurninError:
            return None

    def _has_result(self, asked: Asked) -> bool:
        """Whether there is evidence that answers it, and not of a run that was asked to end."""
        try:
            path = Store(self._config.state_dir).result().path
            found = parse_statement(read_bytes(path / EVIDENCE, follow=False))
        except (GpuBurninError, OSError):
            return False
        return found.sequence > asked.after and found.code != _INTERRUPTED

    def _running(self) -> bool:
        try:
            return self._system.burnin().running
        except GpuBurninError:
            return True  # not known


def used_by(vitals: Vitals | None) -> str:
    """Which processes use a GPU, "" for none that can be seen."""
    pids = sorted({pid for gpu in (vitals.gpus if vitals else ()) for pid in gpu.pids or ()})
    return f"busy: a process uses a GPU (pid {', '.join(map(str, pids[:4]))})" if pids else ""
