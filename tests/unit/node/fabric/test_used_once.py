"""An offer is good once: for whichever process, after whatever restart, and though the clock was set back."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from datetime import datetime, timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from gpu_burnin.api.fabric_documents import RendezvousError, Why
from gpu_burnin.api.rendezvous import rendezvous_of
from gpu_burnin.node.fabric import used
from tests.support.clocks import PATIENCE_S
from tests.support.rendezvous_hosts import MADE, NOW, TEST

LATER = rendezvous_of(TEST, NOW + timedelta(hours=1), 20002, b"n" * 32)


def test_a_second_use_is_refused_also_after_a_reboot(tmp_path: Path) -> None:
    """The file is all that a reboot leaves, and all that there is."""
    used.use(tmp_path / "state", MADE, NOW)
    assert MADE.id.encode() not in (tmp_path / "state" / used.FILE).read_bytes()
    with pytest.raises(RendezvousError, match="gpu-1: this node has joined the offer before, and each is good once"):
        used.use(tmp_path / "state", MADE, NOW + timedelta(seconds=30))
    used.use(tmp_path / "state", LATER, NOW + timedelta(hours=1))


def _use(state: Path, barrier: Barrier) -> None:
    barrier.wait(PATIENCE_S)
    try:
        used.use(state, MADE, NOW)
    except RendezvousError as error:
        raise SystemExit(3 if error.why is Why.USED else 4) from None


def test_of_processes_at_once_one_may_use_it(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("fork")
    barrier = processes.Barrier(4)
    racing = [processes.Process(target=_use, args=(tmp_path, barrier)) for _ in range(4)]
    for one in racing:
        one.start()
    for one in racing:
        one.join(PATIENCE_S)
    assert sorted(one.exitcode or 0 for one in racing) == [0, 3, 3, 3]


def test_an_id_is_kept_until_no_clock_takes_the_offer_any_more(tmp_path: Path) -> None:
    used.use(tmp_path, MADE, NOW)
    used.use(tmp_path, rendezvous_of(TEST, NOW, 20002, b"a" * 32), MADE.deadline)
    assert len(json.loads((tmp_path / used.FILE).read_text())["until"]) == 2
    used.use(tmp_path, LATER, NOW + timedelta(hours=1))
    assert len(json.loads((tmp_path / used.FILE).read_text())["until"]) == 1
    # The clock is set back: the offer is fresh again, and its id is forgotten.
    with pytest.raises(RendezvousError, match="joined the offer before"):
        used.use(tmp_path, MADE, NOW)


def _damaged(text: str) -> Callable[[Path], object]:
    return lambda state: (state / used.FILE).write_text(text)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_damaged(""), "is damaged .* remove the file after 62 minutes"),
        (_damaged('{"until": {}, "until": {}}'), "a key appears twice"),
        (_damaged('{"forgotten_to": "soon", "until": {}}'), "it is no time such as"),
        (_damaged('{"schema": "muster-fabric-used/v2", "until": {}}'), "schema"),
        (lambda state: (state / used.FILE).symlink_to("/dev/null"), "cannot be noted"),
        (lambda state: (state / f"{used.FILE}.lock").symlink_to(state / "elsewhere"), "cannot be noted"),
        (lambda state: (state / used.FILE).mkdir(), "cannot be noted"),
    ],
)
def test_what_cannot_be_noted_is_not_used(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    spoil(tmp_path)
    with pytest.raises(RendezvousError, match=words) as caught:
        used.use(tmp_path, MADE, NOW)
    assert caught.value.why is Why.USED
    assert not (tmp_path / "elsewhere").exists()


def test_a_process_that_keeps_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(fd: int, wait_s: float) -> None:
        raise BlockingIOError

    monkeypatch.setattr(used, "lock", held)
    with pytest.raises(RendezvousError, match=r"fabric-used\.lock is held by another process for 5 s"):
        used.use(tmp_path, MADE, datetime.now(NOW.tzinfo))
