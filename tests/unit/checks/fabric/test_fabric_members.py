"""Members of a test between nodes, each a process of its own on loopback: faults, and strangers at the door.

Only here: sockets between processes, of which one is wrong, killed, stopped or never there.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from gpu_burnin.checks.fabric import Fault, Finding, Meeting, run
from gpu_burnin.checks.fabric.auth import Credential
from gpu_burnin.checks.fabric.join import MOST_PENDING
from gpu_burnin.checks.fabric.mesh import Mesh
from gpu_burnin.checks.fabric.result import OK, STALLED, UNREACHABLE, WRONG
from gpu_burnin.device.port import DeviceError
from tests.support.clocks import PATIENCE_S, wait_until
from tests.support.fabric_members import all_find, joined_before, loopback_meeting, members, misses, wait_for

pytestmark = pytest.mark.slow


def _named(found: Finding) -> dict[str, str]:
    """Peers that something is wrong with."""
    return {peer.name: peer.outcome for peer in found.peers if peer.outcome != OK}


# --- members ---


@pytest.mark.parametrize(("ranks", "rails"), [(2, (0,)), (3, (0, 1)), (8, (0,))])
def test_members_that_are_well_find_nothing(ranks: int, rails: tuple[int, ...]) -> None:
    given = loopback_meeting(ranks, rails)
    for found in all_find(replace(given, rails=rails)):
        assert (found.outcome, found.wrong_elements, _named(found)) == (OK, 0, {}), found.detail
        assert found.bytes_per_s and found.bytes_per_s > 0
        assert [(rail.rail, rail.outcome) for rail in found.rails] == [(rail, OK) for rail in rails]
        assert all(rail.bytes_per_s for rail in found.rails)
        assert len(found.peers) == ranks - 1 and all(peer.bytes_per_s for peer in found.peers)
        # Both rings and both direct exchanges at least, each compared whole.
        assert found.operations >= 4 and found.elements > 16 << 10 >> 3


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_a_wrong_byte_on_one_link_is_named_at_its_source(collective: str) -> None:
    """From gpu-2 to gpu-3: both ends of the link know it, and a ring's other members name gpu-2 and not their
    neighbour."""
    found = all_find(loopback_meeting(4), {1: Fault("wrong_byte", 2, collective)})
    assert _named(found[2]) == {"gpu-2": WRONG} and _named(found[1]) == {"gpu-3": WRONG}
    (first,) = [peer.first_wrong for peer in found[2].peers if peer.name == "gpu-2"]
    assert first is not None
    assert int(first.expected, 16) ^ int(first.got, 16) == 0x10 << 16 and first.kind == "corrupted"
    others = {"gpu-2": WRONG} if collective != "all_to_all" else {}
    assert _named(found[0]) == _named(found[3]) == others
    assert all("what gpu-2 gave to gpu-3 was wrong" in one.detail for one in found)
    assert found[2].wrong_elements == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_member_that_is_killed_is_named_by_all_others(ranks: int) -> None:
    # Whoever hears of it by another one's word looks at its own links each twentieth of the time to stall.
    with members(loopback_meeting(ranks, stall_s=30.0)) as group:
        group.start(range(ranks), {1: Fault("dead_rank")})
        for found in group.findings(*(rank for rank in range(ranks) if rank != 1)):
            assert (found.outcome, _named(found)) == (STALLED, {"gpu-2": STALLED}), found.detail
            assert "connection" in found.detail
        group.processes[1].join(PATIENCE_S)
        assert group.processes[1].exitcode == -signal.SIGKILL


def test_a_member_that_is_stopped_is_named_by_all_others_and_blames_nobody_itself() -> None:
    given = loopback_meeting(3, stall_s=3.0)
    with members(given) as group:
        group.start(range(3), {0: Fault("stopped_rank")})
        wait_for(group.processes[0], "T")
        for found in group.findings(1, 2):
            assert (found.outcome, _named(found)) == (STALLED, {"gpu-1": STALLED}), found.detail
            assert "nothing came from it in" in found.detail
        process = group.processes[0]
        assert process.pid
        os.kill(process.pid, signal.SIGCONT)
        own = group.finding(0)
        assert (own.outcome, _named(own)) == (STALLED, {}), own.detail
        assert "this host itself did not run for" in own.detail


def test_a_member_that_never_comes_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end comes with the time to join: nothing waits for a link to stall."""

    def there(mesh: Mesh) -> bool:
        """And whether the last one knows why."""
        return misses(mesh, {0: 1, 2: 1}) and mesh.tries.get((0, 1)) != "no answer"

    joined_before(monkeypatch, there)
    given = loopback_meeting(3, join_s=1.0)
    with members(given) as group:
        group.start([0, 2])
        first, last = group.findings()
        for found in (first, last):
            assert (found.outcome, _named(found)) == (UNREACHABLE, {"gpu-2": UNREACHABLE}), found.detail
        assert "connection refused" in last.detail and first.bytes_per_s is None


def test_members_with_different_meetings_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = multiprocessing.get_context("fork").Event()

    def tried(mesh: Mesh) -> bool:
        if "authenticate" in mesh.tries.get((0, 0), ""):
            refused.set()
        return refused.is_set()

    joined_before(monkeypatch, tried)
    given = loopback_meeting(2, join_s=1.0)
    with members(given) as group:
        group.start([0])
        group.start([1], seed=8)
        found = group.findings()
    assert [one.outcome for one in found] == [UNREACHABLE] * 2
    assert "did not authenticate" in found[1].detail


def test_a_host_that_cannot_listen_says_so_and_blames_nobody() -> None:
    given = loopback_meeting(2)
    with (
        closing(socket.create_server((given.members[0].addresses[0], given.port))),
        pytest.raises(DeviceError, match="port"),
    ):
        run(given)
    elsewhere = replace(given.members[0], addresses={0: "198.18.0.1"})
    with pytest.raises(DeviceError, match=r"gpu-1 cannot listen on 198\.18\.0\.1 .*fleet_fabric_nics"):
        run(replace(given, members=(elsewhere, given.members[1])))


# --- strangers ---


@contextmanager
def _door(given: Meeting) -> Iterator[tuple[str, int]]:
    """Rank 0 listens; in the end rank 1 comes, and both must be well."""
    with members(given) as group:
        group.start([0])
        at = given.members[0].addresses[0], given.port
        wait_until(lambda: _listens(at))
        yield at
        group.start([1])
        for found in group.findings():
            assert (found.outcome, _named(found)) == (OK, {}), found.detail


def _connect(at: tuple[str, int], source: str) -> socket.socket:
    return socket.create_connection(at, PATIENCE_S, (source, 0))


def _listens(at: tuple[str, int]) -> bool:
    try:
        _connect(at, "127.77.0.99").close()
    except ConnectionRefusedError:
        return False
    return True


def _is_dropped(sock: socket.socket) -> bool:
    """Whether the other end closes it, having sent no more than an answer to a hello."""
    sock.settimeout(PATIENCE_S)
    try:
        return len(sock.recv(1000)) in (0, 64) and (sock.recv(1000) == b"")
    except ConnectionResetError:
        return True


def _hello(sender: int = 1, receiver: int = 0, nonce: bytes = bytes(32)) -> bytes:
    return struct.pack("!16sHHI32s", b"muster-fabric/1\n", sender, receiver, 0, nonce)


def test_garbage_is_dropped() -> None:
    given = loopback_meeting(2)
    with _door(given) as at:
        for junk in (
            b"GET / HTTP/1.1\r\n\r\n" * 10,
            bytes(1 << 20),
            _hello(sender=7) + bytes(32),
            _hello(0) + bytes(32),
        ):
            with closing(_connect(at, given.members[1].addresses[0])) as sock:
                try:
                    sock.sendall(junk)
                except OSError:
                    continue
                assert _is_dropped(sock)


def test_a_stranger_without_the_secret_and_a_replayed_handshake_are_dropped() -> None:
    given = loopback_meeting(2)
    right = Credential(given.secret, given.digest)
    old = right.proof(b"connects", _hello(), b"o" * 32)  # for a nonce of another time
    guesses = [Credential(b"x" * 32, given.digest).proof(b"connects", _hello(), b"o" * 32), bytes(32), old]
    with _door(given) as at:
        for proof in guesses:
            with closing(_connect(at, given.members[1].addresses[0])) as sock:
                sock.sendall(_hello())
                answer = sock.recv(64, socket.MSG_WAITALL)
                # What rank 0 has said, sent back to it, is no proof of the other side.
                sock.sendall(proof if proof != bytes(32) else answer[32:])
                assert _is_dropped(sock)


def test_many_idle_connections_keep_no_member_away() -> None:
    given = loopback_meeting(2)
    with ExitStack() as stack, _door(given) as at:
        idle = [stack.enter_context(closing(_connect(at, "127.77.0.99"))) for _ in range(40)]
        assert all(map(_is_dropped, idle))
        # From a member's own address: the oldest make room.
        own = [
            stack.enter_context(closing(_connect(at, given.members[1].addresses[0]))) for _ in range(3 * MOST_PENDING)
        ]
        assert all(map(_is_dropped, own[: 2 * MOST_PENDING]))


def test_who_listens_in_the_place_of_rank_0_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    joined_before(monkeypatch, lambda mesh: "authenticate" in mesh.tries.get((0, 0), ""))
    given = loopback_meeting(2, join_s=1.0)

    def answer(server: socket.socket) -> None:
        while True:
            try:
                sock, _ = server.accept()
                sock.sendall(bytes(64))
                sock.close()
            except OSError:
                return

    with socket.create_server((given.members[0].addresses[0], given.port)) as server, members(given) as group:
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        group.start([1])
        found = group.finding(1)
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert (found.outcome, _named(found)) == (UNREACHABLE, {"gpu-1": UNREACHABLE})
    assert "did not authenticate" in found.detail
