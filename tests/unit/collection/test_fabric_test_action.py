"""The controller's side of a member's part: what it gives to a host, what it keeps, and until when it looks for one."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.muster.fleet.plugins.action.fabric_test import ActionModule

from gpu_burnin.api.rendezvous import FabricTest, Kind, Member, Nic
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.fabric.folder import UNKNOWN_BOOT, Answer, Number, Presence, RoundFolder
from gpu_burnin.system.codec import Misfit

RUN = "6f1d9c0e-5a6b-4c3d-8e2f-000000000001"
BOOT, NEXT_BOOT = "0b1c2d3e-0000-4000-8000-000000000001", "0b1c2d3e-0000-4000-8000-000000000002"
TEST = FabricTest(
    run=RUN,
    test=7,
    kind=Kind.PAIR,
    rails=(),
    members=tuple(Member(f"gpu-{at}", UNKNOWN_BOOT, (Nic(0, f"198.51.100.{at}"),)) for at in (1, 2)),
    seconds=1.0,
    size_bytes=1 << 20,
    seed=5,
    valid_s=60.0,
)


class Connection:
    """What is opened anew after a host was lost."""

    resets = 0

    def reset(self) -> None:
        self.resets += 1


@pytest.fixture
def folder(tmp_path: Path) -> RoundFolder:
    made = RoundFolder(tmp_path / "round")
    keys = {"gpu-1": "ssh-ed25519 AAAA1", "gpu-2": "ssh-ed25519 AAAA2"}
    made.begin(Number(RUN, 1), [TEST], keys, list(keys))
    return made


def action(host: str, module: Callable[..., dict[str, Any]], wait_s: int = 60) -> ActionModule:
    made = object.__new__(ActionModule)
    made._host, made._vars, made._given = host, {}, {"wait_s": wait_s}
    made._connection = Connection()
    made._module = module
    return made


def test_a_host_that_is_booted_anew_is_looked_for_until_it_answers(
    folder: RoundFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    folder.keep_offer(7, "OFFER")
    answers: list[dict[str, Any] | None] = [
        None,
        None,
        {"boot_id": NEXT_BOOT, "view": "", "problem": "", "runs": False},
    ]

    def module(**_: Any) -> dict[str, Any]:
        if (found := answers.pop(0)) is None:
            raise AnsibleConnectionFailure("refused")
        return found

    looked = action("gpu-1", module)
    done = looked._phase(folder, "wait", 7)
    assert folder.answer("gpu-1") == Answer(NEXT_BOOT, None) and looked._connection.resets == 2
    assert "view" not in done
    # What it gave is kept once.
    assert action("gpu-1", module)._phase(folder, "wait", 7) == {"changed": False, "problem": ""}


def test_a_host_that_stays_away_costs_no_more_than_the_rounds_deadline(folder: RoundFolder) -> None:
    folder.keep_offer(7, "OFFER")

    def module(**_: Any) -> dict[str, Any]:
        raise AnsibleConnectionFailure("refused")

    with pytest.raises(AnsibleConnectionFailure):
        action("gpu-1", module, wait_s=1)._phase(folder, "wait", 7)
    assert folder.answer("gpu-1") is None


def test_rank_0_alone_makes_the_offer_and_no_result_has_it(folder: RoundFolder) -> None:
    calls: list[str] = []

    def module(document: str) -> dict[str, Any]:
        calls.append(document)
        return {"changed": True, "offer": "SECRET", "problem": ""}

    folder.keep_presence("gpu-2", Presence(BOOT))
    assert action("gpu-1", module)._phase(folder, "offer", 7) == {"changed": False, "problem": ""}
    done = action("gpu-2", module)._phase(folder, "offer", 7)
    assert "SECRET" not in str(done) and calls == [folder.agreed(7).canonical().decode()]  # type: ignore[union-attr]
    offer = folder.offer(7)
    assert offer is not None and offer[0] == b"SECRET"
    assert (folder.path / "offers/7").stat().st_mode & 0o077 == 0


def test_a_member_that_works_has_no_test_made(folder: RoundFolder) -> None:
    folder.keep_presence("gpu-1", Presence(BOOT))
    folder.keep_presence("gpu-2", Presence(BOOT, ("python (process 7)",)))
    assert folder.agreed(7) is None
    done = action("gpu-1", lambda **_: pytest.fail("it is not called"))._phase(folder, "offer", 7)
    assert done == {"changed": False, "problem": ""}
    assert action("gpu-1", lambda **_: pytest.fail("nor here"))._phase(folder, "start", 7)["changed"] is False


@pytest.mark.parametrize("phase", ["offer", "start"])
def test_a_host_that_cannot_begin_says_so_itself(folder: RoundFolder, phase: str) -> None:
    folder.keep_presence("gpu-1", Presence(BOOT))
    if phase == "start":
        folder.keep_offer(7, "OFFER")
    action("gpu-1", lambda **_: {"changed": True, "problem": "no bus"})._phase(folder, phase, 7)
    answer = folder.answer("gpu-1")
    assert answer == Answer(BOOT, 2, "", "no bus") and answer.hindrance == "no bus"


def test_a_host_without_a_test_and_a_folder_that_is_broken_are_told(folder: RoundFolder) -> None:
    with pytest.raises(GpuBurninError, match="gpu-9: has no test in this round; call `muster fabric run`"):
        action("gpu-9", lambda **_: {})._phase(folder, "start", None)
    (folder.path / "present/gpu-1").write_text("{")
    with pytest.raises(GpuBurninError, match=r"present/gpu-1 cannot be read .*; remove "):
        folder.presence("gpu-1")


def test_whatever_a_host_answers_is_its_own_matter(folder: RoundFolder) -> None:
    """No answer stops the round of the others, or reaches a terminal as it is."""
    looked = action(
        "gpu-1", lambda **_: {"boot_id": NEXT_BOOT, "working": ["a\x1b[2J"], "problem": "x\ud800", "runs": False}
    )
    looked._phase(folder, "look", None)
    found = folder.presence("gpu-1")
    assert found is not None and found.working == ("a?[2J",) and found.problem == "x?"
    for bad in ({"boot_id": []}, {"boot_id": "none"}, {"problem": 7}):
        said = {"boot_id": NEXT_BOOT, "working": [], "problem": "", "runs": False, **bad}
        with pytest.raises(Misfit):
            action("gpu-2", lambda said=said, **_: said)._phase(folder, "look", None)  # type: ignore[misc]
    folder.keep_answer("gpu-2", Answer(NEXT_BOOT, 0, "view \ud800", ""))
    kept = folder.answer("gpu-2")
    assert kept is not None and kept.view == "unreadable"


def test_a_host_on_which_the_module_fails_is_no_finding_of_the_fabric(folder: RoundFolder) -> None:
    failed = {"failed": True, "msg": "No space left on device"}
    action("gpu-1", lambda **_: failed)._phase(folder, "look", None)
    found = folder.presence("gpu-1")
    assert found is not None and found.hindrance == "No space left on device"
    folder.keep_offer(7, "OFFER")
    action("gpu-2", lambda **_: failed)._phase(folder, "start", 7)
    answer = folder.answer("gpu-2")
    assert answer is not None and answer.hindrance == "No space left on device"
