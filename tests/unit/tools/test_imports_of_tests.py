"""What test modules share stands in helpers beside them: a test may go, or change, and takes no other one along."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# In one line, and as a line of an import in brackets.
IMPORTED = r"^ *(from (tests|\.)|import tests).*\btest_|^ +test_[a-z0-9_]+( as [a-z0-9_]+)?,?$"


def imports_of_tests(root: Path) -> list[str]:
    """FILE:LINE:TEXT of each import of a test module, or of a test, in a checkout; what is not committed yet counts."""
    command = ["git", "grep", "--untracked", "-nP", IMPORTED, "--", "tests/*.py", "tools/*.py"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def test_no_module_imports_a_test_module() -> None:
    assert imports_of_tests(ROOT) == [], "move what both need into a module that is named for what it holds"


def test_each_way_to_import_one_is_found(tmp_path: Path) -> None:
    ways = (
        "from tests.a.test_b import C",
        "from .test_b import C",
        "from tests.a import test_b",
        "from . import (\n    a,\n    test_b,\n)",
        "import tests.a.test_b as b",
        "def f():\n    from ..a.test_b import C",
    )
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / "tests").mkdir()
    for number, way in enumerate(ways):
        (tmp_path / f"tests/m{number}.py").write_text(f"import pytest\n{way}\n")
    (tmp_path / "tests/fine.py").write_text("from tests.support import x\nfrom gpu_burnin.a import test_of\n")
    found = imports_of_tests(tmp_path)
    assert [one.partition(":")[0] for one in found] == [f"tests/m{number}.py" for number in range(len(ways))]
