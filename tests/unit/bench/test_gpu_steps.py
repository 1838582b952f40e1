"""What a step leaves of itself, the files that a session leaves, and the whole command on a machine without a GPU."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.errors import GpuBurninError
from tests.bench.gpu import burnin, step
from tests.bench.gpu.burnin import QUICK_LIMIT_S, Ran, shortfalls
from tests.bench.gpu.plan import STEPS
from tests.bench.gpu.runner import LOG, RESULT, TABLE
from tests.bench.gpu.step import NothingToDo, Report, do

ROOT = Path(__file__).resolve().parents[3]


def _done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Any) -> tuple[int, dict[str, Any]]:
    monkeypatch.setitem(step._STEPS, "act", act)
    status = do("act", Report(tmp_path / "result.json", tmp_path))
    return status, json.loads((tmp_path / "result.json").read_text())


def test_every_step_of_the_plan_can_be_done() -> None:
    files = {path.stem for path in (ROOT / "tests/gpu").glob("test_*.py")}
    named = {one.name for one in STEPS}
    assert named - set(step._STEPS) == files - {"test_run"}, "the quick step is that of test_run"
    assert set(step._STEPS) <= named


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (GpuBurninError(f"{socket.gethostname()}: no GPU:\n see nvidia-smi"), 1, {"why": "no GPU: see nvidia-smi"}),
        (ImportError("No module named 'pytest'"), 1, {"why": "No module named 'pytest'"}),
        (KeyError("x"), 1, {"why": "KeyError: 'x'"}),
        (NothingToDo("one GPU"), 0, {"nothing_to_do": "one GPU"}),
    ],
)
def test_what_ends_a_step_is_one_sentence_beside_what_it_has_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, told: dict[str, str]
) -> None:
    def act(report: Report) -> None:
        report.save(first=1)
        report.save(second=2)
        raise error

    assert _done(tmp_path, monkeypatch, act) == (status, {"figures": {"first": 1, "second": 2}, **told})


# --- one file of tests ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("def test_a(): pass\n@pytest.mark.skip(reason='one GPU')\ndef test_b(): pass", None),
        ("def test_a(): pass\ndef test_b(): assert 1 == 2", r"1 failed: test_x\.py::test_b: .*assert 1 == 2"),
        ("@pytest.fixture\ndef f(): raise OSError('broken')\ndef test_a(f): pass", "1 failed: .*OSError: broken"),
        ("@pytest.mark.skip(reason='no GPU')\ndef test_a(): pass", "^no test was run: no GPU$"),
        ("raise ImportError('no numpy')", "^no test was run: pytest 2$"),
    ],
    ids=["passes", "fails", "fixture fails", "skipped", "cannot be read"],
)
def test_a_file_of_tests_is_done_only_when_tests_passed_and_none_failed(
    tmp_path: Path, body: str, why: str | None
) -> None:
    (tmp_path / "test_x.py").write_text(f"import pytest\npytestmark = pytest.mark.gpu\n{body}\n")
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom tests.bench.gpu.gpu_tests import run_file\n"
        "told = {}\n"
        f"try: run_file(lambda **figures: told.update(figures), 'test_x', Path({str(tmp_path)!r}))\n"
        "except Exception as error: told['why'] = str(error)\n"
        "print('told', json.dumps(told))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.rpartition("told ")[2])
    if why is None:
        assert told == {"passed": 1, "failed": [], "skipped": {"one GPU": 1}}
    else:
        with pytest.raises(GpuBurninError, match=why):
            raise GpuBurninError(told["why"])


# --- burn-ins ---


def _run_of(state: Path, name: str, page_bytes: int = 10) -> None:
    (run := state / "runs" / name).mkdir(parents=True)
    (run / "report.json").write_text("{}")
    (run / "report.html").write_bytes(b"x" * page_bytes)
    (run / "journal.jsonl").write_text(f'{{"event": "{name}"}}\n')


def test_a_session_leaves_eight_files_at_most(tmp_path: Path) -> None:
    (out := tmp_path / "out").mkdir()
    for level in ("quick", "standard"):
        _run_of(tmp_path / level, "run of " + level)
        assert burnin._keep(tmp_path / level, out, level) == ()
    kept = {path.name for path in out.iterdir()}
    assert len(kept | {RESULT, TABLE, LOG}) == 8
    assert (out / "journal.jsonl").read_text().count("\n") == 2


def test_files_that_are_too_large_are_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burnin, "MOST_BYTES", 100)
    (out := tmp_path / "out").mkdir()
    _run_of(tmp_path / "state", "run", page_bytes=101)
    (out / "journal.jsonl").write_text("x" * 90)
    assert burnin._keep(tmp_path / "state", out, "quick") == ("report.html", "journal.jsonl")
    assert {path.name for path in out.iterdir()} == {"quick.json", "journal.jsonl"}


def _ran(**changes: Any) -> Ran:
    """A quick run as it should be."""
    checks = [{"name": name, "gpu": "GPU-0", "verdict": "PASS"} for name in burnin._ON_A_GPU]
    tests = [{"check": name, "fault": "flip", "detected": True} for name in burnin.SELFTESTED]
    report = {
        "gpus": [{"uuid": "GPU-0"}], "simulated": False, "verdict": "PASS", "reasons": [], "checks": checks,
        "selftest": tests,
    }  # fmt: skip
    fields: dict[str, Any] = {"exit_code": 0, "seconds": 50.0, "errors": ""}
    fields |= {key: changes.pop(key) for key in list(changes) if key in fields}
    return Ran(report={**report, **changes}, **fields)


def test_a_quick_run_as_it_should_be_falls_short_of_nothing() -> None:
    assert shortfalls(_ran()) == []


_REASON = {"code": "GEMM_MISMATCH", "check": "gemm", "message": "wrong"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"checks": []}, "gemm of GPU-0 was not run"),
        ({"checks": [{"name": "gemm", "gpu": "GPU-0", "verdict": "FAIL"}]}, "gemm of GPU-0 was FAIL"),
        ({"reasons": [_REASON], "verdict": "FAIL", "exit_code": 1}, "GEMM_MISMATCH (gemm): wrong"),
        ({"selftest": [{"check": "gemm", "fault": "nan", "detected": False}]}, "fault nan of gemm was not detected"),
        ({"selftest": []}, "gemm did not test its detector"),
        ({"simulated": True}, "no real GPU was tested"),
        ({"gpus": []}, "no real GPU was tested"),
        ({"exit_code": 3}, "exit status 3, verdict PASS and 0 reasons disagree"),
        ({"seconds": QUICK_LIMIT_S}, "it took 60.0 s of 60"),
    ],
)
def test_what_a_quick_run_falls_short_of_is_said(changes: dict[str, Any], said: str) -> None:
    assert any(said in one for one in shortfalls(_ran(**changes))), shortfalls(_ran(**changes))


def test_a_run_without_a_report_falls_short() -> None:
    assert shortfalls(Ran(2, 1.0, None, "gpu-burnin: no GPU")) == ["exit status 2 and no report: gpu-burnin: no GPU"]


# --- the whole command ---


def _session(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench.gpu", "--out", str(out), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_on_a_bare_python_the_first_step_names_what_is_missing(tmp_path: Path) -> None:
    """Steps are started with the same Python, which finds no packages here by its own environment."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    command = [
        str(bare / "bin/python"),
        "-m",
        "tests.bench.gpu",
        "--out",
        str(tmp_path / "out"),
        "versions",
        "test_sm",
        "rates",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    first, tests, rates = done.stdout.splitlines()[:3]
    assert "missing here: numpy (everything on the GPU), cupy" in first and "pytest (the tests)" in first
    assert "No module named 'pytest'" in tests
    assert "No module named" in rates


@pytest.mark.slow
@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU")
def test_without_a_gpu_each_step_says_why_and_the_table_claims_nothing(tmp_path: Path) -> None:
    done = _session(tmp_path, "node", "test_sm", "quick", "nccl_all", "rates")
    assert done.returncode == 1, done.stderr
    steps = json.loads((tmp_path / RESULT).read_text())["steps"]
    assert {name: one["state"] for name, one in steps.items()} == {
        "node": "failed", "test_sm": "failed", "quick": "failed", "nccl_all": "nothing to do", "rates": "failed",
    }  # fmt: skip
    rows = [line.split(" | ") for line in (tmp_path / TABLE).read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 5
    assert all(measured.startswith("not measured: ") for _, measured, _ in rows), rows
    assert "### no GPU, " in done.stdout


@pytest.mark.slow
def test_a_session_that_is_ended_from_outside_prints_what_there_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.gpu", "--out", str(tmp_path), "test_products", "test_hbm"]
    pipe = subprocess.PIPE
    session = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)
    while not (tmp_path / TABLE).exists():
        assert session.poll() is None
    session.terminate()
    told, errors = session.communicate()
    assert (session.returncode, errors) == (1, "bench: ended from outside\n")
    assert told.count("not measured: not reached") == 2


def test_a_folder_with_older_results_or_a_step_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    done = _session(tmp_path)
    assert done.returncode == 2 and "is not empty" in done.stderr
    done = _session(tmp_path / "new", "speed")
    assert done.returncode == 2 and "unknown step 'speed'" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


# --- compiled kernels ---


def test_steps_share_compiled_kernels_in_the_session_s_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    class Device:
        def __init__(self, kernel_dir: Path) -> None:
            made.append(kernel_dir)

        def open(self, _: None) -> None:
            raise GpuBurninError("no GPU")

    monkeypatch.setattr("gpu_burnin.device.cuda.CudaDevice", Device)
    for name in ("rates", "hbm"):
        assert do(name, Report(tmp_path / f"{name}.json", tmp_path)) == 1
    assert made == [tmp_path / "kernels"] * 2
    assert (tmp_path / "kernels").stat().st_mode & 0o777 == 0o700
