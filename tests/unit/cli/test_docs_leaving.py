"""What the page on work that is asked to leave shows is what the project reads and writes, and its loops run."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml

from gpu_burnin.admission.view import Rules
from gpu_burnin.api.jobs import CHECKPOINT
from gpu_burnin.api.names import Names
from gpu_burnin.job import DEFAULT_FILE, FILE_VARIABLE
from gpu_burnin.node import leave_file

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/operations/work-that-leaves.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LOOPS = [text for kind, text in BLOCK.findall(PAGE) if kind == "python"]
STEPS = 100


class Training:
    """A training whose node is asked to leave after a step; with `others`, another node of the job is."""

    def __init__(self, path: Path, asked_after: int | None, *, others: bool = False) -> None:
        self.path, self.asked_after, self.others = path, asked_after, others
        self.steps: list[int] = []
        self.saved: list[int] = []

    def names(self) -> dict[str, Any]:
        return {
            "loader": range(STEPS),
            "first_step": 0,
            "train_step": self.train_step,
            "save_checkpoint": self.saved.append,
        }

    def train_step(self, batch: int) -> None:
        self.steps.append(batch)
        if batch == self.asked_after and not self.others:
            leave_file.write('{"why":"XID 79"}', self.path)


def stand_in_torch(training: Training) -> dict[str, ModuleType]:
    """As much of torch as the loop uses; the maximum over all ranks includes what the other node says."""
    torch, dist = ModuleType("torch"), ModuleType("torch.distributed")

    class Tensor:
        def __init__(self, value: int, device: str) -> None:
            assert (type(value), device) == (int, "cuda")
            self.value = value

        def item(self) -> int:
            return self.value

    def all_reduce(tensor: Tensor, op: object) -> None:
        assert op == "MAX"
        elsewhere = training.others and training.asked_after is not None and training.steps[-1] >= training.asked_after
        tensor.value = max(tensor.value, int(elsewhere))

    torch.__dict__.update(tensor=Tensor, distributed=dist)
    dist.__dict__.update(all_reduce=all_reduce, ReduceOp=SimpleNamespace(MAX="MAX"))
    return {"torch": torch, "torch.distributed": dist}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "leave.json"))
    return tmp_path / "leave.json"


def run(loop: str, training: Training, monkeypatch: pytest.MonkeyPatch) -> object:
    """The exit code of the loop, None when it came to its end."""
    for name, module in stand_in_torch(training).items():
        monkeypatch.setitem(sys.modules, name, module)
    try:
        exec(compile(loop, "loop", "exec"), training.names())
    except SystemExit as end:
        return end.code
    return None


def test_the_page_has_a_loop_of_two_lines_and_one_for_several_nodes() -> None:
    short, long = LOOPS
    assert len([line for line in short.splitlines() if "asked_to_leave" in line]) == 2
    assert "all_reduce" in long and "all_reduce" not in short


@pytest.mark.parametrize("loop", LOOPS, ids=["one", "several"])
def test_a_loop_that_nobody_asks_comes_to_its_end(loop: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(path, None)
    assert run(loop, training, monkeypatch) is None
    assert (len(training.steps), training.saved) == (STEPS, [])


@pytest.mark.parametrize(("loop", "last"), list(zip(LOOPS, (30, 40), strict=True)), ids=["one", "several"])
def test_a_loop_that_is_asked_saves_once_and_leaves(
    loop: str, last: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(path, 30)
    assert run(loop, training, monkeypatch) == 42
    assert (training.steps[-1], training.saved) == (last, [last])


def test_all_nodes_of_a_job_save_when_one_is_asked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(path, 30, others=True)
    assert run(LOOPS[1], training, monkeypatch) == 42
    assert training.saved == [40]


def test_the_pod_mounts_the_folder_and_holds_as_the_admitter_reads_it() -> None:
    text, _ = [text for kind, text in BLOCK.findall(PAGE) if kind == "yaml"]
    job = yaml.safe_load(text)["spec"]
    pod = job["template"]["spec"]
    assert job["template"]["metadata"]["annotations"] == {Names().hold_until: CHECKPOINT}
    folder = str(Path(DEFAULT_FILE).parent)
    assert [volume["hostPath"]["path"] for volume in pod["volumes"]] == [folder]
    assert pod["containers"][0]["volumeMounts"] == [{"name": "muster", "mountPath": folder, "readOnly": True}]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"], pod["restartPolicy"]) == ("Ignore", [42], "Never")


def test_the_pod_of_a_team_mounts_the_annotation_as_that_file() -> None:
    _, text = [text for kind, text in BLOCK.findall(PAGE) if kind == "yaml"]
    ((volume,),) = yaml.safe_load(text).values()
    (item,) = volume["downwardAPI"]["items"]
    assert (volume["name"], item["path"]) == ("muster", Path(DEFAULT_FILE).name)
    assert item["fieldRef"] == {"fieldPath": f"metadata.annotations['{Names().leave}']"}


def test_the_page_names_the_file_and_the_deadline() -> None:
    assert f"`{DEFAULT_FILE}`" in PAGE
    assert FILE_VARIABLE in PAGE
    assert f"{Rules().hold_deadline_s / 86400:g} days" in PAGE
