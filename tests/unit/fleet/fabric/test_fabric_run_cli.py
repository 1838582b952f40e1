"""`muster fabric run` from its arguments to its exit code, on nodes and an Ansible of this process."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpu_burnin.cli.muster.main import cli
from gpu_burnin.fleet.fabric import execute, keep, places, plan, results
from gpu_burnin.fleet.fabric.keep import Nobody
from gpu_burnin.fleet.roll import lock
from gpu_burnin.fleet.waves.worker import Job, Killed
from tests.support.command_line import called
from tests.support.fabric_nodes import Nodes

CALL = ("fabric", "run", "-i", "inventory/prod")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Four nodes, whose inventory need not be read."""
    made = Nodes(tmp_path)
    logins = {name: (f"192.0.2.{at}", 22) for at, name in enumerate(made.keys, 1)}
    known = tmp_path / "known_hosts"
    known.write_text("".join(f"{logins[name][0]} {key}\n" for name, key in made.keys.items()))

    def given(_: list[str], limit: str = "") -> places.Given:
        chosen = tuple(node for node in made.fabric.nodes if not limit or node.name in limit.split(","))
        return places.Given(chosen, logins, str(tmp_path / "state"), str(known))

    monkeypatch.setattr(plan, "given", given)
    monkeypatch.setattr(execute, "Executor", functools.partial(execute.Executor, play=made.play))
    return made


def test_nodes_are_tested_from_the_inventory_to_the_claim(nodes: Nodes) -> None:
    nodes.becomes(gpu_4="wrong")
    words = (*CALL, "--without-cluster", "--through", "nodes", "-l", "gpu-1,gpu-2,gpu-3,gpu-4", "--json")
    done = called(cli, *words)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert [claim["nodes"] for claim in report["claims"]] == [["gpu-4"]] and report["complete"] is True
    # What it costs is said before it begins, and what goes on with its time.
    cost, begins = done.stderr.index("4 nodes on 1 leaf: 2 rounds, "), done.stderr.index("round 1 of about 2: ")
    assert cost < begins
    file, plays = nodes.folder / "state/fabric/run.json", nodes.plays()
    assert len(plays) == 1 + len(results.read(file).rounds)
    again = called(cli, *words)
    assert (again.returncode, json.loads(again.stdout), nodes.plays()) == (1, report, plays)
    text = called(cli, "fabric", "report", file)
    assert text.returncode == 1 and "- node gpu-4: wrong data" in text.stdout
    assert not lock.path_of(file.parent).exists()
    # A new run is begun by name, and not by a call that means something else.
    other = called(cli, *words, "--pairings", "4")
    assert other.returncode == 2 and "is planned in another way" in other.stderr
    nodes.becomes(gpu_4="")
    sound = called(cli, *words, "--again")
    assert sound.returncode == 0 and json.loads(sound.stdout)["claims"] == [], sound.stderr


def test_who_works_or_is_silent_is_left_out_and_told(nodes: Nodes) -> None:
    nodes.becomes(gpu_1="busy", gpu_2="unreachable by ssh")
    done = called(cli, *CALL, "--without-cluster", "--through", "nodes")
    assert done.returncode == 3, done.stderr
    assert "gpu-1: left out: work is on its GPUs: python (process 7)" in done.stderr
    assert "gpu-2: nothing can be told: it does not answer: refused" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--without-cluster", "-l", "gpu-1"), "--limit gpu-1 leaves one node, gpu-1; a test needs two: name more"),
        ((), "kubeconfig/admin.kubeconfig does not exist, so nobody can be asked to keep work away; give --kubeconfig"),
        (("--seconds", "0"), "Invalid value for '--seconds'"),
        (("--without-cluster", "--kubeconfig", "x"), "--kubeconfig and --without-cluster: give one of them"),
    ],
)
def test_bad_input_tests_nothing(nodes: Nodes, arguments: tuple[str, ...], says: str) -> None:
    done = called(cli, *CALL, *arguments)
    assert done.returncode == 2 and says in " ".join(done.stderr.split())
    assert nodes.plays() == []


def test_where_nobody_can_be_tested_nothing_begins(nodes: Nodes) -> None:
    nodes.becomes(**{f"gpu_{number}": "busy" for number in (1, 2, 3)})
    done = called(cli, *CALL, "--without-cluster")
    assert (
        done.returncode == 2
        and "1 node can be tested, and a test needs two; left out: gpu-1: work is on" in done.stderr
    )
    assert not (nodes.folder / "state/fabric/run.json").exists()


def test_tests_are_ended_before_the_nodes_are_given_back(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorded(Nobody):
        def release(self, later: Mapping[str, float]) -> None:
            with nodes.log.open("a") as log:
                log.write(f"given back, later: {list(later)}\n")

    def killed(folder: Path, job: Job, hosts: Sequence[str]) -> tuple[int, Mapping[str, object]]:
        done = nodes.play(folder, job, hosts)
        if folder.name == "round-0001":
            nodes.becomes(gpu_4="unreachable by ssh")
            for answer in (folder / "answers").iterdir():
                answer.unlink()
            raise Killed("fabric: ansible-playbook was killed")
        return done

    monkeypatch.setattr(keep, "Nobody", Recorded)
    monkeypatch.setattr(execute, "Executor", functools.partial(execute.Executor, play=killed))
    done = called(cli, *CALL, "--without-cluster", "--through", "nodes")
    assert done.returncode == 2 and "gpu-4: no answer, and a test may go on there: kept from work for" in done.stderr
    assert nodes.log.read_text().splitlines() == [
        "round-0000", "round-0001", "round-0000", "given back, later: ['gpu-4']",
    ]  # fmt: skip


def test_two_runs_do_not_meet(nodes: Nodes) -> None:
    folder = nodes.folder / "state/fabric"
    # The parent of this process is at work, and is another one.
    lock.take(folder, lock.Lock("ann", "2026-11-28T11:00:00Z", lock.process(os.getppid()), "tests the fabric"))
    done = called(cli, *CALL, "--without-cluster")
    assert done.returncode == 2 and "ann tests the fabric since 2026-11-28T11:00:00Z" in done.stderr
    assert nodes.plays() == []
