"""`make mutants`: each one applies, the tests that are to see it are there, and one that nobody sees is a failure."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import Mutant, read_mutants, wrong
from tools.prove import REPOSITORY

MUTANTS = read_mutants()
BROKEN = Mutant("a sum is wrong", "sums.py", "a + b", "a - b", ("tests",), "test_sum")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A project of one function with one test of it, and one that sees nothing."""
    (tmp_path / "build").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b\n\n\ndef twice(a):\n    return a * 2\n")
    (tmp_path / "tests/test_sums.py").write_text(
        "from sums import add\n\n\ndef test_sum():\n    assert add(1, 2) == 3\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak\n")
    return tmp_path


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_a_mutant_applies_and_its_tests_are_there(mutant: Mutant) -> None:
    text = (REPOSITORY / mutant.file).read_text()
    assert mutant.applied(text) != text
    paths = [REPOSITORY / place.partition("::")[0] for place in mutant.tests]
    assert all(path.exists() for path in paths)
    name = mutant.by.partition("[")[0]
    files = [file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])]
    assert any(f"def {name}" in file.read_text() for file in files), f"no test {name}"


@pytest.mark.parametrize("text", ["a * b", "a + b; a + b"])
def test_one_whose_place_is_not_there_once_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"sums.py has 'a \+ b' [02] times, not once: correct mutants.yaml"):
        BROKEN.applied(text)


@pytest.mark.slow
def test_one_that_the_expected_test_sees_is_fine_and_the_copy_is_as_before(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wrong(BROKEN, copy) == ""
    assert capsys.readouterr().out == "mutants: a sum is wrong: seen by tests.test_sums.test_sum\n"
    assert "a + b" in (copy / "sums.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "why"),
    [
        (
            Mutant("x", "sums.py", "a * 2", "a * 3", ("tests",), "test_sum"),
            "no test with 'test_sum' in its name failed",
        ),
        (Mutant("x", "sums.py", "a + b", "a - b", ("tests",), "test_other"), "but tests.test_sums.test_sum"),
        (Mutant("x", "sums.py", "a / b", "a - b", ("tests",), "test_sum"), "0 times, not once"),
    ],
)
def test_one_that_is_not_seen_as_expected_is_told(
    copy: Path, capsys: pytest.CaptureFixture[str], mutant: Mutant, why: str
) -> None:
    assert why in wrong(mutant, copy)
    assert capsys.readouterr().out.startswith("mutants: x: MISSED: ")
    assert "a + b" in (copy / "sums.py").read_text()


@pytest.mark.slow
def test_a_test_of_the_soak_is_no_evidence(copy: Path) -> None:
    test = copy / "tests/test_sums.py"
    test.write_text(
        "import pytest\nfrom sums import add\n\n\n@pytest.mark.soak\ndef test_sum():\n    assert add(1, 2) == 3\n"
    )
    assert "no test with 'test_sum'" in wrong(BROKEN, copy)


@pytest.mark.slow
def test_tests_that_fail_without_a_mutant_show_nothing(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = copy / "source"
    source.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=source, check=True)
    (source / "sums.py").write_text("def add(a, b):\n    return a + b + 1\n")
    (source / "pytest.ini").write_text("[pytest]\n")
    (source / "tests").mkdir()
    (source / "tests/test_sums.py").write_text((copy / "tests/test_sums.py").read_text())
    monkeypatch.setattr(mutants, "REPOSITORY", source)
    monkeypatch.setattr(mutants, "BUILD", source / "build")
    monkeypatch.setattr(mutants, "read_mutants", lambda: [BROKEN])
    assert mutants.main([]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "mutants: without any: tests.test_sums.test_sum"
    assert shown[-1] == "0 passed, 1 failed"
