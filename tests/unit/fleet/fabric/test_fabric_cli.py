"""`muster fabric` from its arguments to its exit code: plan, the rounds one by one, report."""

from __future__ import annotations

import io
import json
import random
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.fabric_options import READS_INVENTORY
from gpu_burnin.cli.muster.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.claim import Cause, Part
from gpu_burnin.fabric.model import Fabric, Outcome, RailView, Result, Round, Settings, SignedView, State, View
from gpu_burnin.fleet.fabric import plan, results
from gpu_burnin.fleet.fabric.planner import next_round
from gpu_burnin.system.codec import from_json, to_json
from tests.bench.fabric.simulate import Fault, Simulation, site
from tests.support.command_line import called

FABRIC = site(16, leaf=8, rails=2)


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An inventory that need not be read."""
    monkeypatch.setattr(plan, "read", lambda _: FABRIC)
    return tmp_path


def played(file: Path, fabric: Fabric, *faults: Fault) -> None:
    """All rounds of a run, each by `muster fabric next` as an executor of one's own would have it."""
    simulated, answers = Simulation(fabric, faults, random.Random(1)), file.with_name("results.json")
    waiting = called(cli, "fabric", "next", file)
    while (made := json.loads(waiting.stdout)) is not None:
        answers.write_text(json.dumps(to_json(list(simulated(from_json(Round, made))))))
        waiting = called(cli, "fabric", "next", file, answers)
        assert (waiting.returncode, waiting.stderr) == (0, "")


def test_a_plan_says_its_cost_and_begins_a_run(inventory: Path) -> None:
    file = inventory / "run.json"
    done = called(cli, "fabric", "plan", "-i", inventory, "--output", file)
    assert done.returncode == 0 and done.stdout.startswith("16 nodes on 2 leaves: 5 rounds, ")
    assert results.read(file).nodes == FABRIC.nodes
    nothing_yet = called(cli, "fabric", "report", file)
    assert nothing_yet.returncode == 3 and "nothing can be told: no test has been run yet" in nothing_yet.stdout
    nowhere = inventory / "none/run.json"
    refused = called(cli, "fabric", "plan", "-i", inventory, "--output", nowhere)
    assert refused.returncode == 2 and f"the run cannot be written to {nowhere} (No such file" in refused.stderr
    again = called(cli, "fabric", "plan", "-i", inventory, "--output", file)
    assert again.returncode == 2 and "is there already; go on with it by `muster fabric next`" in again.stderr


def test_a_plan_as_json_has_its_first_round(inventory: Path) -> None:
    document = json.loads(called(cli, "fabric", "plan", "-i", inventory, "--json", "--through", "nodes").stdout)
    assert (document["rounds"], document["problems"]) == (2, [])
    assert document["node_minutes"] == pytest.approx(2 * 16 * 50 / 60)
    assert len(from_json(Round, document["first_round"]).tests) == 8


def test_a_place_that_is_missing_is_exit_code_1(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = (replace(FABRIC.nodes[0], leaf=""), *FABRIC.nodes[1:])
    monkeypatch.setattr(plan, "read", lambda _: Fabric(nodes))
    done = called(cli, "fabric", "plan", "-i", inventory)
    assert done.returncode == 1 and "gpu-0001: no fleet_place.leaf" in done.stdout


def test_a_run_is_played_and_what_is_bad_is_named(inventory: Path) -> None:
    file = inventory / "run.json"
    called(cli, "fabric", "plan", "-i", inventory, "--output", file, "--pairings", "2", "--every-pair-of-leaves")
    begun = called(cli, "fabric", "report", file)
    assert begun.returncode == 3 and "not complete: round 1 has not been run" in begun.stdout
    played(file, FABRIC, Fault(Cause(Part.NIC, "gpu-0003", 1)))
    done = called(cli, "fabric", "report", file)
    assert done.returncode == 1 and "- NIC of gpu-0003 on rail 1: " in done.stdout
    document = json.loads(called(cli, "fabric", "report", file, "--json").stdout)
    [claim] = document["claims"]
    assert claim["causes"] == [{"part": "NIC", "name": "gpu-0003", "rail": 1}] and claim["nodes"] == ["gpu-0003"]
    assert claim["sentence"].startswith("NIC of gpu-0003 on rail 1") and claim["evidence"] and claim["tests"]
    assert document["complete"] is True and document["pairs_of_leaves"] == document["all_pairs"] == 1


def test_a_sound_run_is_exit_code_0_and_lends_its_rates(inventory: Path) -> None:
    file, later = inventory / "run.json", inventory / "later.json"
    called(cli, "fabric", "plan", "-i", inventory, "--output", file)
    played(file, FABRIC)
    done = called(cli, "fabric", "report", file)
    assert done.returncode == 0 and done.stdout.endswith("nothing is named\n")
    called(cli, "fabric", "plan", "-i", inventory, "--output", later, "--rates", file)
    assert results.read(later).settings.usual["pair of 2, in a leaf, all rails, H200"] == pytest.approx(4e11, rel=0.02)


def test_the_schema_is_that_of_the_results_which_are_read() -> None:
    schema = json.loads(called(cli, "fabric", "schema").stdout)
    validator = jsonschema.Draft202012Validator(schema)
    validator.check_schema(schema)
    made = next_round(State(FABRIC))
    assert isinstance(made, Round)
    answers = to_json(list(Simulation(FABRIC, (), random.Random(1))(made)))
    assert list(validator.iter_errors(answers)) == []
    # The names of the dataclasses and of the schema are the same.
    for kind, definition in ((Result, "result"), (SignedView, "signed_view"), (View, "view"), (RailView, "rail")):
        assert {one.name for one in fields(kind)} == set(schema["$defs"][definition]["properties"])
    assert schema["$defs"]["outcome"]["enum"] == [one.value for one in Outcome]
    answers[0]["views"][0]["view"]["outcome"] = "slow"
    assert [error.validator for error in validator.iter_errors(answers)] == ["enum"]


def file_of(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({**to_json(results.begin(FABRIC, Settings())), **changes}))
    return path


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schema": "muster-fabric-run/v9"}, "is muster-fabric-run/v9, and this muster reads muster-fabric-run/v1"),
        ({"nodes": []}, "it has no nodes"),
        ({"nodes": [{"name": "a", "leaf": "l"}, {"name": "a", "leaf": "l"}]}, "a node stands twice in nodes"),
        ({"more": 1}, "is no file of `muster fabric plan --output`: unknown: more"),
        (
            {"rounds": [{"round": {"number": 1, "tests": []}, "results": 7}]},
            "rounds[0].results: not a list: 7",
        ),
    ],
)
def test_a_file_that_is_none_is_exit_code_2(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    done = called(cli, "fabric", "report", file_of(tmp_path, **changes))
    assert done.returncode == 2 and why in done.stderr and "Traceback" not in done.stderr


def test_results_of_another_round_or_member_are_refused(inventory: Path) -> None:
    file, answers = inventory / "run.json", inventory / "results.json"
    called(cli, "fabric", "plan", "-i", inventory, "--output", file)
    before = file.read_bytes()
    view = {"test": 1, "member": "gpu-0009", "version": "1", "outcome": "ok"}
    for made, why in (
        ([{"test": 99, "views": []}], "test 99 is none of round 1"),
        ([{"test": 1, "views": [{"view": view}]}], "gpu-0009: its view of test 1 stands under test 1, in which"),
        (
            [{"test": 1, "views": [{"view": {**view, "member": "gpu-0001", "bytes_per_s": 0}}]}],
            "gpu-0001: a bytes",
        ),
        ([{"test": 1, "views": [{"view": {**view, "member": "gpu-0001", "bytes_per_s": "nan"}}]}], "is no rate; give"),
    ):
        answers.write_text(json.dumps(made))
        done = called(cli, "fabric", "next", file, answers)
        assert done.returncode == 2 and why in done.stderr and file.read_bytes() == before


def test_results_that_leave_out_a_test_are_refused(inventory: Path) -> None:
    """An empty list is not "nobody answered": that is an entry without views for each test."""
    file, answers = inventory / "run.json", inventory / "results.json"
    called(cli, "fabric", "plan", "-i", inventory, "--output", file)
    before = file.read_bytes()
    silent = [{"test": test, "views": []} for test in range(1, 9)]
    for made, missing in (([], "test 1, test 2, "), (silent[1:], "test 1;"), ([silent[1]] * 8, "test 1, test 3, ")):
        answers.write_text(json.dumps(made))
        done = called(cli, "fabric", "next", file, answers)
        assert done.returncode == 2 and file.read_bytes() == before
        assert f"round 1 has 8 tests, and the results say nothing of {missing}" in done.stderr
    answers.write_text(json.dumps(silent))
    assert called(cli, "fabric", "next", file, answers).returncode == 0 and file.read_bytes() != before


def test_a_person_at_a_terminal_knows_what_takes_a_while(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(cli, "fabric", "plan", "-i", inventory).stderr == ""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    terminal.note("reads it")
    assert screen.getvalue() == "reads it\n"
    notes = list[str]()
    monkeypatch.setattr(terminal, "note", notes.append)
    called(cli, "fabric", "plan", "-i", inventory)
    assert notes == [READS_INVENTORY]


def test_a_file_with_a_node_in_two_tests_at_once_is_refused(tmp_path: Path) -> None:
    made = json.loads(called(cli, "fabric", "next", file_of(tmp_path)).stdout)
    made["tests"][1]["members"] = made["tests"][0]["members"]
    file = file_of(tmp_path, rounds=[{"round": made, "results": []}])
    with pytest.raises(GpuBurninError, match="round 1 has gpu-0001 in two tests"):
        results.read(file)
