"""The glossary explains each word once, and where it says that the code has it there is something."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# From where the last column names files and folders.
FROM = (ROOT, ROOT / "gpu_burnin", ROOT / "collections/ansible_collections/muster/fleet/plugins")
ROW = re.compile(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)


def problems(page: str) -> list[str]:
    """Words that stand there twice, and paths that lead nowhere."""
    rows = [(words, place) for words, place in ROW.findall(page) if words != "word"]
    counts = Counter(word for words, _ in rows for word in words.split(", "))
    paths = (path.removesuffix("NAME/") for _, place in rows for path in re.findall(r"`([^` ]+[/.][^` ]*)`", place))
    return [f"{word} is explained {count} times" for word, count in counts.items() if count > 1] + [
        f"{path} does not exist" for path in paths if not any((root / path).exists() for root in FROM)
    ]


def test_words_are_explained_once_and_are_in_the_code() -> None:
    page = (ROOT / "docs/reference/glossary.md").read_text()
    assert len(ROW.findall(page)) > 40
    assert problems(page) == []


def test_a_word_that_stands_there_twice_and_a_path_that_is_gone_are_seen() -> None:
    page = "| word | meaning | in the code |\n| a, b | x | `run.py` |\n| b | y | `gone/x.py`, role `etcd` |\n"
    assert problems(page) == ["b is explained 2 times", "gone/x.py does not exist"]
