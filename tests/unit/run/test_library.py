"""The package as a library: lazy, typed, and its example works as it stands."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import pytest
import yaml

import gpu_burnin
from gpu_burnin.run import Outcome, RunOptions, run_burnin
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
PAGE = "docs/operations/burnin.md"
SHAPES = {"gemm_m": 32, "gemm_n": 32, "gemm_k": 32, "hbm_bytes": 65536}


def example() -> str:
    """The example of the package's documentation."""
    indented = [line for line in (gpu_burnin.__doc__ or "").splitlines() if line.startswith("    ") or not line]
    return textwrap.dedent("\n".join(indented))


def test_names_load_on_first_use() -> None:
    code = (
        "import sys, gpu_burnin\n"
        "assert not [name for name in sys.modules if name.startswith('gpu_burnin.')]\n"
        "assert 'Plan' in dir(gpu_burnin)\n"
        "from gpu_burnin import *\n"
        "assert run_burnin.__module__ == 'gpu_burnin.run'\n"
        "assert not {'numpy', 'cupy', 'pynvml', 'rich'} & set(sys.modules), 'the supervisor stays light'\n"
        "try:\n    gpu_burnin.nothing\nexcept AttributeError: print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("ok\n", "")


def test_every_name_has_a_home_and_documentation() -> None:
    assert set(gpu_burnin._HOMES) | {"__version__"} == set(gpu_burnin.__all__)
    for name in gpu_burnin._HOMES:
        assert getattr(gpu_burnin, name).__doc__


@pytest.mark.parametrize("kind", [Outcome, RunOptions, gpu_burnin.Plan, gpu_burnin.Judgement, gpu_burnin.CheckResult])
def test_results_are_typed(kind: type) -> None:
    hints = typing.get_type_hints(kind)
    assert dataclasses.is_dataclass(kind)
    assert {field.name for field in dataclasses.fields(kind)} <= set(hints)
    assert typing.Any not in hints.values()


@pytest.mark.slow
def test_type_checkers_see_the_types(tmp_path: Path) -> None:
    assert (Path(gpu_burnin.__file__).parent / "py.typed").exists()
    assert typing.get_type_hints(run_burnin)["return"] is Outcome
    program = tmp_path / "program.py"
    program.write_text(example() + "reveal_type(run_burnin)\nreveal_type(outcome.judgement.reasons)\noutcome.nothing\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", str(program)]
    command += ["--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert "RunOptions, display:" in done.stdout
    assert "-> gpu_burnin.run.Outcome" in done.stdout
    assert 'tuple[gpu_burnin.types.Reason, ...]"' in done.stdout
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and '"nothing"' in errors[0], done.stdout


def program_of_the_page() -> str:
    """The program of the page on running the burn-in."""
    (source,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / PAGE).read_text(), re.DOTALL | re.MULTILINE)
    return str(source) + "print(outcome.run_dir / 'report.json', outcome.verdict, outcome.exit_code)\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "ends", "codes"),
    [(example(), "INCONCLUSIVE 3", ["COVERAGE_LOW"]), (program_of_the_page(), "PASS 0", [])],
    ids=["package", "page"],
)
def test_the_examples_work_as_they_stand_on_a_machine_without_a_host_key(
    program: str, ends: str, codes: list[str], tmp_path: Path, fake_nvml: Path
) -> None:
    """One of two GPUs, as the package's example has it, is not the whole node."""
    kernel_log = tmp_path / "kmsg"
    kernel_log.write_text("6,0,100,-;Linux version 6.1\n")
    config = {
        "backend": "cpu", "allow_simulated": True, "host_key": "/none", "kernel_log": str(kernel_log),
        "state_dir": str(tmp_path / "state"), "shapes": SHAPES,
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    program = program.replace("load_config()", f"load_config(Path({str(tmp_path / 'config.yaml')!r}))")
    environment = {
        "PATH": "/usr/bin:/bin",
        "LD_LIBRARY_PATH": str(fake_nvml),
        "MUSTER_FAKE_NVML_SCENARIO": str(ROOT / "tests/lab/scenarios/healthy-2gpu.scenario"),
    }
    # After a whole run the supervisor has loaded neither CUDA nor NVML, nor what only the workers need.
    program += (
        "import sys\nloaded = {'numpy', 'cupy', 'pynvml', 'ml_dtypes'} & set(sys.modules)\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "assert not loaded and 'libnvidia-ml' not in maps and 'libcuda' not in maps, loaded\n"
    )
    command = [sys.executable, "-c", "from pathlib import Path\n" + program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith(f"report.json {ends}")
    assert all(code in done.stdout for code in codes)
    assert ("gemm GPU-" in done.stdout) == ("result.gpu" in program)


def test_the_program_of_the_page_says_why_nothing_was_tested(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program_of_the_page()], capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path),
             "GPU_BURNIN_SIMULATED_NVML": '{"model": "h100-sxm5-80gb", "count": 1}'},
    )  # fmt: skip
    (sentence,) = done.stderr.splitlines()
    assert (done.returncode, sentence.startswith("not tested: ")) == (1, True)
    assert sentence.endswith("`gpu-burnin demo` shows the program without a GPU")
