"""`make check BASE=COMMIT`: the slow tests of the areas that changed."""

from __future__ import annotations

import pytest

from tools.changed_areas import areas, main

FOLDERS = ["admission", "checks", "cli", "collection", "lab", "run", "settings", "tools"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ([], []),
        (["LICENSE"], []),
        (["gpu_burnin/admission/schedule/pick.py"], ["admission"]),
        (["gpu_burnin/run.py"], ["run"]),
        (["tests/unit/checks/gemm/test_gemm.py", "tests/lab/hosts.py"], ["checks", "lab"]),
        (["tests/unit/test_rooms.py"], []),
        (["collections/ansible_collections/muster/fleet/plugins/modules/drain.py"], ["collection"]),
        (["roles/etcd/tasks/main.yml"], ["collection", "settings", "tools"]),
        (["tools/wheelhouse.py"], ["tools"]),
        (["tests/support/fake_api.py"], FOLDERS),
        (["tests/unit/conftest.py"], FOLDERS),
    ],
)
def test_changed_files_name_the_tests_that_they_concern(changed: list[str], expected: list[str]) -> None:
    assert areas(changed, FOLDERS) == expected


def test_an_unknown_commit_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("no-such-commit") == 2
    assert "BASE=no-such-commit: git cannot compare with it" in capsys.readouterr().err
