"""Members in processes of their own meet over TCP by an offer, while one of them is asked to join it twice.

Only here: signed files, one use and the collectives together, as on hosts.
"""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_burnin.api.fabric_documents import RendezvousError, Why
from gpu_burnin.api.fabric_view import Outcome
from gpu_burnin.checks import fabric
from gpu_burnin.node.fabric.join import join
from gpu_burnin.node.fabric.own import own_identity
from gpu_burnin.settings.config import load_config
from tests.support.clocks import PATIENCE_S
from tests.support.fabric_pair import Pair
from tests.support.rendezvous_hosts import offered, result_of


def _join(folder: Path, name: str, view: str) -> None:
    own = own_identity(load_config(folder / f"{name}.yaml"))
    try:
        join(folder / "OFFER", folder / "KEYS", folder / view, own, datetime.now(UTC), fabric.run)
    except RendezvousError as error:
        raise SystemExit(3 if error.why is Why.USED else 4) from None


@pytest.mark.slow
def test_members_meet_once_and_each_signs_that_all_was_right(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    test = replace(pair.test, seconds=0.3, size_bytes=1 << 16)
    pair.write("TEST", test.canonical())
    assert pair.offer().returncode == 0
    processes = multiprocessing.get_context("fork")
    asked = [("gpu-1", "1.view"), ("gpu-2", "2a.view"), ("gpu-2", "2b.view")]
    joining = [processes.Process(target=_join, args=(tmp_path, name, view)) for name, view in asked]
    for one in joining:
        one.start()
    for one in joining:
        one.join(PATIENCE_S)
    assert joining[0].exitcode == 0
    assert sorted(one.exitcode or 0 for one in joining[1:]) == [0, 3]
    (second,) = tmp_path.glob("2?.view")
    offer = offered((tmp_path / "OFFER").read_bytes(), test, pair.keys, datetime.now(UTC))
    views = {"gpu-1": (tmp_path / "1.view").read_bytes(), "gpu-2": second.read_bytes()}
    verified = result_of(offer, views, pair.keys, {})
    assert verified.refused == ()
    assert {one.view.member: one.view.outcome for one in verified.result.views} == dict.fromkeys(pair.keys, Outcome.OK)
    assert [[peer.name for peer in view.peers] for view in verified.found] == [["gpu-2"], ["gpu-1"]]
