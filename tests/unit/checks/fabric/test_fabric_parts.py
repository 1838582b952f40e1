"""Parts of a test between nodes that need no second process: the source of a wrong result, sizes, handshake, frames."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks.fabric import collectives, selftest
from gpu_burnin.checks.fabric.audit import Culprit, Facts, culprits
from gpu_burnin.checks.fabric.auth import Credential, Refused, Way, accept, connect
from gpu_burnin.checks.fabric.collectives import Compared, stripes
from gpu_burnin.checks.fabric.link import MOST_MESSAGE_BYTES, Frame, Link
from gpu_burnin.checks.fabric.meeting import Meeting, check
from gpu_burnin.checks.fabric.mesh import Ended, Mesh
from gpu_burnin.checks.fabric.result import OUTCOMES, STALLED
from gpu_burnin.checks.fabric.session import Report, next_size, parts
from gpu_burnin.checks.fabric.tally import Rates, Tally
from gpu_burnin.checks.nccl.operations import operation
from gpu_burnin.device.port import DeviceError
from gpu_burnin.fabric.model import Outcome
from tests.support.fabric_members import SECRET, loopback_meeting


def _run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(30):
            return await work()

    return asyncio.run(limited())


def test_outcomes_are_those_of_the_plan() -> None:
    assert set(OUTCOMES) == {outcome.value for outcome in Outcome}


# --- the source of a wrong result ---


def _sum_facts(ranks: int, chunk: int, step: int) -> list[Facts]:
    """Of one chunk of a sum that is wrong from one hop on (0: the first), at all that it comes to afterwards."""
    partial, result = set[int](), set[int]()
    for number in range(2 * (ranks - 1)):
        if number >= step:
            taker = (chunk + number + 1) % ranks
            (partial if number < ranks - 1 else result).add(taker)
    if step < ranks - 1:
        result.add((chunk - 1) % ranks)  # it adds to what came to it
    return [Facts((chunk,) * (rank in partial), (chunk,) * (rank in result)) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_each_hop_of_a_sum_names_who_gave_it(ranks: int) -> None:
    for chunk in range(ranks):
        for step in range(2 * (ranks - 1)):
            giver = chunk + step
            ((found, culprit),) = culprits("all_reduce", ranks, _sum_facts(ranks, chunk, step))
            assert (found, culprit) == (chunk, Culprit(giver % ranks, (giver + 1) % ranks)), (chunk, step)


def test_a_member_that_adds_wrongly_itself_is_named_itself() -> None:
    facts = [Facts(result=(1,)) for _ in range(3)]
    assert list(culprits("all_reduce", 3, facts)) == [(1, Culprit(0, 0))]


def test_each_hop_of_a_block_names_who_gave_it() -> None:
    """Block 2 of four goes 2, 3, 0, 1."""
    facts = [Facts(result=(2,)), Facts(result=(2,)), Facts(), Facts()]
    assert list(culprits("all_gather", 4, facts)) == [(2, Culprit(3, 0))]
    assert list(culprits("all_to_all", 4, [Facts(), Facts(result=(0, 3)), Facts(), Facts(result=(0,))])) == [
        (0, Culprit(0, 1)), (3, Culprit(3, 1)), (0, Culprit(0, 3)),
    ]  # fmt: skip
    assert list(culprits("all_gather", 4, [Facts()] * 4)) == []


# --- sizes and shares ---


def test_both_rings_run_and_then_grow_while_there_is_time() -> None:
    assert next_size(1, 1024, 4096, 9.0, -1.0) == 1024  # the second ring runs whatever the time
    assert next_size(2, 1024, 4096, 0.1, 1.0) == 4096
    assert next_size(2, 1024, 2000, 0.1, 1.0) == 2000
    assert next_size(2, 1024, 4096, 0.3, 1.0) == 1024  # four times as much would not end in time
    assert next_size(2, 1024, 4096, 0.3, 0.3) == 0
    assert next_size(3, 1024, 4096, 0.1, 1.0) == 1024  # the other ring of this size first


def test_rails_share_the_time_and_one_that_cannot_be_used_leaves_the_rest_alone() -> None:
    given = loopback_meeting(2, (0, 1, 2), rails=(0, 2))
    shares = [(part.rails, part.until_share) for part in parts(given, (0, 1, 2), Tally())]
    assert shares == [((0, 1, 2), 0.5), ((0,), 0.75), ((2,), 1.0)]
    assert [(part.rails, part.until_share) for part in parts(given, (1, 2), Tally())] == [((2,), 1.0)]
    single = loopback_meeting(2, rails=(0,))
    assert [(part.rails, part.until_share) for part in parts(single, (0,), Tally())] == [((0,), 1.0)]


def test_every_byte_goes_over_one_rail_in_whole_vectors() -> None:
    for size in (16, 32, 80, 1040):
        found = stripes(size, (0, 1, 5))
        assert [i for _, part in found for i in range(part.start, part.stop)] == list(range(size))
        assert all(part.start % 16 == 0 for _, part in found)


def test_the_bus_bandwidth_is_that_of_the_largest_size() -> None:
    rates = Rates()
    assert rates.bytes_per_s is None
    for size, seconds in ((1024, 9.0), (4096, 1.0), (4096, 3.0), (1024, 9.0)):
        rates.add(operation("all_reduce", "fp32", size, 4, 0, 1), seconds)
    assert rates.bytes_per_s == 2 * 4096 * 1.5 / 4


def test_a_comparison_that_misses_a_planted_fault_ends_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run(lambda: selftest.selftest(3, 1, 5)) == 12
    assert _run(lambda: selftest.selftest(300, 7, 5)) == 12

    async def blind(op: Any, got: Any) -> Compared:
        found = await collectives.compared(op, got)
        return Compared(replace(found.outcome, wrong=0, recorded=()), {})

    monkeypatch.setattr(selftest, "compared", blind)
    with pytest.raises(DeviceError, match="this host's own comparison of all_to_all"):
        _run(lambda: selftest.selftest(2, 0, 5))


# --- a meeting ---


@pytest.mark.parametrize(("changes", "why"), [
    ({"rank": 2}, "rank 2 of 2 members is none"), ({"secret": b"short"}, "the secret has 5 bytes"),
    ({"rails": (3,)}, "no addresses on the same rails"), ({"seconds": 0.0}, "not above 0"),
])  # fmt: skip
def test_a_meeting_that_cannot_be_held_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(DeviceError, match=why):
        check(loopback_meeting(2, **changes))


def test_more_members_than_files_can_be_open_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check(loopback_meeting(200, (0, 1)))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (500, 4096))
    with pytest.raises(DeviceError, match="200 members on 2 rails need more open files"):
        check(loopback_meeting(200, (0, 1)))


@pytest.mark.parametrize(("address", "why"), [
    ("127.77.0.1", "gpu-1 and gpu-2 have the same address"), ("gpu-2.example", "which is no IP address"),
])  # fmt: skip
def test_addresses_that_are_none_or_twice_are_refused(address: str, why: str) -> None:
    given = loopback_meeting(2)
    with pytest.raises(DeviceError, match=why):
        check(replace(given, members=(given.members[0], replace(given.members[1], addresses={0: address}))))


# --- the handshake ---

FIRST_WAY = Way(1, 0, 0)


def _meet(one: Meeting, other: Meeting, way: Way = FIRST_WAY, rail: int = 0) -> Any:
    """Both sides over TCP on loopback: what each came to."""

    async def work() -> Any:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
            far, _ = server.accept()
            with far:
                near.setblocking(False)
                far.setblocking(False)

                async def ends(side: Awaitable[Any], sock: socket.socket) -> Any:
                    try:
                        return await side
                    except Refused:
                        sock.close()
                        raise

                return await asyncio.gather(
                    ends(connect(near, way, Credential(one.secret, one.digest)), near),
                    ends(accept(far, 0, rail, {1: "127.0.0.1"}, Credential(other.secret, other.digest)), far),
                    return_exceptions=True,
                )

    return _run(work)


def test_both_sides_prove_themselves_or_neither_goes_on() -> None:
    given = loopback_meeting(2)
    assert _meet(given, given) == [None, Way(1, 0, 0)]
    for other in (replace(given, secret=b"s" * 32), replace(given, seed=8), replace(given, seconds=9.0)):
        assert [type(found) for found in _meet(given, other)] == [Refused, Refused]
    for way in (Way(2, 0, 0), Way(1, 1, 0), Way(1, 0, 1), Way(0, 0, 0)):
        assert [type(found) for found in _meet(given, given, way)] == [Refused, Refused]


def test_a_proof_is_of_one_side_nonce_and_meeting() -> None:
    one = Credential(SECRET, b"d" * 32)
    proofs = {
        one.proof(b"listens", b"h", b"n"), one.proof(b"connects", b"h", b"n"), one.proof(b"listens", b"h", b"m"),
        one.proof(b"listens", b"g", b"n"), Credential(SECRET, b"e" * 32).proof(b"listens", b"h", b"n"),
    }  # fmt: skip
    assert len(proofs) == 5


# --- frames from a member that is broken ---


@pytest.mark.parametrize(("sent", "why"), [
    (struct.pack("!BQQ", 9, 0, 0), "no message"), (struct.pack("!BQQ", Frame.BEAT, 0, 1), "no message"),
    (struct.pack("!BQQ", Frame.MESSAGE, 0, MOST_MESSAGE_BYTES + 1), "no message"),
    (struct.pack("!BQQ", Frame.DATA, 5, 1 << 40), "bytes where 16 were due"), (b"", "closed its connection"),
])  # fmt: skip
def test_what_is_no_frame_ends_the_link_and_nothing_more_is_read(sent: bytes, why: str) -> None:
    async def work() -> str:
        near, far = socket.socketpair()
        near.setblocking(False)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        link = Link(near, 0, 1, lambda *_: None, lambda _, said: ended.set_result(said))
        link.expect(5, np.zeros(16, dtype=np.uint8))
        far.sendall(sent)
        far.shutdown(socket.SHUT_WR)
        try:
            return await ended
        finally:
            await link.close()
            far.close()

    assert why in _run(work)


@pytest.mark.parametrize("payload", [
    b"", b"[]", b"{}", b'{"kind": "value"}', b'{"kind": "all", "step": 1, "all": 5, "next": 0}', b"[" * 100_000,
    b'{"kind": "all", "step": 1, "all": [{"wrong": 1}], "next": 0}',
    b'{"kind": "all", "step": 1, "all": [], "next": 0}',
])  # fmt: skip
def test_a_message_that_is_none_is_its_senders_fault_and_raises_nothing(payload: bytes) -> None:
    async def work() -> dict[int, str]:
        near, far = socket.socketpair()
        near.setblocking(False)
        mesh = Mesh(replace(loopback_meeting(2), rank=1))
        mesh.add(near, 0, 0)
        mesh.joining = False
        far.sendall(struct.pack("!BQQ", Frame.MESSAGE, 0, len(payload)) + payload)
        try:
            with pytest.raises(Ended):
                await mesh.agree(Report(0, 0.0), Report)
            return {rank: loss.outcome for rank, loss in mesh.lost.items()}
        finally:
            await mesh.close()
            far.close()

    assert _run(work) == {0: STALLED}
