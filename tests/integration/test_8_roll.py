"""site.yml over the lab's nodes by `muster roll`, whose executor is killed in the middle.

Only here: the plays of site.yml apart, control plane, contact, nodes and admission, on real hosts and a real ledger.
What happens at each kill, and with hosts that fail: tests/unit/fleet/waves/test_roll_kills.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_burnin.fleet.waves.book import Book
from tests.lab.fleet import LAB_INVENTORY
from tests.lab.paths import REPOSITORY
from tests.support.rolls import is_done, roll_id

from .fleet import Fleet, wait_until

pytestmark = pytest.mark.soak
SICK = "gpu-3"
# Longer than two cores take for all of it, with other work.
_MOST_S = 1500.0


def start(*options: str) -> subprocess.Popen[str]:
    """The roll, of which one failure is too much."""
    words = [str(Path(sys.executable).with_name("muster")), "roll", "site.yml", "-i", str(LAB_INVENTORY)]
    return subprocess.Popen(
        [*words, "--json", "--most-failed", "1", *options],
        cwd=REPOSITORY, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def test_a_roll_of_a_fleet_that_is_as_asked_changes_nothing_and_holds_the_sick_node(fleet: Fleet) -> None:
    book = Book(fleet.state / "roll")
    # A lab that was kept has the results of earlier rolls.
    before = roll_id(book)
    first = start("--again")
    wait_until("the first shard is done, or the roll has ended",
               lambda: is_done(book, "shard-0001", before) or first.poll() is not None, timeout_s=_MOST_S)  # fmt: skip
    assert first.poll() is None, first.communicate()[1]
    first.kill()
    first.communicate()
    done = {path: path.stat().st_mtime for path in (book.folder / "steps").glob("*/result.json")}
    assert len(done) >= 3, "control plane, contact and a shard"
    second = start()
    out, err = second.communicate(timeout=_MOST_S)
    assert second.returncode == 0, err
    assert "that run is dead" in err
    assert {path: path.stat().st_mtime for path in done} == done, "nothing that was done ran again"
    report = json.loads(out)
    outcomes = {host: one["outcome"] for host, one in report["hosts"].items()}
    assert outcomes == {"gpu-1": "done", "gpu-2": "done", SICK: "held", "system-1": "done"}
    assert report["hosts"][SICK]["why"].startswith("FAIL: ")
    recaps = [path.read_text() for path in (book.folder / "steps").glob("*/output.log")]
    changed = [line for text in recaps for line in text.splitlines() if "changed=" in line and "changed=0 " not in line]
    assert not changed
