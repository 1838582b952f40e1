"""The mixed load of the power check: products, copies to and from the host and to another GPU, all at once.

Everything a GPU can do draws power at the same time: tensor cores, memory, PCIe and NVLink. Products are verified one
by one, and the check's claim is theirs. Copies are load: they come over each other, so only the last ones, which lie in
memory at the end, can be verified, and it is counted how many of all that is. Between GPUs not yet run on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.nvlink.port import NvlinkPort, NvlinkUnavailable, nvlink_port, transfer_key
from gpu_burnin.checks.pcie.port import Kind, Moved, PciePort, pcie_port
from gpu_burnin.checks.power.load import Load
from gpu_burnin.checks.power.result import Copies, Mixture
from gpu_burnin.checks.together import Clock, Group
from gpu_burnin.device.port import Device, DeviceError, DeviceFault, given_back
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, Reason

# Products of one round: long enough that the host is never in the way, short enough to end in time, and so that the
# copies beside them are few.
_ROUND_S, _ROUND_SIMULATED_S = 0.1, 0.01
# Copies of the first round; from then on as many as fit into a round. A driver takes some thousand launches and then
# keeps the host until there is room.
_FIRST_COPIES, _MOST_COPIES = 2, 512
# From the last GPU's word that it is ready to the common start.
_LEAD_S = 0.02
# Larger copies draw no more power, but take longer to fill and to pin.
_MOST_BYTES = 64 << 20
_MOST_ERRORS = 8


@dataclass
class Traffic:
    """Copies of one kind: how many come next, what was moved in the device's seconds, and why there are none.

    `moved` counts all copies, `verified` those that were looked at and right, `wrong` those that were not.
    """

    copies: int = _FIRST_COPIES
    moved: int = 0
    bytes: int = 0
    seconds: float = 0.0
    verified: int = 0
    wrong: int = 0
    why: str | None = None

    def add(self, moved: Moved, ways: int, round_s: float) -> None:
        """Count a round of copies `ways` ways and choose the size of the next, so that it takes as long as the
        products."""
        self.moved += ways * self.copies
        self.bytes += moved.bytes
        self.seconds += moved.seconds
        if moved.seconds > 0:
            self.copies = max(1, min(_MOST_COPIES, int(self.copies * round_s / moved.seconds)))

    @property
    def result(self) -> Copies:
        """For the report."""
        return Copies(
            run=self.why is None,
            why=self.why,
            bytes_moved=self.bytes,
            bytes_per_s=self.bytes / self.seconds if self.seconds else None,
            copies_moved=self.moved,
            copies_verified=self.verified,
            copies_wrong=self.wrong,
        )


@dataclass
class Mixed:
    """What the mixed load of one GPU was. Times are seconds of CLOCK_MONOTONIC."""

    started_s: float = 0.0
    ended_s: float = 0.0
    rounds: int = 0
    products: int = 0
    busy_s: float = 0.0
    host: Traffic = field(default_factory=Traffic)
    peer: Traffic = field(default_factory=Traffic)
    errors: list[dict[str, JSON]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)

    @property
    def result(self) -> Mixture:
        """What it covered, for the report."""
        return Mixture(
            run=self.rounds > 0,
            started_s=round(self.started_s, 4),
            ended_s=round(self.ended_s, 4),
            seconds=round(self.ended_s - self.started_s, 4),
            rounds=self.rounds,
            products_verified=self.products,
            product_seconds=round(self.busy_s, 4),
            pcie=self.host.result,
            peer=self.peer.result,
        )


class MixedLoad:
    """Runs the mixed load of one GPU; every member of the group has to make the same calls."""

    def __init__(self, ctx: CheckContext, group: Group, device: Device, load: Load, clock: Clock) -> None:
        self._ctx, self._group, self._device, self._load, self._clock = ctx, group, device, load, clock
        self._size_bytes = min(ctx.shapes["transfer_bytes"], _MOST_BYTES)
        self._round_s = _ROUND_SIMULATED_S if device.simulated else _ROUND_S
        self._pcie: PciePort | None = None
        self._nvlink: NvlinkPort | None = None
        self._to: str | None = None
        self._from: str | None = None
        self.done = Mixed()

    def run(self, seconds: float, stopped: bool) -> Mixed:
        """Load for `seconds`; a GPU that is `stopped` by an earlier wrong product takes part without load."""
        with given_back(self._close, partial(self._close, abandon=True)):
            self._open()
            self.done.started_s = self._group.start_s(_LEAD_S)
            if not stopped:
                self._rounds(self.done.started_s + seconds)
            self.done.ended_s = self._clock.now()
            self._group.barrier()  # nobody looks at what another still writes
            self._verify(stopped)
            if self._nvlink is not None:
                self._nvlink.detach_all()
            self._group.barrier()  # nobody takes away what another still has mapped
        return self.done

    # --- opening ---

    def _open(self) -> None:
        try:
            self._pcie = pcie_port(self._device)
            self._pcie.open(self._size_bytes)
            self._pcie.fill(self._ctx.seed)
        except DeviceFault:
            raise  # the GPU itself: no reason to go on without copies
        except DeviceError as error:
            self._no_pcie(str(error))
        self._open_peers()

    def _no_pcie(self, why: str) -> None:
        self.done.host.why = why
        if self._pcie is not None:
            self._pcie.close()
            self._pcie = None

    def _open_peers(self) -> None:
        """A ring: each GPU writes to the next. All members make the two exchanges, whatever comes of them."""
        members, own = self._group.members, self._group.uuid
        rank = self._group.rank
        self._to, self._from = members[(rank + 1) % len(members)], members[rank - 1]
        handle: JSON = None
        if any(unit.instance is not None for unit in self._ctx.gpus):
            self.done.peer.why = "GPUs in MIG mode reach no other GPU"
        elif len(members) > 1:
            try:
                self._nvlink = nvlink_port(self._device)
                handle = self._nvlink.export(own, tuple(dict.fromkeys((self._to, self._from))), self._size_bytes)
            except DeviceFault:
                raise
            except DeviceError as error:
                self.done.peer.why = str(error)
        handles = self._group.gather(handle)
        ready = False
        if len(members) == 1:
            self.done.peer.why = self.done.peer.why or "there is no other GPU in this run"
        elif self._nvlink is not None and handle is not None:
            ready = self._attach(handles.get(self._to), handles.get(self._from))
        # A GPU that cannot write must not be waited for by the one that verifies.
        writers = self._group.gather(ready)
        if not ready or writers.get(self._from) is not True:
            self._from = None
        if not ready:
            self._to = None

    def _attach(self, to: JSON, came_from: JSON) -> bool:
        assert self._nvlink is not None and self._to is not None and self._from is not None
        if to is None or came_from is None:
            self.done.peer.why = "a GPU beside this one in the ring takes no part"
            return False
        seed, own = self._ctx.seed, self._group.uuid
        try:
            self._nvlink.attach(self._to, to)
            self._nvlink.fill(self._to, transfer_key(seed, own, self._to, 0))
            self._nvlink.clear(self._from)
        except NvlinkUnavailable as error:
            self.done.peer.why = str(error)
            return False
        return True

    # --- load ---

    def _rounds(self, until_s: float) -> None:
        self._clock.until(self.done.started_s)
        while self.done.rounds == 0 or (self._clock.now() < until_s and not self.done.reasons):
            self._ctx.progress({"phase": "mixed load"})
            self._products(injects=self.done.rounds == 0)
            if self._pcie is not None:
                self.done.host.add(self._pcie.finish(), 2, self._round_s)
            if self._nvlink is not None and self._to is not None:
                self.done.peer.add(self._nvlink.finish(), 1, self._round_s)
            self.done.rounds += 1

    def _begin_copies(self) -> None:
        """After the products, which wait for copies that were begun before them: an H200 drew 570 W then, 705 W so.

        Why is not proven: probably since the stream of products comes from a read by the engine of copies, and what
        follows stands behind all that waits there.
        """
        if self._pcie is not None:
            self._pcie.begin("duplex", self.done.host.copies, load=True)
        if self._nvlink is not None and self._to is not None:
            self._nvlink.begin(self._to, "write", self.done.peer.copies)

    def _products(self, injects: bool) -> None:
        """One round of products with copies beside; faults are injected here too, for a run that has no waves."""
        faults = ("bitflip",) if injects and "wrong_edge" in self._ctx.inject else ()
        faults = ("skipped_launch",) if injects and "idle" in self._ctx.inject else faults
        burst = self._load.burst(self._load.count_for(self._round_s), faults, enqueued=self._begin_copies)
        self.done.products += burst.products - len(burst.wrong)
        self.done.busy_s += burst.seconds
        if burst.wrong:
            wrong = next((one for one in burst.wrong if one.outcome.evidence is not None), burst.wrong[0])
            entries, reason = self._load.reason(wrong, "under mixed load", {"phase": "mixed"})
            self.done.errors += entries
            self.done.reasons.append(reason)

    # --- verification ---

    def _verify(self, stopped: bool) -> None:
        """The copies that lie in memory now; then a small batch with the host, where a fault can still be injected."""
        if not stopped and self._pcie is not None:
            seen = self._pcie.verify()
            if "wrong_transfer" in self._ctx.inject:
                self._pcie.inject(Kind.CORRUPTED, self._ctx.seed)
            self._pcie.begin("duplex", _FIRST_COPIES)
            self.done.host.bytes += self._pcie.finish().bytes
            self.done.host.moved += 2 * _FIRST_COPIES
            seen += self._pcie.verify()
            self.done.host.verified, self.done.host.wrong = seen.copies - len(seen.wrong), len(seen.wrong)
            entries: list[dict[str, JSON]] = [{"phase": "mixed", **one.to_json()} for one in seen.wrong if one.kind]
            if entries:
                words = f"{len(seen.wrong)} of {seen.copies} copies between host and GPU arrived wrong under mixed load"
                self._wrong("PCIE_DATA", entries, words)
        # A GPU that made no load wrote nothing; its neighbour cannot know, so all are asked.
        wrote = self._group.gather(not stopped and self._to is not None)
        if self._nvlink is None or self._from is None or wrote.get(self._from) is not True:
            return
        key = transfer_key(self._ctx.seed, self._from, self._group.uuid, 0)
        pieces = self._nvlink.verify(self._from, key)
        self.done.peer.verified, self.done.peer.wrong = int(not pieces), int(bool(pieces))
        found: list[dict[str, JSON]] = [
            {"peer": self._from, "direction": "write", "phase": "mixed", **one.to_json()} for one in pieces
        ]
        if found:
            self._wrong(
                "TRANSFER_MISMATCH", found, f"what GPU {self._from} wrote into this GPU arrived wrong under mixed load"
            )

    def _wrong(self, code: str, entries: list[dict[str, JSON]], words: str) -> None:
        self.done.errors += entries[:_MOST_ERRORS]
        self.done.reasons.append(make_reason(code, "power", words, gpu=self._group.uuid, details=entries[0]))

    def _close(self, abandon: bool = False) -> None:
        """Give back; `abandon` after an error on the way, when another worker may still have the memory mapped."""
        try:
            if self._nvlink is not None and abandon:
                self._nvlink.abandon()
            elif self._nvlink is not None:
                self._nvlink.close()
        finally:
            if self._pcie is not None:
                self._pcie.close()
