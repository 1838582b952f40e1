"""A test with other nodes that the admitter asks for: this node's part, and what it answers on its own Node.

All state is in the files of a folder of the request, below /run: an agent that begins anew goes on, a boot forgets.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from gpu_burnin.api.agent_note import NoteError
from gpu_burnin.api.fabric_note import (
    NO_ADDRESS,
    FabricAnswer,
    FabricRequest,
    Part,
    fabric_text,
    read_fabric_answer,
    read_fabric_request,
)
from gpu_burnin.api.rendezvous import FabricTest, keys_text, parse_test
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.fabric.addresses import AddressError, check_addresses
from gpu_burnin.node.fabric.offer import offer_of
from gpu_burnin.node.fabric.own import Own, own_identity
from gpu_burnin.node.fabric.unit import KEYS, OFFER, VIEW, why_no_view
from gpu_burnin.node.unit import RUN_DIR
from gpu_burnin.node.watch.system import System
from gpu_burnin.settings.config import Config
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.files import read_text, write_atomic

FOLDER = RUN_DIR / "fabric"
_OFFERED, _STARTED, _REFUSED = "offered", "started", "refused"
_LOOK_S = 1.0
_MOST_WHY_CHARS = 500


class FabricPart:
    """Serves the annotation DOMAIN/fabric-test. `why_busy` says why the node cannot be tested now, "" where it can.

    `known`: the own Node was read, so that it is known whether there is a test.
    """

    def __init__(
        self,
        config: Config,
        system: System,
        boot_id: str,
        now: Callable[[], datetime],
        why_busy: Callable[[], str],
        folder: Path = FOLDER,
    ) -> None:
        self._config, self._system, self._boot_id, self._now = config, system, boot_id, now
        self._why_busy, self._folder = why_busy, folder
        self.known = False
        self._text: str | None = None
        self._request: FabricRequest | None = None
        self._look_s = 0.0
        self._answer: FabricAnswer | None = None

    @property
    def annotation(self) -> str | None:
        """What the own annotation should be, None for none."""
        return None if self._answer is None else fabric_text(self._answer)

    def take(self, text: str | None) -> str:
        """What the Node asks for now; a sentence for the journal, "" for nothing new."""
        self.known = True
        if text == self._text:
            return ""
        self._text, before = text, self._request
        try:
            self._request = None if text is None else read_fabric_request(text)
        except NoteError as error:
            # It has no id that could be answered.
            self._request, self._answer = None, None
            return f"a test with other nodes cannot be read: {error}"
        self._look_s = 0.0
        if self._request is None:
            self._answer = None
            return ""
        if before is None or before.id != self._request.id:
            self._answer = None
            return f"a test with other nodes is asked for ({self._request.id})"
        return ""

    def go_on(self, now_s: float) -> str:
        """Offer, join, or see what came of it. A sentence for the journal, "" for nothing new."""
        request, answer = self._request, self._answer
        if not self.known or now_s < self._look_s or (answer is not None and answer.part in (Part.DONE, Part.REFUSED)):
            return ""
        self._look_s = now_s + _LOOK_S
        if request is None:
            self._forget()
            return ""
        try:
            folder = self._of(request)
            if not folder.is_dir() and not self._is_free(request):
                return ""
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._answer = self._next(request, folder)
        except (GpuBurninError, OSError, ValueError) as error:
            self._answer = self._refuse(request, error)
        if self._answer == answer or self._answer.part not in (Part.DONE, Part.REFUSED):
            return ""
        return f"the test with other nodes {request.id} is {self._answer.part}{_because(self._answer.why)}"

    def _forget(self) -> None:
        """End what still runs of a test that nobody asks for; then its files go, and with them its secret.

        Of what an agent before this one has left too.
        """
        # Where systemd does not say, or a file cannot go, the next look tries again.
        with contextlib.suppress(GpuBurninError, OSError):
            if self._folder.is_dir() and self._system.end_part():
                shutil.rmtree(self._folder)

    def _is_free(self, request: FabricRequest) -> bool:
        """Before the first step of a test: whether none of before runs, which is ended. Then its files go."""
        if self._now() < parse_rfc3339(request.until) and not self._system.end_part():
            return False
        if self._folder.is_dir():
            shutil.rmtree(self._folder)
        return True

    def _next(self, request: FabricRequest, folder: Path) -> FabricAnswer:
        """Do what is this node's turn; its answer. Raises GpuBurninError, OSError and ValueError."""
        refused, started = folder / _REFUSED, (folder / _STARTED).exists()
        if refused.exists():
            return read_fabric_answer(read_text(refused))
        if started and self._system.joining():
            return self._answered(request, Part.RUNNING)
        if started:
            if (folder / VIEW).exists():
                return self._answered(request, Part.DONE, view=read_text(folder / VIEW))
            self._check_addresses(parse_test(request.test.encode()))
            raise GpuBurninError(why_no_view(folder))
        if self._now() >= parse_rfc3339(request.until):
            raise GpuBurninError("the test was over before it began here; see that the clocks are right")
        if self._system.ends_with_agent:
            raise GpuBurninError("an agent in a pod takes no part in tests with other nodes")
        if busy := self._why_busy():
            raise GpuBurninError(busy)
        test, own = parse_test(request.test.encode()), own_identity(self._config)
        self._check(test, own)
        if request.offer:
            write_atomic(folder / OFFER, request.offer.encode(), 0o600)
            write_atomic(folder / KEYS, keys_text(request.keys).encode(), 0o600)
            # Before it begins: an agent that is killed here must not begin it again. The offer is good once anyway.
            write_atomic(folder / _STARTED, b"", 0o600)
            self._system.join(folder)
            return self._answered(request, Part.RUNNING)
        if test.names[0] != own.name:
            return self._answered(request, Part.READY)
        offered = folder / _OFFERED
        if not offered.exists():
            write_atomic(offered, offer_of(test, own, self._now())[1], 0o600)
        return self._answered(request, Part.READY, offer=read_text(offered))

    def _check(self, test: FabricTest, own: Own) -> None:
        member = next((one for one in test.members if one.name == own.name), None)
        if member is None:
            raise GpuBurninError(f"{own.name}: is no member of test {test.test}")
        if member.boot_id != own.boot_id:
            raise GpuBurninError(f"{own.name}: the test is of boot {member.boot_id}, and now it is {own.boot_id}")
        self._check_addresses(test)

    def _check_addresses(self, test: FabricTest) -> None:
        for one in test.members:
            if one.name == self._config.node_name:
                check_addresses(one.name, one.nics)

    def _of(self, request: FabricRequest) -> Path:
        """The folder of this request alone, for root."""
        return self._folder / "".join(char if char.isalnum() else "-" for char in request.id)[:64]

    def _refuse(self, request: FabricRequest, error: Exception) -> FabricAnswer:
        fault = NO_ADDRESS if isinstance(error, AddressError) else ""
        answer = self._answered(request, Part.REFUSED, why=_short(str(error)), fault=fault)
        # It is said, though it cannot be kept.
        with contextlib.suppress(OSError):
            folder = self._of(request)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(folder / _REFUSED, fabric_text(answer).encode(), 0o600)
        return answer

    def _answered(self, request: FabricRequest, part: Part, **more: str) -> FabricAnswer:
        return FabricAnswer(request.id, part, self._boot_id, **more)


def _short(why: str) -> str:
    text = " ".join(why.split())
    return text if len(text) <= _MOST_WHY_CHARS else f"{text[: _MOST_WHY_CHARS - 3]}..."


def _because(why: str) -> str:
    return f": {why}" if why else ""
