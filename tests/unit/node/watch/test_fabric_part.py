"""A node's part in a test that the admitter asks for on its Node: offered, joined once, told, and forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_burnin.api import rendezvous
from gpu_burnin.api.fabric_documents import parse_signed, parsed
from gpu_burnin.api.fabric_note import FabricAnswer, FabricRequest, Part, fabric_text, read_fabric_answer
from gpu_burnin.api.rendezvous import FabricTest, Member, Nic
from gpu_burnin.errors import GpuBurninError
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

    def join(self, folder: Path) -> None:
        if self.refuses:
            raise GpuBurninError(self.refuses)
        self.folders.append(folder)
        self.runs = True

    def joining(self) -> bool:
        return self.runs


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
            "no interface has the address 192.0.2.1; correct fleet_fabric_nics",
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
    text = bench.request().replace(RUN, RUN.replace("0001", "0002"))
    bench.part.take(text)
    bench.part.go_on(bench.now_s + 10)
    assert bench.part.annotation is not None and read_fabric_answer(bench.part.annotation).part is Part.READY
    assert [one.name for one in bench.folders()] == [RUN.replace("0001", "0002")]


def test_the_unit_is_the_same_command_as_that_of_people(tmp_path: Path) -> None:
    words = command(tmp_path)
    assert words[0] == "systemd-run" and "--unit=gpu-burnin-fabric.service" in words
    assert words[words.index("fabric") :][:3] == ["fabric", "join", "--json"]
