"""Following the kernel log: what is there, what comes, what is lost."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_burnin.node.watch import kernel
from gpu_burnin.node.watch.kernel import Read, follow, follow_file

LINE = "3,{},{},-;NVRM: Xid (PCI:0000:1b:00): {}, something\n"
END = 98


def codes(read: Read) -> list[int]:
    return [event.xid for event in read.events]


def reads(path: Path) -> Iterator[Read]:
    return follow_file(path, lambda _: None)


def test_what_is_there_comes_first_and_may_have_come_before(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("6,1,10,-;NVRM: loading\n" + LINE.format(2, 20, 31))
    following = reads(path)
    first = next(following)
    assert (codes(first), first.again, first.lost) == ([31], True, 0)
    with path.open("a") as file:
        file.write(LINE.format(3, 30, 79))
    second = next(following)
    assert (codes(second), second.again, second.lost) == ([79], False, 0)


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    line = LINE.format(1, 10, 79)
    path.write_text(line[:30])
    following = reads(path)
    assert codes(next(following)) == []
    with path.open("a") as file:
        file.write(line[30:])
    assert codes(next(following)) == [79]


@pytest.mark.parametrize(
    ("added", "lost"),
    [(LINE.format(5, 30, 79), 3), (LINE.format(1, 30, 79), 1), ("NVRM: Xid (PCI:0000:1b:00): 79\n", 1)],
)
def test_lost_messages_are_counted(added: str, lost: int, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(LINE.format(1, 10, 31))
    following = reads(path)
    next(following)
    with path.open("a") as file:
        file.write(added)
    assert next(following).lost == lost


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_log_that_was_cut_has_a_gap_and_is_read_anew(how: str, tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(LINE.format(1, 10, 31) * 3)
    following = reads(path)
    next(following)
    if how == "replaced":
        (tmp_path / "other").write_text(LINE.format(1, 10, 31) * 3)
        (tmp_path / "other").replace(path)
    else:
        path.write_text(LINE.format(1, 10, 31))
    found = next(following)
    assert found.lost >= 1
    assert found.again


def test_a_log_that_cannot_be_read_is_told_until_it_can(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    following = reads(path)
    assert "cannot be read" in next(following).why
    assert "cannot be read" in next(following).why
    path.write_text("6,1,10,-;NVRM: loading\n")
    assert next(following) == Read(again=True)


class _End(Exception):
    pass


def test_a_device_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_: float) -> None:
        raise _End

    path = tmp_path / "file"
    path.write_text("x")
    monkeypatch.setattr(kernel, "KMSG_DEVICE", path)
    following = follow("auto", end)
    assert "no kernel log" in next(following).why
    with pytest.raises(_End):
        next(following)


def device(monkeypatch: pytest.MonkeyPatch, read: Callable[[int, int], bytes]) -> None:
    """A kernel log that is read so: by the follower, and at its END."""
    monkeypatch.setattr(os, "read", read)
    opened = iter([99, END])
    monkeypatch.setattr(os, "open", lambda *_: next(opened))
    monkeypatch.setattr(os, "lseek", lambda fd, *_: {END: 0}[fd])
    monkeypatch.setattr(os, "close", lambda _: None)
    monkeypatch.setattr(Path, "is_char_device", lambda _: True)


def test_records_of_a_device_come_one_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | OSError] = [
        LINE.format(5, 10, 31).encode(),
        OSError(32, "EPIPE"),
        LINE.format(9, 20, 79).encode(),
        BlockingIOError(),
        b"6,10,30,-;other\n",
        BlockingIOError(),
        LINE.format(11, 40, 48).encode(),
        BlockingIOError(),
        OSError(19, "gone"),
    ]

    def read(_: int, __: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    device(monkeypatch, read)
    monkeypatch.setattr(kernel, "_wait", lambda fd, sleep: None)
    following = follow("auto", lambda _: None)
    first, second, third = next(following), next(following), next(following)
    assert (codes(first), first.lost, first.again) == ([31, 79], 3, True)
    assert (codes(second), second.again) == ([48], False)
    assert "cannot be read any more" in third.why


def test_a_log_that_is_written_faster_than_it_is_read_is_told_of_and_hangs_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what comes is new, also where there was no pause since it was begun."""
    written, read = iter(range(1500, 10**6)), iter(range(10**6))

    def record(fd: int, _: int) -> bytes:
        return LINE.format(next(written if fd == END else read), 10, 79).encode()

    device(monkeypatch, record)
    turns: list[float] = []
    following = follow("auto", turns.append)
    found = [next(following) for _ in range(4)]
    assert [len(one.events) for one in found] == [1000] * 4 and len(turns) == 3
    assert [one.again for one in found] == [True, True, False, False]
    following.close()  # type: ignore[attr-defined]
