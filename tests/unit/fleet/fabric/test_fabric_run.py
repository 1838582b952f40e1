"""A run of tests between nodes: what its executor makes of what comes back, and how it goes on after a kill.

The nodes and Ansible are a stand-in of this process; what nodes sign is real.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import (
    Found,
    Kind,
    Nic,
    Purpose,
    Result,
    Round,
    Test,
)
from gpu_burnin.fleet.fabric import course, places, report, results
from gpu_burnin.fleet.fabric.execute import Executor, Play, times
from gpu_burnin.fleet.fabric.folder import UNKNOWN_BOOT, Answer, Presence, RoundFolder
from gpu_burnin.fleet.fabric.keep import Nobody
from gpu_burnin.fleet.fabric.results import Run
from gpu_burnin.fleet.waves import leftovers
from gpu_burnin.fleet.waves.worker import Killed
from gpu_burnin.system import known_hosts
from tests.support.fabric_nodes import SETTINGS, Nodes


def killed(*_: object) -> tuple[int, Mapping[str, object]]:
    raise Killed("fabric: ansible-playbook was killed")


def cut_off(nodes: Nodes) -> Executor:
    """One whose Ansible was killed in the first round."""
    executor = nodes.executor()
    executor.play = cast(Play, killed)
    with pytest.raises(GpuBurninError, match="was killed"):
        executor(nodes.test_of("gpu-1", "gpu-2"))
    return executor


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_views_that_verify_are_the_result(nodes: Nodes) -> None:
    result = nodes.one()
    assert [one.view.member for one in result.views] == ["gpu-1", "gpu-2"]
    assert (result.rebooted, result.absent, result.refused) == ((), {}, {})


def test_a_silent_member_is_silent_and_its_partner_speaks(nodes: Nodes) -> None:
    """Also where rank 0 was to be the one that is gone: who answers makes the offer."""
    for name, other in (("gpu-1", "gpu-2"), ("gpu-2", "gpu-1")):
        nodes.becomes(**{name.replace("-", "_"): "unreachable by ssh", other.replace("-", "_"): ""})
        result = nodes.one()
        assert [one.view.member for one in result.views] == [other] and not result.absent
        agreed = RoundFolder(nodes.folder / "rounds/round-0001").agreed(1)
        assert agreed is not None and [member.name for member in agreed.members] == [other, name]
        assert agreed.members[1].boot_id == UNKNOWN_BOOT
        (nodes.folder / "rounds/round-0001/played").unlink()


def test_a_member_whose_process_is_killed_is_silent_and_did_not_refuse(nodes: Nodes) -> None:
    nodes.becomes(gpu_2="killed")
    result = nodes.one()
    assert [one.view.member for one in result.views] == ["gpu-1"] and not result.absent


@pytest.mark.parametrize(
    ("state", "says"),
    [("busy", "work is on its GPUs: python (process 7)"), ("refuses", "gpu-1: the offer expired; make it anew")],
)
def test_who_could_take_no_part_is_no_finding(nodes: Nodes, state: str, says: str) -> None:
    nodes.becomes(gpu_2=state)
    assert nodes.one() == Result(1, (), absent={"gpu-2": says})


def test_a_reboot_in_the_middle_is_told_by_the_boot(nodes: Nodes) -> None:
    nodes.becomes(gpu_2="reboots")
    result = nodes.one()
    assert result.rebooted == ("gpu-2",) and not result.absent


def test_a_view_that_another_key_signed_is_none_and_is_named(nodes: Nodes) -> None:
    nodes.becomes(gpu_2="forged")
    result = nodes.one()
    assert [one.view.member for one in result.views] == ["gpu-1"]
    assert list(result.refused) == ["gpu-2"] and "is not signed" in result.refused["gpu-2"]
    assert any(line.startswith("test 1: the view of gpu-2 is not taken: ") for line in nodes.lines)


def test_an_offer_that_another_key_signed_leaves_the_test_without_a_view(nodes: Nodes) -> None:
    nodes.keys["gpu-1"] = nodes.keys["gpu-3"]
    result = nodes.one()
    assert result.views == () and list(result.refused) == ["gpu-1"]


def test_members_that_the_cluster_does_not_give_are_not_played(nodes: Nodes) -> None:
    class Taken(Nobody):
        def take(self, nodes: Sequence[str], for_s: float) -> Mapping[str, str]:
            return {"gpu-2": "it has work: a/b"}

    two = Round(1, (*nodes.test_of("gpu-1", "gpu-2").tests,
                    Test(2, Kind.PAIR, Purpose.PAIRS, ("gpu-3", "gpu-4"), ("gpu-3", "gpu-4"), rails=(0,))))  # fmt: skip
    first, second = nodes.executor(Taken())(two)
    assert first == Result(1, (), absent={"gpu-2": "it has work: a/b"})
    assert len(second.views) == 2
    assert not (nodes.folder / "rounds/round-0001/present/gpu-1").exists()


def test_a_round_in_which_nobody_answers_is_no_result(nodes: Nodes) -> None:
    nodes.becomes(**{f"gpu_{number}": "unreachable by ssh" for number in range(1, 5)})
    with pytest.raises(
        GpuBurninError,
        match=r"no node of round 1 answers \(it does not answer: refused\); .*goes on with this round; .*: --again",
    ):
        nodes.one()
    assert not RoundFolder(nodes.folder / "rounds/round-0001").played


def test_a_round_whose_nodes_are_all_off_is_inconclusive_where_others_answer(nodes: Nodes) -> None:
    """The run goes on, and names them with partners that answer."""
    nodes.becomes(gpu_1="unreachable by ssh", gpu_2="unreachable by ssh")
    assert nodes.one() == Result(1, ())
    assert "no node of round 1 answers, and others do: its tests are inconclusive" in nodes.lines
    (nodes.folder / "rounds/round-0001/played").unlink()
    nodes.begin()
    found = report.of_run(nodes.go_on())
    assert found.complete and {claim.nodes for claim in found.claims} == {("gpu-1",), ("gpu-2",)}
    assert {claim.found for claim in found.claims} == {Found.SILENT}


def test_what_may_still_run_is_ended_before_nodes_are_given_back(nodes: Nodes) -> None:
    executor = nodes.executor()
    nodes.becomes(gpu_2="silent")
    executor(nodes.test_of("gpu-1", "gpu-2"))
    assert executor.end_tests() == {} and nodes.plays() == ["round-0001", "round-0000"]
    assert RoundFolder(nodes.folder / "rounds/round-0000").presence("gpu-1") is None, "it has ended by itself"
    # Of one that does not answer nobody knows; its own limit is known.
    nodes.becomes(gpu_2="unreachable by ssh")
    assert executor.end_tests() == {"gpu-2": 60 + 4 * 0.3 + 10 + 60 + 60 - 0.2}


def test_after_an_ansible_that_was_killed_all_its_nodes_are_looked_at(nodes: Nodes) -> None:
    executor = cut_off(nodes)
    # That of another process, which goes on and cannot begin.
    assert nodes.executor().end_tests() == {} and nodes.plays() == ["round-0000"]
    found = RoundFolder(nodes.folder / "rounds/round-0000")
    assert found.presence("gpu-1") and found.presence("gpu-2") and not found.presence("gpu-3")
    # Where it is killed again, none of them is known to have ended.
    assert list(executor.end_tests()) == ["gpu-1", "gpu-2"]


def test_a_host_that_was_silent_a_round_before_may_be_tested_still(nodes: Nodes) -> None:
    executor = nodes.executor()
    nodes.becomes(gpu_2="silent")
    executor(nodes.test_of("gpu-1", "gpu-2"))
    executor(replace(nodes.test_of("gpu-3", "gpu-4"), number=2))
    nodes.becomes(gpu_2="unreachable by ssh")
    assert list(executor.end_tests()) == ["gpu-2"]
    # Until its own limit is over since the last that could begin there.
    played = nodes.folder / "rounds/round-0001/played"
    os.utime(played, (time.time() - 250, time.time() - 250))
    assert executor.end_tests() == {}


def test_a_host_whose_test_cannot_be_ended_is_kept(nodes: Nodes) -> None:
    executor = nodes.executor()
    executor(nodes.test_of("gpu-1", "gpu-2"))
    folder = RoundFolder(nodes.folder / "rounds/round-0001")
    folder.keep_answer("gpu-1", Answer(nodes.boots["gpu-1"], None, "", "it is active", runs=True))

    def hangs(folder: Path, _: object, hosts: Sequence[str]) -> tuple[int, Mapping[str, object]]:
        for name in hosts:
            RoundFolder(folder).keep_presence(name, Presence(nodes.boots[name], (), "it is active", runs=True))
        return 0, {}

    executor.play = cast(Play, hangs)
    assert list(executor.end_tests()) == ["gpu-1"]


def test_forks_of_a_round_whose_ansible_was_killed_are_ended(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = cut_off(nodes)
    ended: list[str] = []
    monkeypatch.setattr(leftovers, "end", lambda _, folder: ended.append(Path(folder).name))
    executor.end_tests()
    assert ended[0] == "round-0001"


@pytest.mark.parametrize("fault", ["disk", "damaged"])
def test_its_own_faults_keep_no_node_for_ever(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A full disk, or a round that cannot be read: those that may be tested are kept for a time, and the rest given."""
    executor = nodes.executor()
    nodes.becomes(gpu_2="silent")
    executor(nodes.test_of("gpu-1", "gpu-2"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if fault == "damaged":
        (nodes.folder / "rounds/round-0001/variables.json").write_text("{")
    monkeypatch.setattr(RoundFolder, "begin", full)
    names = ["gpu-2"] if fault == "disk" else list(nodes.keys)
    found = executor.end_tests()
    assert list(found) == names and min(found.values()) > 180
    assert "No space left on device" in nodes.lines[-1]


def test_where_no_round_was_begun_or_all_have_ended_nothing_is_looked_at(nodes: Nodes) -> None:
    executor = nodes.executor()
    assert executor.ready(["gpu-1"]) == {} and executor.end_tests() == {}
    executor(nodes.test_of("gpu-1", "gpu-2"))
    assert executor.end_tests() == {} and nodes.plays() == ["round-0000", "round-0001"]


def test_an_ansible_that_is_killed_or_does_not_start_is_told(nodes: Nodes) -> None:
    def refused(folder: Path, *_: object) -> tuple[int, Mapping[str, object]]:
        (folder / "output.log").write_text("ERROR! the playbook could not be found\n")
        return 1, {}

    for play, says in ((killed, "was killed; call this again"), (refused, "did not run: .*could not be found")):
        executor = nodes.executor()
        executor.play = cast(Play, play)
        with pytest.raises(GpuBurninError, match=says):
            executor(nodes.test_of("gpu-1", "gpu-2"))


def test_who_is_ready_is_found_before_a_run(nodes: Nodes) -> None:
    nodes.becomes(gpu_2="busy", gpu_3="unreachable by ssh")
    found = nodes.executor().ready(list(nodes.keys))
    assert found == {"gpu-2": "work is on its GPUs: python (process 7)", "gpu-3": "it does not answer: refused"}


def test_a_run_names_the_bad_node_and_reports_what_was_refused(nodes: Nodes) -> None:
    nodes.becomes(gpu_4="wrong")
    nodes.begin()
    made = nodes.go_on()
    found = report.of_run(replace(made, left={"gpu-9": "it has work: a/b"}))
    assert found.exit_code == 1 and [claim.nodes for claim in found.claims] == [("gpu-4",)]
    assert found.untested == {"gpu-9": "it has work: a/b"}
    assert "gpu-9: nothing can be told: it has work: a/b" in report.render(found)
    assert nodes.lines[0].startswith("round 1 of about 2: 2 tests of 4 nodes; about 30 s, and 30 s for those after it")


def test_other_versions_make_a_test_inconclusive_by_name(nodes: Nodes) -> None:
    nodes.becomes(gpu_4="old")
    nodes.begin()
    found = report.of_run(nodes.go_on())
    assert found.exit_code == 3 and not found.claims
    assert "its members run other versions: 0.9 on gpu-4; 1.0 on gpu-" in str(found.untested)


def test_where_all_nodes_are_bad_none_is_called_sound(nodes: Nodes) -> None:
    nodes.becomes(**{f"gpu_{number}": "wrong" for number in range(1, 5)})
    nodes.begin()
    found = report.of_run(nodes.go_on())
    assert found.exit_code == 1 and not found.cleared
    assert {name for claim in found.claims for name in claim.nodes} == set(nodes.keys)


MOMENTS = ["before the offer", "during the round", "before it is taken in", "while it is written", "after the end"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_is_killed_goes_on_and_repeats_no_finished_round(
    nodes: Nodes, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes.becomes(gpu_4="wrong")
    nodes.begin()
    if (child := os.fork()) == 0:
        try:
            _die_at(nodes, moment, monkeypatch)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    kept = len(results.read(nodes.file).rounds)
    before = nodes.plays()
    made = nodes.go_on()
    found = report.of_run(made)
    assert [claim.nodes for claim in found.claims] == [("gpu-4",)] and found.complete
    plays = nodes.plays()
    number = {MOMENTS[0]: 1, MOMENTS[1]: 1, MOMENTS[4]: 0}.get(moment, 0)
    assert len(plays) == len(made.rounds) + number, "only a round that was cut off is played again"
    assert kept == (len(made.rounds) if moment == MOMENTS[4] else 1)
    if moment == MOMENTS[4]:
        assert plays == before
    if moment in MOMENTS[2:4]:
        assert "round 2 was run by a call that has ended; its results are taken in" in nodes.lines


def _die_at(nodes: Nodes, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the run, but for the moment in its second round, or the end."""

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def at(now: str) -> None:
        if now == moment and len(nodes.plays()) == 2:
            die()

    nodes.at = at
    write = results.write

    def written(path: Path, made: Run) -> None:
        if len(made.rounds) == 2:
            if moment == MOMENTS[2]:
                die()
            # The new file is there in part, under its other name.
            monkeypatch.setattr(os, "replace", die)
        write(path, made)

    if moment in MOMENTS[2:4]:
        monkeypatch.setattr(results, "write", written)
    nodes.go_on()
    die()


def site_of(made: Nodes, **changes: Any) -> places.Given:
    logins = {name: (f"192.0.2.{at}", 22) for at, name in enumerate(made.keys, 1)}
    site = places.Given(made.fabric.nodes, logins, str(made.folder), str(made.folder / "known_hosts"))
    return replace(site, **changes)


def test_a_site_that_cannot_be_tested_is_refused_in_a_sentence(nodes: Nodes) -> None:
    site, first = site_of(nodes), nodes.fabric.nodes[0]
    same = (*nodes.fabric.nodes[:3], replace(nodes.fabric.nodes[3], nics=first.nics))
    cases: Sequence[tuple[dict[str, Any], str, str]] = (
        ({"state_dir": ""}, "", "fleet_state_dir is not set; set it"),
        ({"nodes": nodes.fabric.nodes[:1]}, "gpu-1", "--limit gpu-1 leaves one node, gpu-1; a test needs two"),
        ({"nodes": nodes.fabric.nodes[:1]}, "", "gpu_nodes has one node, gpu-1; a test needs two"),
        ({"nodes": same}, "", "gpu-1, gpu-4: the address 198.51.100.1 stands 2 times in fleet_fabric_nics"),
        ({"nodes": (replace(nodes.fabric.nodes[0], nics=(Nic(0, "gpu-1.example"),)), *nodes.fabric.nodes[1:])}, "",
         "gpu-1: gpu-1.example is no IP address; give its NICs in fleet_fabric_nics"),
    )  # fmt: skip
    for changed, limit, says in cases:
        with pytest.raises(GpuBurninError) as refused:
            course.refuse_site(replace(site, **changed), limit)
        assert says in str(refused.value)
    course.refuse_site(site, "")


def test_a_node_without_a_pinned_key_is_left_out_by_name(nodes: Nodes) -> None:
    site = site_of(nodes)
    lines = [f"{site.logins[name][0]} {key}\n" for name, key in nodes.keys.items() if name != "gpu-2"]
    Path(site.known_hosts).write_text("".join(lines))
    found, left = course.keys(site, known_hosts.load(Path(site.known_hosts)))
    assert found == {name: key for name, key in nodes.keys.items() if name != "gpu-2"}
    assert list(left) == ["gpu-2"] and "has not exactly one ssh-ed25519 key of 192.0.2.2 (port 22)" in left["gpu-2"]
    course.refuse_keyless(results.begin(nodes.fabric, SETTINGS), left)
    under_way = replace(results.begin(nodes.fabric, SETTINGS), rounds=(results.Done(Round(1, ()), ()),))
    with pytest.raises(GpuBurninError, match=r"gpu-2: no key any more: .*--again"):
        course.refuse_keyless(under_way, left)
    made = course.choose(results.begin(nodes.fabric, SETTINGS), site.nodes, left)
    assert [node.name for node in made.nodes] == ["gpu-1", "gpu-3", "gpu-4"] and made.left == left
    with pytest.raises(GpuBurninError, match="1 node can be tested, and a test needs two; left out: gpu-1: it has"):
        course.choose(made, site.nodes, dict.fromkeys(["gpu-1", "gpu-2", "gpu-3"], "it has work"))


def test_the_run_of_another_call_is_not_gone_on_with(nodes: Nodes) -> None:
    site = site_of(nodes)
    assert course.begun(nodes.file, site, {}) is None
    nodes.begin()
    assert course.begun(nodes.file, site, {"pair_s": 10.0}) == results.read(nodes.file)
    moved = (replace(site.nodes[0], leaf="leaf-9"), *site.nodes[1:])
    for other, changes, says in (
        (site, {"pairings": 4}, "is planned in another way"),
        (site_of(nodes, nodes=site.nodes[1:]), {}, "of other nodes"),
        (site_of(nodes, nodes=moved), {}, "in which gpu-1 had another place or other NICs"),
    ):
        with pytest.raises(GpuBurninError, match=f"{says}.*--again"):
            course.begun(nodes.file, other, changes)


def test_a_larger_round_has_more_time() -> None:
    members = tuple(f"gpu-{number}" for number in range(1000))
    small = times(Round(1, (Test(1, Kind.PAIR, Purpose.PAIRS, members[:2], ()),)), SETTINGS)
    large = times(Round(1, (Test(1, Kind.GROUP, Purpose.LEAF, members, ()),)), SETTINGS)
    assert small.valid_s < 70 and 600 < large.valid_s <= 3600 and large.round_s > large.valid_s + large.test_s
