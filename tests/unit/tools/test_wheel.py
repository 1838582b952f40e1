"""The wheel of gpu_burnin: every file that the program reads is in it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpu_burnin import __version__

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_a_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    """CUDA C, data, schema, templates: what a wheel lacks is missed on the node only."""
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "gpu_burnin", checkout / "gpu_burnin", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    command = [sys.executable, "-c", build, str(tmp_path)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.split("-")[:2] == ["gpu_burnin", __version__]
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("gpu_burnin/")}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "gpu_burnin").rglob("*") if path.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    assert any(name.endswith(".cu") for name in wanted)
    assert packed == wanted
