"""`gpu-burnin demo`: a whole run for somebody who has nothing, and nothing of this host in it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.cli import demo
from gpu_burnin.cli.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import make_reason
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
# Notes each file that the process opens or makes and each program that it starts.
_WATCHED = """
import sys
from gpu_burnin.__main__ import main
seen = open(sys.argv.pop(), "w")
def note(event, arguments):
    if event in ("open", "os.mkdir", "os.rename", "subprocess.Popen"):
        print(arguments[1] if event == "subprocess.Popen" else arguments[0], file=seen, flush=True)
sys.addaudithook(note)
main()
"""


@dataclass(frozen=True)
class Shown:
    """What a demo came to. `touched`: files that the command itself opened, and commands that it started."""

    code: int
    out: str
    err: str
    touched: str
    folder: Path


def show(home: Path, *arguments: str, path: str) -> Shown:
    """A demo by a user with an empty home and nothing but these programs."""
    touched = home / "touched"
    environment = {"PATH": path, "HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", _WATCHED, "demo", *arguments, str(touched)]
    done = subprocess.run(
        command, env=environment, cwd=home, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    return Shown(done.returncode, done.stdout, done.stderr, touched.read_text(), home / demo.FOLDER / "1")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Without a single program: no compiler, no ssh-keygen, no nvidia-smi."""
    return show(tmp_path_factory.mktemp("healthy"), "--json", path="/nowhere")


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    return show(tmp_path_factory.mktemp("sick"), "--sick", path=os.environ["PATH"])


@pytest.mark.slow
def test_a_healthy_demo_passes_is_simulated_and_needs_no_program(healthy: Shown) -> None:
    assert healthy.code == 0, healthy.err
    report = json.loads(healthy.out)
    assert (report["verdict"], report["simulated"], len(report["gpus"])) == ("PASS", True, demo.GPUS)
    assert {gpu["sku"] for gpu in report["gpus"]} == {demo.MODEL}
    assert {check["name"] for check in report["checks"]} >= {"state", "gemm", "hbm", "nvlink", "power"}
    assert {"NO_EVIDENCE"} == {warning["code"] for warning in report["warnings"]}, (
        "without ssh-keygen nothing is signed"
    )
    assert (healthy.folder / "latest/report.html").is_file()
    assert "counts nowhere" in healthy.err and "gpu-burnin demo --sick" in healthy.err
    assert f"{demo.FOLDER}/1/latest/report.html" in healthy.err


@pytest.mark.slow
def test_a_sick_demo_names_one_gpu_by_its_counters_and_one_by_its_product_alone(sick: Shown) -> None:
    assert sick.code == 1, sick.err
    report = json.loads((sick.folder / "latest/report.json").read_text())
    names = {gpu["uuid"]: gpu["index"] for gpu in report["gpus"]}
    found: dict[int, set[str]] = {}
    for reason in report["reasons"]:
        if reason["gpu"]:
            found.setdefault(names[reason["gpu"]], set()).add(reason["code"])
    assert found.keys() == {demo.LOUD, demo.SILENT}
    assert found[demo.LOUD] >= {"XID_FATAL", "ECC_UNCORRECTED", "REMAP_PENDING"}
    assert found[demo.SILENT] == {"GEMM_MISMATCH"}
    (errors,) = [check["errors"] for check in report["checks"] if check["errors"]]
    assert {"row", "col", "expected", "got"} <= errors[0].keys()
    page = (sick.folder / "latest/report.html").read_text().replace("<wbr>", "")
    assert "XID_FATAL" in page and "GEMM_MISMATCH" in page and f"[{errors[0]['row']}, {errors[0]['col']}]" in page
    assert "No counter and no line of the kernel log is against this GPU." in sick.err
    # The answer comes after a line for each check, not after one for each check of each GPU.
    assert len(re.findall(r"^\d\d:\d\d:\d\d ", sick.err, re.MULTILINE)) <= 12, sick.err
    # It is said on the page, in the report and at the end that nothing of this is real.
    assert "simulated hardware" in page.lower() and "injected" in page
    assert "INJECTED" in {reason["code"] for reason in report["reasons"]}
    closing = sick.err[sick.err.index("\n\n") + 2 :].splitlines()
    assert closing[0] == f"FAIL: GPU {demo.LOUD} and GPU {demo.SILENT}"
    assert max(map(len, closing)) <= 80
    told = " ".join(sick.err.split())
    assert "The GPUs are simulated, the faults planted by the demo" in told and "Nothing is to be done here" in told
    order = " ".join(sick.out.split())
    assert f"ACTION Reset GPU {demo.LOUD}. Then run again without --inject. Only if the fault of GPU 3" in order
    assert "ACTION includes the reset" not in order
    assert sick.out.startswith("VERDICT  FAIL") and "simulated hardware" in sick.out
    assert not (sick.folder / "latest/evidence.json").exists()


@pytest.mark.slow
def test_the_readme_shows_lines_of_the_demo(sick: Shown) -> None:
    readme = (ROOT / "README.md").read_text()
    (shown,) = [block for block in readme.split("```")[1::2] if "GEMM_MISMATCH" in block and "GPU 3" in block]
    lines = set(sick.out.splitlines()) | set(sick.err.splitlines())
    # The first line names the language of the block.
    assert [line for line in shown.splitlines()[1:] if line not in lines] == []


@pytest.mark.slow
def test_a_demo_leaves_this_host_alone(healthy: Shown, sick: Shown) -> None:
    for shown in (healthy, sick):
        assert "kernel.log" in shown.touched, "what is watched is seen"
        for place in ("/etc/ssh", "/etc/gpu-burnin", "/var/lib/gpu-burnin"):
            assert place not in shown.touched
        home = shown.folder.parents[1]
        assert {path.name for path in home.iterdir()} == {demo.FOLDER, "touched"}
    assert ("ssh-keygen" in sick.touched) == bool(shutil.which("ssh-keygen"))


def _outcome(folder: Path, *reasons: Any) -> Any:
    gpus = [SimpleNamespace(index=index, uuid=f"GPU-{index}") for index in range(demo.GPUS)]
    return SimpleNamespace(
        run_dir=folder / "1/runs/a",
        verdict="PASS",
        exit_code=0,
        problems=(),
        plan=SimpleNamespace(gpus=gpus),
        judgement=SimpleNamespace(reasons=reasons),
    )


def test_no_counter_shows_it_is_said_only_where_none_does(tmp_path: Path) -> None:
    wrong = make_reason("GEMM_MISMATCH", "gemm", "fp64 product is wrong", gpu="GPU-3")
    counted = make_reason("ECC_UNCORRECTED", "telemetry", "3 uncorrectable errors", gpu="GPU-3")
    silent = "\n".join(demo._after(_outcome(tmp_path, wrong), True))
    assert "GPU 3: GEMM_MISMATCH\n  No counter and no line" in silent
    told = "\n".join(demo._after(_outcome(tmp_path, wrong, counted), True))
    assert "GPU 3: GEMM_MISMATCH, ECC_UNCORRECTED" in told
    assert "No counter" not in told


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What the environment of the run says; nothing is run."""
    found: list[str | None] = []

    def run(*_: object) -> Any:
        found.append(os.environ.get(ENVIRONMENT))
        return _outcome(tmp_path)

    monkeypatch.setattr(demo, "run_burnin", run)
    monkeypatch.setattr(demo, "print_report", lambda *_: None)
    monkeypatch.setattr(demo.private_shm, "enter", lambda: True)
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    return found


def test_each_demo_has_a_folder_of_its_own_and_asks_for_gpus_for_its_own_time(
    tmp_path: Path, environments: list[str | None]
) -> None:
    for _ in range(2):
        done = CliRunner().invoke(cli, ["demo", "--out", str(tmp_path / "out")])
        assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["1", "2"]
    assert len(environments) == 2 and all(text and demo.MODEL in text for text in environments)
    assert ENVIRONMENT not in os.environ


@pytest.mark.parametrize("opened", [True, False])
def test_the_page_is_opened_where_a_browser_can_be(
    opened: bool, tmp_path: Path, environments: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []
    monkeypatch.setattr(demo.webbrowser, "open", lambda page: pages.append(page) or opened)
    done = CliRunner().invoke(cli, ["demo", "--open", "--out", str(tmp_path)])
    assert pages == [f"file://{tmp_path}/1/runs/a/report.html"]
    assert ("no browser could be started here" in done.output) == (not opened)


def test_a_model_that_is_not_recorded_and_a_folder_that_cannot_be_are_named() -> None:
    for arguments, says in (
        (["--model", "k80"], "--model k80: nothing is recorded of such a GPU; choose from a100-"),
        (
            ["--model", "h100"],
            "of such a GPU; did you mean h100-sxm5-80gb or h100-pcie or h100-nvl?",
        ),
        (["--out", "/proc/none"], "/proc/none cannot be written"),
    ):
        done = CliRunner().invoke(cli, ["demo", *arguments])
        assert isinstance(done.exception, GpuBurninError)
        assert says in str(done.exception)
        assert done.exception.exit_code == 2
