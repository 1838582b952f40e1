"""`gpu-burnin fabric offer` and `join` with real host keys, from their options to files and exit codes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_burnin.api.rendezvous import FIRST_PORT, LAST_PORT, Nic
from gpu_burnin.checks.fabric.result import Finding, PeerFinding, WrongElement
from gpu_burnin.device.port import DeviceError
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import Outcome, View
from gpu_burnin.node.fabric.offer import free_port
from gpu_burnin.system import host
from tests.support.admission_helpers import new_host_key
from tests.support.fabric_pair import Pair
from tests.support.rendezvous_hosts import offered, result_of

WRONG = Finding(
    "wrong",
    1e9,
    (),
    (PeerFinding(0, "gpu-1", "wrong", 3, WrongElement(17, "0x4140", "0x4150", "stale"), 1e9, "on rail 0"),),
)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    made = Pair(tmp_path)
    monkeypatch.setattr("gpu_burnin.checks.fabric.run", made.run)
    return made


def test_two_nodes_meet_and_the_controller_takes_what_they_signed(pair: Pair) -> None:
    assert pair.offer().returncode == 0
    assert [pair.join(name).returncode for name in pair.keys] == [0, 0]
    data = (pair.folder / "OFFER").read_bytes()
    offer = offered(data, pair.test, pair.keys, datetime.now(UTC))
    views = {name: (pair.folder / f"{name}.view").read_bytes() for name in pair.keys}
    # gpu-1 says what it found of itself: no view of this test has that.
    verified = result_of(offer, {"gpu-2": views["gpu-2"]}, pair.keys, {name: host.boot_id() for name in pair.keys})
    assert verified.refused == ()
    (signed,) = verified.result.views
    assert signed.view == View(7, "gpu-2", signed.view.version, Outcome.OK, 1e9, signed.view.rails)
    assert [meeting.rank for meeting in pair.meetings] == [0, 1]
    first, second = pair.meetings
    assert first.secret == second.secret == offer.rendezvous.secret
    assert FIRST_PORT <= first.port <= LAST_PORT
    assert [peer.addresses for peer in second.members] == [{0: "127.0.0.1"}, {0: "127.0.0.2"}]
    assert (second.join_s, second.stall_s, second.rails) == (120.0, 10.0, (0,))
    assert {path.stat().st_mode & 0o777 for path in pair.folder.glob("*[RW2]")} <= {0o600, 0o700}
    assert (pair.folder / "OFFER").stat().st_mode & 0o777 == 0o600


def test_what_was_found_is_exit_code_1_and_stands_in_the_view(pair: Pair) -> None:
    pair.found = WRONG
    pair.offer()
    answer = pair.join("gpu-2", "OFFER", "--json")
    assert answer.returncode == 1
    assert json.loads(answer.stdout)["outcome"] == "wrong"
    statement = json.loads(json.loads((pair.folder / "gpu-2.view").read_bytes())["statement"])
    assert statement["peers"][0]["first_wrong"] == {
        "position": 17,
        "expected": "0x4140",
        "got": "0x4150",
        "kind": "stale",
    }
    assert statement["peers"][0]["detail"] == "on rail 0"


def test_an_offer_is_joined_once_and_the_first_view_stays(pair: Pair) -> None:
    pair.offer()
    pair.join("gpu-2")
    before = (pair.folder / "gpu-2.view").read_bytes()
    answer = pair.join("gpu-2", "OFFER", "--json")
    assert answer.returncode == 3
    assert json.loads(answer.stdout) == {"refused": "used", "message": answer.stderr[len("gpu-burnin: ") :].strip()}
    assert (pair.folder / "gpu-2.view").read_bytes() == before
    assert len(pair.meetings) == 1


def test_no_secret_is_printed(pair: Pair) -> None:
    answer = pair.offer("gpu-1", "TEST", "OFFER", "--json")
    document = json.loads(answer.stdout)
    assert set(document) == {"run", "test", "port", "expires_at"}
    secret = json.loads(json.loads((pair.folder / "OFFER").read_bytes())["statement"])["id"]
    joined = pair.join("gpu-2")
    assert not any(secret in text for text in (answer.stdout, answer.stderr, joined.stdout, joined.stderr))
    assert not any(secret in path.read_text() for path in (pair.folder / "gpu-2").iterdir())


def test_a_host_that_cannot_do_its_part_is_inconclusive(pair: Pair) -> None:
    pair.found = DeviceError("127.0.0.2 is not an address here; give the node's own addresses in fleet_fabric_nics")
    pair.offer()
    answer = pair.join("gpu-2")
    assert (answer.returncode, answer.stdout) == (3, "")
    assert answer.stderr.startswith("gpu-burnin: gpu-2: 127.0.0.2 is not an address here;")
    assert not (pair.folder / "gpu-2.view").exists()


def test_a_view_that_the_controller_would_not_read_is_not_signed(pair: Pair) -> None:
    pair.found = replace(WRONG, bytes_per_s=0.0)
    pair.offer()
    answer = pair.join("gpu-2")
    assert answer.returncode == 3
    assert "a bytes_per_s is no rate" in answer.stderr
    assert "this is a fault of gpu-burnin itself" in answer.stderr
    assert not (pair.folder / "gpu-2.view").exists()


def test_a_member_whose_key_was_replaced_is_refused(pair: Pair) -> None:
    pair.offer()
    (pair.folder / "gpu-2.key").unlink()
    new_host_key(pair.folder / "gpu-2.key")
    answer = pair.join("gpu-2")
    assert answer.returncode == 3
    assert "gpu-2: the key listed for this name is not the host key here" in answer.stderr
    assert not (pair.folder / "gpu-2").exists()


@pytest.mark.parametrize(
    ("name", "member", "words", "code"),
    [
        ("gpu-2", {}, "gpu-2: rank 0 of test 7 is gpu-1; run this there", 2),
        ("gpu-1", {"boot_id": "0b1c2d3e-0000-4000-8000-000000000001"}, "gpu-1: it was boot 0b1c2d3e", 3),
        ("gpu-1", {"nics": (Nic(0, "192.0.2.77"),)}, "gpu-1: no interface has the address 192.0.2.77", 2),
    ],
)
def test_an_offer_of_what_this_node_is_not(
    pair: Pair, name: str, member: dict[str, object], words: str, code: int
) -> None:
    first, second = pair.test.members
    pair.write("TEST", replace(pair.test, members=(replace(first, **member), second)).canonical())  # type: ignore[arg-type]
    answer = pair.offer(name)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert words in answer.stderr
    assert not (pair.folder / "OFFER").exists()


class TestFiles:
    """That somebody else could have put there, or that lead elsewhere."""

    def test_an_offer_that_is_a_link_is_refused(self, pair: Pair) -> None:
        pair.offer()
        (pair.folder / "LINK").symlink_to(pair.folder / "OFFER")
        answer = pair.join("gpu-2", "LINK")
        assert answer.returncode == 2
        assert "the offer cannot be read (it is a symbolic link); copy the file itself there" in answer.stderr

    def test_an_output_that_is_a_link_is_replaced(self, pair: Pair) -> None:
        for name in ("OFFER", "gpu-2.view"):
            (pair.folder / f"{name}.elsewhere").write_text("precious")
            (pair.folder / name).symlink_to(pair.folder / f"{name}.elsewhere")
        assert (pair.offer().returncode, pair.join("gpu-2").returncode) == (0, 0)
        for name in ("OFFER", "gpu-2.view"):
            assert (pair.folder / f"{name}.elsewhere").read_text() == "precious"
            assert not (pair.folder / name).is_symlink()

    @pytest.mark.parametrize("name", ["KEYS", "OFFER"])
    def test_what_others_may_write_is_not_believed(self, pair: Pair, name: str) -> None:
        pair.offer()
        (pair.folder / name).chmod(0o666)
        answer = pair.join("gpu-2")
        assert answer.returncode == 2
        assert f"{name}: " in answer.stderr
        assert "could have been written by another user; copy it into a folder of root, mode 0600" in answer.stderr

    @pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
    def test_what_belongs_to_others_is_not_believed(self, pair: Pair) -> None:
        pair.offer()
        os.chown(pair.folder / "KEYS", 54321, 54321)
        assert "could have been written by another user" in pair.join("gpu-2").stderr

    def test_a_fifo_is_not_waited_for(self, pair: Pair) -> None:
        os.mkfifo(pair.folder / "FIFO", 0o600)
        answer = pair.join("gpu-2", "FIFO")
        assert (answer.returncode, "it is not a regular file" in answer.stderr) == (2, True)

    def test_a_folder_that_is_not_there_uses_nothing_up(self, pair: Pair) -> None:
        pair.offer()
        answer = pair.join("gpu-2", "OFFER", "--output", str(pair.folder / "none/VIEW"))
        assert answer.returncode == 2
        assert "none/VIEW cannot be written; name a file in a folder that is there" in answer.stderr
        assert pair.join("gpu-2").returncode == 0

    def test_an_offer_that_nobody_would_read_is_not_written(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gpu_burnin.node.fabric.offer.MOST_BYTES", 100)
        answer = pair.offer()
        assert (answer.returncode, "larger than 100 bytes; test fewer members at once" in answer.stderr) == (2, True)
        assert not (pair.folder / "OFFER").exists()

    @pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"schema": "muster-fabric-test/v2"}'])
    def test_a_test_that_is_none_is_exit_code_2(self, pair: Pair, content: bytes) -> None:
        pair.write("TEST", content)
        answer = pair.offer()
        assert answer.returncode == 2
        assert "TEST is no test (" in answer.stderr


def test_a_port_is_free_on_every_rail() -> None:
    tried: list[tuple[str, int]] = []

    def third_is_free(address: str, port: int) -> bool:
        tried.append((address, port))
        return len({port for _, port in tried}) >= 3

    port = free_port(["192.0.2.1", "192.0.2.2"], third_is_free)
    assert tried[-2:] == [("192.0.2.1", port), ("192.0.2.2", port)]
    with pytest.raises(GpuBurninError, match=r"found no free port from 20000 to 29999; see with `ss -ltn`"):
        free_port(["192.0.2.1"], lambda address, port: False)
