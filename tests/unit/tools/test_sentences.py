"""Every page has one sentence on a line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.sentences import laid_out, misplaced, sentences

ROOT = Path(__file__).resolve().parents[3]


def test_pages_have_one_sentence_on_a_line() -> None:
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in done.stdout.split() if (ROOT / name).is_file()]
    assert {"README.md", "CHANGELOG.md", "docs/status.md", "roles/etcd/README.md"} <= {*names}
    wrong = [f"{name}:{line}: {why}" for name in names for line, why in misplaced((ROOT / name).read_text())]
    assert wrong == [], "python -m tools.sentences PAGE... lays them out"


@pytest.mark.parametrize(
    "sentence",
    [
        "See e.g. the driver, i.e. version 580.65.06, etc. of the node.",
        "Secrets (`a_password`, ...) may be encrypted.",
        "Run `muster why NODE. Then` first.",
        "It says (see [there](a.md). Or not) what is so.",
        'The message "No such file. Try again" is of apt.',
        "**+** is ahead, **?** is not known.",
        "- `A. B`\n",
    ],
)
def test_what_looks_like_an_end_is_none(sentence: str) -> None:
    assert sentences(sentence) == [sentence.strip()]
    assert [*misplaced(sentence)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is so. etcd stops.", ["It is so.", "etcd stops."]),
        ("**Why?** It\nis so.", ["**Why?**", "It is so."]),
        ("As [said](a.md). (It is.) Then `b`. `c` too", ["As [said](a.md).", "(It is.)", "Then `b`.", "`c` too"]),
        ('He says "no." So it\n  is.', ['He says "no."', "So it is."]),
    ],
)
def test_sentences_are_told_apart(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


PAGE = """\
# One. Two.

A first. And
a second.

1. In a list. It
   goes on.

> Quoted. Twice.

| a. b | c. d |
|---|---|
| e. f | g. h |

```
i. j
```
"""


def test_two_sentences_in_a_line_and_a_sentence_in_two_are_seen_and_mended() -> None:
    two, broken = "it holds two sentences", "its sentence goes on in the next line"
    assert [*misplaced(PAGE)] == [(3, two), (6, two), (9, two)]
    assert [*misplaced("A line.\nThe next\none.\n")] == [(2, broken)]
    mended = laid_out(PAGE)
    assert [*misplaced(mended)] == []
    assert "\nA first.\nAnd a second.\n\n1. In a list.\n   It goes on.\n\n> Quoted.\n> Twice.\n\n| a. b" in mended
    assert mended.partition("| a. b")[2] == PAGE.partition("| a. b")[2]
