"""What 0.2.0 has written is read by this version, and back: the state directory of a node, the ledger.

Only here: the code of 0.2.0 itself writes and reads, from its commit.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gpu_burnin.api import record
from gpu_burnin.api.crd import crd
from gpu_burnin.api.names import Names
from tests.support.node_runs import Node

RELEASED = "acfc5b8e1747a503082a89c4e1ea5abcf5cfb7af"
ROOT = Path(__file__).resolve().parents[3]
# One node in each state, with each field that 0.2.0 writes.
WRITE_LEDGER = """
import collections.abc, dataclasses, json, sys, typing
from gpu_burnin.admission import record
from gpu_burnin.settings.names import Names

def filled(kind):
    hints, values = typing.get_type_hints(kind, localns=vars(collections.abc)), {}
    for one in dataclasses.fields(kind):
        values[one.name] = value(hints[one.name], one.name)
    return kind(**values)

def value(hint, name):
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return filled(hint)
    if hint is str:
        return "2026-11-22T10:00:00Z" if name.endswith(("_at", "since", "until", "deadline")) or name == "at" else name
    if hint in (bool, int, float):
        return hint(7)
    if origin is tuple:
        return (value(arguments[0], name),)
    if hint is record.State:
        return record.State.READY
    if arguments and type(None) in arguments:
        return value(next(one for one in arguments if one is not type(None)), name)
    return {"standard": "2026-11-22T10:00:00Z"}

documents = []
for state in record.State:
    node = record.NodeAdmission(
        f"gpu-{state}", filled(record.Spec), dataclasses.replace(filled(record.Status), state=state)
    )
    made = record.document(node, Names()) | {"status": record.status_document(node.status)}
    documents.append(made)
json.dump(documents, sys.stdout)
"""
READ_LEDGER = """
import json, sys
from gpu_burnin.admission import record
print(json.dumps([[node.name, str(node.status.state), node.status.highest_sequence, node.spec.identity.host_key]
                  for node in map(record.parse, json.load(sys.stdin))]))
"""


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of 0.2.0."""
    done = subprocess.run(["git", "-C", ROOT, "archive", RELEASED, "gpu_burnin"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this clone has no commit {RELEASED[:8]}, which is 0.2.0: fetch its history")
    tree = tmp_path_factory.mktemp("released")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(tree)
    return tree


def program(released: Path, node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of 0.2.0 on this node."""
    command = [sys.executable, "-m", "gpu_burnin", *words, "--config", str(node.directory / "config.yaml")]
    env = os.environ | node.environment | {"PYTHONPATH": str(released)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=node.directory)


@pytest.mark.slow
def test_a_node_keeps_its_pass_its_runs_and_its_number_over_the_upgrade_and_back(released: Path, node: Node) -> None:
    first = program(released, node, "run", "--json", "--seed", "1")
    assert json.loads(first.stdout)["software"]["gpu_burnin"] == "0.2.0", first.stderr
    assert program(released, node, "gate").returncode == 0
    # This version: the pass of the older one opens, its report is read, the next run has the next number.
    assert node.call("gate")[0] == 0
    run_id = json.loads(first.stdout)["run_id"]
    assert [entry.path.name for entry in node.store.runs()] == [run_id]
    shown, err = node.start("report", "--json").communicate()
    assert json.loads(shown)["run_id"] == run_id, err
    code, second, err = node.run()
    assert code == 0 and second["sequence"] == json.loads(first.stdout)["sequence"] + 1, err
    # And back: 0.2.0 takes this one's pass, and goes on with its number.
    back = program(released, node, "gate", "--json")
    assert back.returncode == 0, back.stdout + back.stderr
    third = program(released, node, "run", "--json", "--seed", "1")
    assert json.loads(third.stdout)["sequence"] == second["sequence"] + 1, third.stderr
    assert len(node.store.runs()) == 3 and node.call("gate")[0] == 0


def ledger(released: Path, script: str, given: object = None) -> Any:
    """What a script with the code of 0.2.0 prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], input=json.dumps(given), env=os.environ | {"PYTHONPATH": str(released)},
        cwd=released, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_ledger_of_a_fleet_loses_no_node_and_no_field(released: Path) -> None:
    documents = ledger(released, WRITE_LEDGER)
    assert {one["status"]["state"] for one in documents} >= {"new", "ready", "quarantined", "held"}
    names = Names()
    (version,) = yaml.safe_load(yaml.safe_dump(crd(names)))["spec"]["versions"]
    schema = Draft202012Validator(version["schema"]["openAPIV3Schema"])
    again = []
    for document in documents:
        assert list(schema.iter_errors(document)) == []
        read = record.parse(document)
        written = record.document(read, names) | {"status": record.status_document(read.status)}
        # What this version adds is there only once it is used; what the older one wrote is all there.
        assert written == document
        again.append(written)
    found = ledger(released, READ_LEDGER, again)
    assert found == [
        [
            one["metadata"]["name"],
            one["status"]["state"],
            one["status"]["highestSequence"],
            one["spec"]["identity"]["hostKey"],
        ]
        for one in documents
    ]
