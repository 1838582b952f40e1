"""A node's part in a test that the admitter asks for on its Node: offered, joined once, told, and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.api import rendezvous
from gpu_burnin.api.fabric_documents import parse_signed, parsed
from gpu_burnin.api.fabric_note import NO_ADDRESS, FabricAnswer, FabricRequest, Part, fabric_text, read_fabric_answer
from gpu_burnin.api.rendezvous import FabricTest, Member, Nic
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.fabric import addresses, unit
from gpu_burnin.node.fabric.unit import KEYS, OFFER, OUTCOME, VIEW, command
from gpu_burnin.node.watch.fabric import FabricPart
from gpu_burnin.node.watch.system import System
from gpu_burnin.settings.config import Config
from gpu_burnin.system import host
from tests.support.admission_helpers import new_host_key
from tests.support.rendezvous_hosts import RUN, TEST, TWO

NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)


class Unit(System):
    """systemd with the unit of a test."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.runs = False
        self.refuses = ""
        self.ends = True
        self.folders_at_end: list[bool] = []

    def join(self, folder: Path) -> None:
        if self.refuses or self.runs:
            raise GpuBurninError(self.refuses or "the unit was already loaded")
        self.folders.append(folder)
        self.runs = True

    def joining(self) -> bool:
        return self.runs

    def end_part(self) -> bool:
        """As unit.end: what runs is stopped, and a later look finds it gone."""
        if not self.runs:
            return True
        self.folders_at_end.append(self.folders[-1].is_dir())
        self.runs = not self.ends
        return False


@dataclass
class Bench:
    """gpu-1 with a key of its own, asked for a test with gpu-2."""

    folder: Path
    unit: Unit = field(default_factory=Unit)
    now: datetime = NOW
    now_s: float = 0.0
    busy: str = ""

    def __post_init__(self) -> None:
        self.key = " ".join(new_host_key(self.folder / "key").split()[:2])
        self.config = Config(node_name="gpu-1", host_key=self.folder / "key", state_dir=self.folder / "state")
        self.restart()

    def restart(self) -> None:
        """Another agent on the same machine."""
        self.part = FabricPart(
            self.config, self.unit, host.boot_id(), lambda: self.now, lambda: self.busy, self.folder / "run"
        )

    @property
    def test(self) -> FabricTest:
        mine = Member("gpu-1", host.boot_id(), (Nic(0, "127.0.0.1"),))
        return replace(TEST, rails=(), members=(mine, replace(TWO.member, nics=(Nic(0, "127.0.0.2"),))))

    def request(self, test: FabricTest | None = None, offer: str = "") -> str:
        until = "2026-11-28T12:03:00Z"
        text = (test or self.test).canonical().decode()
        keys = {"gpu-1": self.key, "gpu-2": TWO.key}
        return fabric_text(FabricRequest(RUN, "2026-11-28T12:00:00Z", until, text, keys, offer))

    def tick(self, text: str | None) -> FabricAnswer | None:
        self.part.take(text)
        self.now_s += 10.0
        self.part.go_on(self.now_s)
        return read_fabric_answer(self.part.annotation) if self.part.annotation is not None else None

    def folders(self) -> list[Path]:
        return list((self.folder / "run").glob("*"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def of(answer: FabricAnswer | None) -> FabricAnswer:
    assert answer is not None and answer.id == RUN and answer.boot_id == host.boot_id()
    return answer


def why(answer: FabricAnswer | None) -> str:
    assert of(answer).part is Part.REFUSED
    return of(answer).why


def test_rank_0_offers_once_and_others_say_that_they_are_there(bench: Bench) -> None:
    first = of(bench.tick(bench.request()))
    signed = parse_signed(first.offer.encode())
    made = parsed(rendezvous.Rendezvous, rendezvous.SCHEMA, signed.statement)
    assert first.part is Part.READY and made.same_terms(bench.test)
    bench.restart()
    assert of(bench.tick(bench.request())).offer == first.offer
    other = replace(bench.test, members=bench.test.members[::-1])
    bench.tick(None)
    assert (of(bench.tick(bench.request(other))).part, of(bench.tick(bench.request(other))).offer) == (Part.READY, "")
    assert not bench.unit.folders


def test_it_joins_once_tells_its_view_and_forgets_all_at_the_end(bench: Bench) -> None:
    asked = bench.request(offer="the offer")
    assert of(bench.tick(asked)).part is Part.RUNNING
    (folder,) = bench.unit.folders
    assert (folder / OFFER).read_text() == "the offer" and (folder / OFFER).stat().st_mode & 0o777 == 0o600
    assert (folder / KEYS).read_text() == f"gpu-1 {bench.key}\ngpu-2 {TWO.key}\n"
    assert folder.stat().st_mode & 0o777 == 0o700
    bench.restart()
    assert of(bench.tick(asked)).part is Part.RUNNING
    (folder / VIEW).write_text("the view")
    bench.unit.runs = False
    done = of(bench.tick(asked))
    assert (done.part, done.view, len(bench.unit.folders)) == (Part.DONE, "the view", 1)
    bench.restart()
    assert of(bench.tick(asked)).view == "the view"
    assert bench.tick(None) is None and bench.folders() == []


OTHER_RUN = RUN.replace("0001", "0002")


def test_a_withdrawn_test_is_stopped_before_its_folder_goes(bench: Bench) -> None:
    bench.tick(bench.request(offer="the offer"))
    assert bench.tick(None) is None
    assert not bench.unit.runs and bench.unit.folders_at_end == [True] and len(bench.folders()) == 1
    assert bench.tick(None) is None and bench.folders() == []


def test_an_agent_that_begins_anew_ends_what_nobody_asks_for_any_more(bench: Bench) -> None:
    bench.tick(bench.request(offer="the offer"))
    bench.restart()
    # Before the own Node was read nothing is known of it.
    bench.part.go_on(5.0)
    assert bench.unit.runs
    for _ in range(2):
        bench.tick(None)
    assert not bench.unit.runs and bench.folders() == []


def test_a_test_that_cannot_be_read_ends_the_one_before(bench: Bench) -> None:
    bench.tick(bench.request(offer="the offer"))
    for _ in range(2):
        assert bench.tick("{") is None
    assert not bench.unit.runs and bench.folders() == []


@pytest.mark.parametrize("withdrawn", [True, False])
def test_an_older_test_that_runs_is_waited_for_and_the_next_one_is_not_refused(bench: Bench, withdrawn: bool) -> None:
    bench.tick(bench.request(offer="the offer"))
    bench.unit.ends = False
    if withdrawn:
        bench.tick(None)
    asked = bench.request().replace(RUN, OTHER_RUN)
    assert bench.tick(asked) is None and bench.tick(asked) is None
    bench.unit.ends = True
    assert bench.tick(asked) is None and not bench.unit.runs
    answer = bench.tick(asked)
    assert answer is not None and (answer.id, answer.part) == (OTHER_RUN, Part.READY)
    assert [one.name for one in bench.folders()] == [OTHER_RUN]
    offered = bench.request(offer=answer.offer).replace(RUN, OTHER_RUN)
    running = bench.tick(offered)
    assert running is not None and running.part is Part.RUNNING and len(bench.unit.folders) == 2


def test_a_test_that_has_waited_to_its_end_is_refused(bench: Bench) -> None:
    bench.tick(bench.request(offer="the offer"))
    bench.unit.ends = False
    asked = bench.request().replace(RUN, OTHER_RUN)
    assert bench.tick(asked) is None
    bench.now += timedelta(minutes=3)
    answer = bench.tick(asked)
    assert answer is not None and answer.part is Part.REFUSED and "was over before it began" in answer.why


def with_address(test: FabricTest, rank: int, address: str) -> FabricTest:
    """The test, of which gpu-1 is rank `rank` with this address."""
    mine = replace(test.members[0], nics=(Nic(0, address),))
    return replace(test, members=(mine, test.members[1]) if rank == 0 else (test.members[1], mine))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("offer", ["", "the offer"])
def test_a_node_without_its_address_says_so_before_anything_begins(bench: Bench, rank: int, offer: str) -> None:
    asked = bench.request(with_address(bench.test, rank, "192.0.2.1"), offer)
    for _ in range(2):
        answer = of(bench.tick(asked))
        assert (answer.part, answer.fault, answer.offer) == (Part.REFUSED, NO_ADDRESS, "")
        assert answer.why.startswith("gpu-1: no interface has the address 192.0.2.1 (rail 0")
        assert "correct fleet_fabric_nics" in answer.why
        bench.restart()
    assert not bench.unit.folders


def test_an_address_that_went_while_it_met_is_the_nodes_fault_and_other_ends_are_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = bench.request(offer="the offer")
    bench.tick(asked)
    bench.unit.runs = False
    bench.restart()
    with monkeypatch.context() as patch:
        patch.setattr(addresses, "_is_here", lambda _: False)
        assert of(bench.tick(asked)).fault == NO_ADDRESS
    for _ in range(2):
        bench.tick(None)
    bench.tick(asked)
    bench.unit.runs = False
    assert (of(bench.tick(asked)).part, of(bench.tick(asked)).fault) == (Part.REFUSED, "")


def test_interfaces_of_hardware_without_a_link_are_named(tmp_path: Path) -> None:
    for name, state, real in (("ens1", "down", True), ("ens2", "up", True), ("veth0", "down", False)):
        (tmp_path / name / "device" if real else tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "operstate").write_text(f"{state}\n")
    with pytest.raises(addresses.AddressError, match=r"192\.0\.2\.1 \(rail 0; without a link now: ens1\); bring up"):
        addresses.check_addresses("gpu-1", (Nic(0, "127.0.0.1"), Nic(0, "192.0.2.1")), tmp_path)


def test_a_long_reason_is_cut_where_it_is_made(bench: Bench) -> None:
    bench.busy = "busy: " + "x\n" * 90_000
    words = why(bench.tick(bench.request()))
    assert len(words) == 500 and words.startswith("busy: x x") and words.endswith("...")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda bench: setattr(bench, "busy", "busy: a burn-in is under way"), "busy: a burn-in is under way"),
        (lambda bench: setattr(bench, "now", NOW + timedelta(minutes=3)), "the test was over before it began here"),
        (lambda bench: setattr(bench.unit, "refuses", "systemd-run cannot start the test"), "systemd-run cannot start"),
        (lambda bench: setattr(bench.unit, "ends_with_agent", True), "an agent in a pod takes no part"),
    ],
)
def test_it_refuses_what_it_cannot_do_now(bench: Bench, change: Callable[[Bench], None], words: str) -> None:
    change(bench)
    assert words in why(bench.tick(bench.request(offer="the offer")))
    # A refusal is one: the test has come to nothing by it.
    bench.busy, bench.now, bench.unit.refuses = "", NOW, ""
    bench.restart()
    assert words in why(bench.tick(bench.request(offer="the offer")))
    assert not bench.unit.folders


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda test: replace(test, members=(replace(test.members[0], boot_id=TWO.boot_id), test.members[1])), "boot"),
        (lambda test: replace(test, members=(replace(test.members[0], name="gpu-9"), test.members[1])), "no member"),
        (lambda test: replace(test, run="x"), "run is not a UUID"),
        (
            lambda test: replace(
                test, members=(replace(test.members[0], nics=(Nic(0, "192.0.2.1"),)), test.members[1])
            ),
            "no interface has the address 192.0.2.1",
        ),
    ],
)
def test_it_refuses_a_test_that_is_not_for_it(
    bench: Bench, change: Callable[[FabricTest], FabricTest], words: str
) -> None:
    assert words in why(bench.tick(bench.request(change(bench.test))))


def test_a_part_that_ended_without_a_view_says_why(bench: Bench) -> None:
    asked = bench.request(offer="the offer")
    bench.tick(asked)
    (bench.unit.folders[0] / OUTCOME).write_text('{"message": "gpu-1: the offer was joined here before"}')
    bench.unit.runs = False
    assert why(bench.tick(asked)) == "gpu-1: the offer was joined here before"


def test_what_cannot_be_read_is_said_once_and_not_answered(bench: Bench) -> None:
    assert "cannot be read" in bench.part.take("{")
    assert bench.part.take("{") == "" and bench.tick("{") is None


def test_another_test_takes_the_place_of_the_one_before(bench: Bench) -> None:
    bench.tick(bench.request(offer="the offer"))
    bench.unit.runs = False
    text = bench.request().replace(RUN, OTHER_RUN)
    bench.part.take(text)
    bench.part.go_on(bench.now_s + 10)
    assert bench.part.annotation is not None and read_fabric_answer(bench.part.annotation).part is Part.READY
    assert [one.name for one in bench.folders()] == [OTHER_RUN]


@pytest.mark.parametrize(
    ("shown", "free", "stopped"),
    [
        ("LoadState=not-found\nDescription=gpu-burnin-fabric.service\n", True, False),
        ("LoadState=loaded\nDescription=A test with other nodes\n", False, True),
        # Of `muster fabric run`, whose unit has the same name.
        ("LoadState=loaded\nDescription=A test between nodes\n", False, False),
    ],
)
def test_only_a_unit_of_an_agent_is_stopped(
    monkeypatch: pytest.MonkeyPatch, shown: str, free: bool, stopped: bool
) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(unit, "systemctl", lambda *_: shown)
    monkeypatch.setattr(unit, "call", calls.append)
    assert unit.end() is free
    assert calls == ([["systemctl", "--no-block", "stop", unit.UNIT]] if stopped else [])
    assert "--description=A test with other nodes" in command(Path("/x"))


def test_the_unit_is_the_same_command_as_that_of_people(tmp_path: Path) -> None:
    words = command(tmp_path)
    assert words[0] == "systemd-run" and "--unit=gpu-burnin-fabric.service" in words
    assert words[words.index("fabric") :][:3] == ["fabric", "join", "--json"]
