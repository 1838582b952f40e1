"""The file set's rules, on real files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.files import (
    DIFF_LIMIT_BYTES,
    DirectorySpec,
    FileSpec,
    apply,
    parse_mode,
)


def mode_of(path: Path) -> int:
    return path.lstat().st_mode & 0o7777


def test_places_then_finds_nothing_to_do(tmp_path: Path) -> None:
    files = [
        FileSpec(str(tmp_path / "d/a"), b"one\n", 0o640),
        FileSpec(str(tmp_path / "d/b"), b"\xff", 0o600),
    ]
    directories = [DirectorySpec(str(tmp_path / "d"), 0o750)]
    first = apply(files, directories)
    assert first.changed_files == (str(tmp_path / "d"), str(tmp_path / "d/a"), str(tmp_path / "d/b"))
    assert (tmp_path / "d/a").read_bytes() == b"one\n"
    assert [mode_of(tmp_path / name) for name in ("d", "d/a", "d/b")] == [0o750, 0o640, 0o600]
    assert apply(files, directories).changed_files == ()
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["a", "b"]


@pytest.mark.parametrize("kind", ["content", "mode", "symlink", "owner", "directory mode", "absent", "absent folder"])
def test_each_difference_is_a_change_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o644)
    spec, directories, absent = FileSpec(str(path), b"old", 0o644), [], []
    if kind == "content":
        spec = FileSpec(str(path), b"new", 0o644)
    elif kind == "mode":
        spec = FileSpec(str(path), b"old", 0o600)
    elif kind == "symlink":
        path.rename(tmp_path / "target")
        path.symlink_to("target")
    elif kind == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root may give a file away")
        spec = FileSpec(str(path), b"old", 0o644, owner="65534", group="65534")
    elif kind == "directory mode":
        (tmp_path / "d").mkdir(0o700)
        directories = [DirectorySpec(str(tmp_path / "d"), 0o755)]
    else:
        (tmp_path / "gone").mkdir()
        (tmp_path / "gone/x").write_text("x")
        absent = [str(tmp_path / ("gone/x" if kind == "absent" else "gone"))]
    would = apply([spec], directories, absent, check=True)
    assert len(would.changed_files) == 1
    assert apply([spec], directories, absent).changed_files == would.changed_files
    assert apply([spec], directories, absent).changed_files == ()
    assert not path.is_symlink()
    assert path.read_bytes() == spec.content


def test_rename_keeps_the_owner_when_none_is_given(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    path = tmp_path / "a"
    path.write_bytes(b"old")
    os.chown(path, 65534, 65534)
    apply([FileSpec(str(path), b"new", 0o644)])
    assert (path.stat().st_uid, path.stat().st_gid) == (65534, 65534)


def test_check_mode_writes_nothing_and_tolerates_what_is_not_made_yet(tmp_path: Path) -> None:
    spec = FileSpec(str(tmp_path / "d/a"), b"x", 0o644, owner="no-such-user", validate="no-such-program %s")
    outcome = apply([spec], [DirectorySpec(str(tmp_path / "d"))], check=True)
    assert outcome.changed_files == (str(tmp_path / "d"), str(tmp_path / "d/a"))
    assert list(tmp_path.iterdir()) == []


def test_validate_refusal_places_nothing(tmp_path: Path) -> None:
    good = FileSpec(str(tmp_path / "good"), b"x", 0o644, validate="true %s")
    bad = FileSpec(str(tmp_path / "bad.conf"), b"x", 0o644, validate="ls %s.absent")
    with pytest.raises(FleetError, match=r"bad\.conf: nothing was placed.*exit code 2.*bad\.conf\.absent"):
        apply([good, bad], [DirectorySpec(str(tmp_path / "d"))])
    assert list(tmp_path.iterdir()) == []


def test_validate_sees_the_new_content_under_the_file_s_name(tmp_path: Path) -> None:
    spec = FileSpec(str(tmp_path / "x.service"), b"needle", 0o644, validate="grep -rq needle %s")
    apply([spec])
    refused = FileSpec(spec.dest, b"hay", 0o644, validate=spec.validate)
    with pytest.raises(FleetError):
        apply([refused])
    assert Path(spec.dest).read_bytes() == b"needle"


def test_output_of_a_sensitive_file_s_checker_is_withheld(tmp_path: Path) -> None:
    spec = FileSpec(str(tmp_path / "a"), b"hidden", 0o600, sensitive=True, validate="grep -v absent %s --bad")
    with pytest.raises(FleetError, match="output withheld") as caught:
        apply([spec])
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("before", [None, b"short", b"hidden1"])
def test_sensitive_content_is_in_no_diff(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "a"
    if before is not None:
        path.write_bytes(before)
    outcome = apply([FileSpec(str(path), b"hidden2", 0o600, sensitive=True)], check=True)
    text = str([diff.as_ansible() for diff in outcome.diffs])
    assert "sensitive content changed" in text
    assert "hidden" not in text
    assert "short" not in text


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"new\n", "-old\n+new\n"),
        (b"\xff\xfe", "binary content changed (4 -> 2 bytes)"),
        (b"x" * (DIFF_LIMIT_BYTES + 1), "too large to show"),
    ],
)
def test_diff(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old\n")
    path.chmod(0o644)
    outcome = apply([FileSpec(str(path), content, 0o644)])
    assert expected in outcome.diffs[0].as_ansible()["prepared"]


@pytest.mark.parametrize(
    ("spec", "directories", "absent", "message"),
    [
        (FileSpec("relative", b"", 0o644), [], [], "not a plain absolute path"),
        (FileSpec("/tmp/../etc/x", b"", 0o644), [], [], "not a plain absolute path"),
        (FileSpec("{tmp}/a", b"", 0o644), [], ["{tmp}/a"], "named twice"),
        (FileSpec("{tmp}/none/a", b"", 0o644), [], [], "list it under directories"),
        (FileSpec("{tmp}", b"", 0o644), [], [], "not a regular file"),
        (FileSpec("{tmp}/a", b"", 0o644, owner="no-such-user"), [], [], "user 'no-such-user' does not exist"),
        (
            FileSpec("{tmp}/a", b"", 0o644, group="no-such-group"),
            [],
            [],
            "group 'no-such-group' does not exist",
        ),
        (FileSpec("{tmp}/a", b"", 0o644, validate="true"), [], [], "has no %s"),
        (FileSpec("{tmp}/a", b"", 0o644, validate="no-such-program %s"), [], [], "not installed"),
        (FileSpec("{tmp}/a", b"", 0o644), [DirectorySpec("{tmp}/file")], [], "should be a directory"),
        (FileSpec("{tmp}/a", b"", 0o644), [], ["/tmp"], "top-level"),
    ],
)
def test_refusals(
    tmp_path: Path, spec: FileSpec, directories: list[DirectorySpec], absent: list[str], message: str
) -> None:
    (tmp_path / "file").write_text("here")

    def real(path: str) -> str:
        return path.replace("{tmp}", str(tmp_path))

    filled = FileSpec(real(spec.dest), spec.content, spec.mode, spec.owner, spec.group, spec.sensitive, spec.validate)
    with pytest.raises(FleetError, match=message):
        apply([filled], [DirectorySpec(real(d.path)) for d in directories], [real(path) for path in absent])


@pytest.mark.parametrize("text", ["u=rw", "", "0999", "12345", "7"])
def test_bad_modes(text: str) -> None:
    with pytest.raises(FleetError, match="not octal"):
        parse_mode(text, "/a")
    assert parse_mode("0640", "/a") == parse_mode("640", "/a") == 0o640
